"""Where a team's time goes: its real episodes in the log, in the terminal and in the page, as a browser shows it."""

import asyncio
import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from outrider import Runner, open_store
from outrider.agent import EpisodeKit
from outrider.cli import cli
from outrider.core.chat import Message, tool_result, user
from outrider.core.task import Task
from outrider.env import Environment, Environments, Observation, Step
from outrider.orchestra import Agent, Orchestra, Performance, Team, VerdictRule
from playing import Speaker

HOSTILE = "<img src=x onerror=alert(1)>"
SECONDS = {"Plan": 0.08, "Info": 0.04, "Search": 0.1, "Judge": 0.03, "Guess": 0.01, "Answer": 0.2}


class Library(Environment):
    """A tool that takes a while."""

    async def reset(self, seed: int | None = None) -> Observation:
        return (user("Where is it?"),)

    async def step(self, action: Message) -> Step:
        await asyncio.sleep(0.04)
        return Step(tuple(tool_result(call, "on the third shelf") for call in action.tool_calls))


class Libraries(Environments):
    def make(self, task: Task) -> Environment:
        return Library()


AGENTS = [
    Agent(name="planner", prompt="Plan {question}"),
    Agent(name="info", prompt="Info on {question}"),
    Agent(name="search", prompt="Search {question} {context}"),
    Agent(name="critic", prompt="Judge {context}", parse=VerdictRule(tag="critic")),
    Agent(name="bold", prompt="Guess {question}"),
    Agent(name=f"careful {HOSTILE}", prompt="Answer {question} {context}"),
]


async def play(team: Team) -> str:
    await team.gather("planner", "info")
    for _ in team.rounds(3):
        found = await team.call("search")
        await team.use("look", where=found.text)
        team.approve(await team.call("critic"))
    best = await team.first(AGENTS[-1].name, "bold", accept=lambda reply: True)
    return "" if best is None else best.text


def says(prompt: str, _: int) -> str:
    n_found = prompt.count("[search")
    return f"<critic>{'approve' if n_found == 2 else 'reject'}</critic>" if prompt.startswith("Judge") else "there"


class Thinking(Speaker):
    """Takes as long as the kind of its prompt says."""

    def __init__(self) -> None:
        super().__init__(says, lambda n: SECONDS[self.prompts[n - 1].split()[0]])


async def make_run(folder: Path) -> Orchestra:
    team = Orchestra(AGENTS, play, performance=Performance(enable_early_termination=False), print_every=1)
    kit = EpisodeKit(policy=Thinking(), environments={"library": Libraries()}, agent=team)
    async with open_store(f"sqlite:///{folder / 'store.db'}") as store:
        await Runner(store, episodes=kit.episodes).step({"question": "the book"}, tag="library", seed=7)
    return team


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Orchestra]:
    folder = tmp_path_factory.mktemp("team")
    return folder, asyncio.run(make_run(folder))


def view(*arguments: str) -> str:
    done = CliRunner().invoke(cli, ["view", *arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_the_terminal_shows_whose_turn_it_was_and_a_table_of_the_agents(played: tuple[Path, Orchestra]):
    folder, team = played
    text = view(str(folder / "store.db"), "ro")
    assert "search · round 2 · " in text
    assert "critic · round 1 · verdict reject · " in text
    assert "bold · round 1 · not used · " in text
    assert "✂" not in text
    shown = text.partition("── where the time went")[2].partition("──")[0].splitlines()
    assert ", 3 wasted (3 of 10 tokens, " in shown[1]
    counts = {row.split()[0]: row.split()[1:3] for row in shown[3:] if row.strip()}
    assert (counts["search"], counts["critic"], counts["bold"]) == (["3", "1"], ["3", "1"], ["1", "1"])
    assert {agent.agent: str(agent.n_calls) for agent in team.stats().agents if agent.agent in counts} == {
        name: counts[name][0] for name in ("planner", "info", "search", "critic", "bold")
    }


def test_scripts_get_what_a_team_did_when(played: tuple[Path, Orchestra]):
    deeds = json.loads(view(str(played[0] / "store.db"), "ro", "--json"))["deeds"]
    calls = [deed for deed in deeds if "call" in deed]
    assert {deed["call"]["agent"] for deed in calls} == {agent.name for agent in AGENTS}
    planner = next(deed for deed in calls if deed["call"]["id"] == "planner.0.0")
    assert planner["span"]["model_seconds"] >= SECONDS["Plan"]


@pytest.mark.timeout(60)
def test_a_browser_shows_the_waterfall_in_light_and_in_dark(played: tuple[Path, Orchestra], tmp_path: Path):
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    view(str(played[0] / "store.db"), "--html", str(tmp_path / "page.html"))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1200, "height": 900})
        page.goto((tmp_path / "page.html").as_uri())
        page.locator("details.rollout > summary").click()
        picture = page.locator(".profile svg.waterfall")
        picture.wait_for(timeout=5_000)
        names = picture.locator("text.name").all_text_contents()
        assert (set(names[:2]), names[2:4], names[-1]) == ({"planner", "info"}, ["search", "critic"], "tools")
        assert picture.locator("g.deed").count() == 10 + len(page.locator("g.deed rect.tool").all())
        assert picture.locator("g.wasted").count() == 3
        box, first = picture.bounding_box(), picture.locator("g.deed").first.bounding_box()
        assert box is not None
        assert first is not None
        assert box["y"] < first["y"] < box["y"] + box["height"]
        assert first["width"] > 20
        colours = set()
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            fill = "element => getComputedStyle(element).fill"
            colours.add(picture.locator(".queue").first.evaluate(fill))
            assert picture.locator("g.wasted .model").first.evaluate(fill) != page.locator(
                "g.deed:not(.wasted) .model"
            ).first.evaluate(fill)
        assert len(colours) == 2
        assert page.locator(".figures tr").count() == 1 + len(AGENTS) + 2
        assert page.locator(".profile img").count() == 0
        browser.close()
