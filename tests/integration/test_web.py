"""Web tasks on a real Chromium: the bundled tasks, every tool, and how an episode is scored."""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from outrider.core.chat import Message, ToolCall, ToolSpec, assistant
from outrider.core.errors import EnvError, InvalidInput, ScoreError
from outrider.core.task import Task
from outrider.env.protocol import Score
from outrider.env.registry import bundled_tasks
from outrider.env.scoring import ScorerConfig, scorer_of
from outrider.env.web import WebConfig, WebEnvironments
from outrider.env.web.ending import EndingScorer
from outrider.env.web.environment import WebEnvironment
from outrider.env.web.task import PageCheck
from outrider.policy.scripted.web import WebScript
from processes import output_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

PAGES = {
    "index.html": """<title>Lab</title><h1>Lab</h1>
        <a href="other.html">Other</a> <a href="other.html" target="_blank">New tab</a> <a href="data.zip">Zip</a>
        <button onclick="said.textContent = confirm('Sure?') ? 'yes' : 'no'">Ask</button>
        <button onclick="said.textContent = prompt('Name?', 'Jo')">Name</button>
        <button disabled>Off</button> <button id="gone" onclick="this.remove()">Vanish</button>
        <div style="position: relative; width: 9em"><button>Under</button>
        <div style="position: absolute; inset: 0; background: #eee"></div></div>
        <label>City <input></label> <label>Day <input type="date"></label> <label><input type="checkbox"> Agree</label>
        <label>Size <select><option value="s">Small<option value="l">Large</select></label>
        <p id="said"></p><iframe src="frame.html" title="Inner"></iframe>
        <div style="height: 3000px"></div><p>The end</p>""",
    "other.html": "<title>Other</title><h1>Other</h1><p>Another page</p>",
    "frame.html": "<button onclick=\"parent.said.textContent = 'from the frame'\">Inside</button>",
    "long.html": "<title>Long</title>" + "".join(f"<p>line number {i}</p>" for i in range(2000)),
    "slow.html": """<title>Slow</title><button onclick="load()">Load</button><script>
        const load = () => fetch('other.html').then(reply => reply.text()).then(() => document.body.append('fetched'))
        </script>""",
    "data.zip": "PK",
}


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pages")
    (folder / "lab").mkdir()
    for name, content in PAGES.items():
        (folder / "lab" / name).write_text(content)
    return folder


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bundled() -> AsyncIterator[WebEnvironments]:
    environments = WebEnvironments(WebConfig(action_seconds=60))
    yield environments
    await environments.close()


def on_the_same_browser(environments: WebEnvironments, config: WebConfig) -> WebEnvironments:
    """What differs in its configuration need not differ in its Chromium, which takes long to start."""
    others = WebEnvironments(config)
    others._browser = environments._shared_browser()
    return others


@pytest.fixture(scope="module")
def lab(bundled: WebEnvironments, pages: Path) -> WebEnvironments:
    return on_the_same_browser(bundled, WebConfig(pages=str(pages), action_seconds=60, max_text_chars=500))


class Visitor:
    """Calls tools of an episode and finds refs by role and name."""

    def __init__(self, env: WebEnvironment) -> None:
        self.env = env

    async def answer(self, tool: str, **arguments: Any) -> Message:
        call = ToolCall(id="1", name=tool, arguments=json.dumps(arguments))
        (message,) = (await self.env.step(assistant(tool_calls=(call,)))).observation
        return message

    async def call(self, tool: str, **arguments: Any) -> str:
        return (await self.answer(tool, **arguments)).content

    async def ref(self, element: str) -> str:
        """The ref of the element whose line begins so: `button "Ask"`."""
        start = 0
        while True:
            tree = await self.call("read", start=start)
            for line in tree.splitlines():
                if f"] {element}" in line:
                    return line.partition("[")[2].partition("]")[0]
            start = int(tree.rpartition("start=")[2].rstrip(")"))

    async def click(self, element: str) -> str:
        return await self.call("click", ref=await self.ref(element))


@asynccontextmanager
async def visiting(environments: WebEnvironments, **task: Any) -> AsyncIterator[Visitor]:
    env = environments.make(
        Task(**{"task_id": "t", "question": "?", "answer": "a", "metadata": {"site": "lab"}} | task)
    )
    try:
        await env.reset()
        yield Visitor(env)
    finally:
        await env.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def window(lab: WebEnvironments) -> AsyncIterator[Visitor]:
    """One episode for all that can be done in it."""
    async with visiting(lab) as visitor:
        yield visitor


@pytest_asyncio.fixture(loop_scope="module")
async def visitor(window: Visitor) -> Visitor:
    """On the first page, as if it had just been opened."""
    await window.call("open", url="http://lab.test/")
    return window


Move = Callable[[Sequence[Message], Sequence[ToolSpec]], Message]

DIFFERING = ("shop-article", "wiki-ferry", "wiki-page", "permit-notifications")
"""Bundled tasks of few steps that differ in what is done in them and in how it is checked, from each site."""


async def play(environments: WebEnvironments, task: Task, move: Move) -> Score:
    env = environments.make(task)
    try:
        messages = list(await env.reset(seed=0))
        for _ in range(40):
            messages.append(move(messages, env.tools))
            step = await env.step(messages[-1])
            messages.extend(step.observation)
            if step.terminated:
                break
        score = await env.score()
        assert score is not None
        return score
    finally:
        await env.close()


@pytest.mark.parametrize("which", ["differing", pytest.param("all", marks=pytest.mark.soak)])
async def test_the_solver_solves_every_bundled_task_from_what_the_tools_return(bundled: WebEnvironments, which: str):
    everything = bundled_tasks("web")
    tasks = [task for task in everything if which == "all" or task.task_id in DIFFERING]
    scores = await asyncio.gather(*(play(bundled, task, WebScript().solve) for task in tasks))

    assert len(everything) == 12
    assert len(tasks) == (12 if which == "all" else len(DIFFERING))
    assert {task.task_id: score for task, score in zip(tasks, scores, strict=True) if score.reward != 1.0} == {}
    assert all(score.metrics["tool_errors"] == 0 for score in scores)


async def test_guessing_gets_nowhere(bundled: WebEnvironments):
    def guesser(task: Task) -> Move:
        rng = random.Random(task.task_id)
        return lambda messages, tools: WebScript().guess(messages, tools, rng)

    scores = await asyncio.gather(*(play(bundled, task, guesser(task)) for task in bundled_tasks("web")[::6]))

    assert sum(score.reward for score in scores) <= 1


async def test_an_episode_opens_with_the_question_and_the_first_page(lab: WebEnvironments):
    env = lab.make(Task(task_id="t", question="Which colour?", answer="red", metadata={"site": "lab"}))
    try:
        rules, question = await env.reset()
    finally:
        await env.close()

    assert "ref" in rules.content
    assert question.content.startswith("Which colour?\n\n")
    assert 'http://lab.test/ "Lab"' in question.content


async def test_clicking_tells_where_it_led_and_back_leads_back(visitor: Visitor):
    assert 'page: http://lab.test/other.html "Other"\nthis is a new page' in await visitor.click('link "Other"')
    assert await visitor.call("read", mode="text") == "Other\n\nAnother page"
    assert 'http://lab.test/ "Lab"' in await visitor.call("back")


async def test_typing_choosing_and_ticking_tell_what_is_new(visitor: Visitor):
    assert "City = Oslo" in await visitor.call("type", ref=await visitor.ref('textbox "City"'), text="Oslo")
    size = await visitor.ref('combobox "Size"')
    assert "= l" in await visitor.call("select", ref=size, value="Large")
    assert "it has 'Small', 'Large'" in await visitor.call("select", ref=size, value="Huge")
    assert "Agree = ticked" in await visitor.click('checkbox "Agree"')
    day = await visitor.ref('textbox "Day"')
    assert "nothing on it has changed" in await visitor.call("type", ref=day, text="soon")
    assert "2024-02-29" in await visitor.call("type", ref=day, text="2024-02-29")
    assert "not a list" in await visitor.call("select", ref=day, value="x")
    assert "[checked]" in await visitor.call("read", start=500) + await visitor.call("read")


async def test_what_an_action_fetches_is_waited_for(visitor: Visitor):
    await visitor.call("open", url="http://lab.test/slow.html")
    assert "fetched" in await visitor.click("button")


async def test_dialogs_are_answered_and_reported(visitor: Visitor):
    asked = await visitor.click('button "Ask"')
    assert "(confirm): 'Sure?'" in asked
    assert "  yes" in asked
    named = await visitor.click('button "Name"')
    assert "(prompt): 'Name?'" in named
    assert "  Jo" in named


async def test_a_new_tab_is_followed_and_closed_by_going_back(visitor: Visitor):
    followed = await visitor.click('link "New tab"')
    assert "http://lab.test/other.html" in followed
    assert "note: the page opened a new tab" in followed
    assert 'http://lab.test/ "Lab"' in await visitor.call("back")


async def test_downloads_are_refused(visitor: Visitor):
    assert "note: a download (data.zip) was refused" in await visitor.click('link "Zip"')
    opened = await visitor.call("open", url="http://lab.test/data.zip")
    assert opened.startswith("error: that is a download")


async def test_an_element_that_cannot_be_used_says_why(visitor: Visitor):
    off, under = await visitor.ref('button "Off"'), await visitor.ref('button "Under"')
    patience, visitor.env._actions._milliseconds = visitor.env._actions._milliseconds, 500
    try:
        assert await visitor.call("click", ref=off) == "error: it is disabled"
        assert await visitor.call("click", ref=under) == "error: something else on the page covers it"
    finally:
        visitor.env._actions._milliseconds = patience


async def test_a_stale_ref_is_refused(visitor: Visitor):
    ref = await visitor.ref('button "Vanish"')
    assert "clicked" in await visitor.call("click", ref=ref)
    assert "read the tree again" in await visitor.call("click", ref=ref)
    link = await visitor.ref('link "Other"')
    await visitor.call("click", ref=link)
    assert "read the tree again" in await visitor.call("click", ref=link)
    assert "read the tree again" in await visitor.call("click", ref="f77e3")
    assert "the arguments of click cannot be used" in await visitor.call("click", ref="button")


async def test_frames_are_part_of_the_tree(visitor: Visitor):
    assert "from the frame" in await visitor.click('button "Inside"')


async def test_scrolling_tells_how_far_there_is_to_go(visitor: Visitor):
    assert "scrolled: 576 pixels lie above" in await visitor.call("scroll", direction="down")
    assert ", 0 below" in await visitor.call("scroll", direction="bottom")
    assert "scrolled: 0 pixels lie above" in await visitor.call("scroll", direction="top")


async def test_a_screenshot_is_a_picture_with_words_for_those_who_cannot_see(visitor: Visitor):
    answer = await visitor.answer("screenshot")

    assert answer.images[0].data.startswith(b"\x89PNG")
    assert "1280 by 720 pixels" in answer.content


async def test_a_long_page_is_read_in_pieces(visitor: Visitor):
    await visitor.call("open", url="http://lab.test/long.html")
    first = await visitor.call("read", mode="text")
    start = int(first.rpartition("start=")[2].rstrip(")"))
    second = await visitor.call("read", mode="text", start=start)
    tree = await visitor.call("read")

    assert len(first) < 600
    assert "line number 0\n" in first
    whole = [line for piece in (first, second) for line in piece.splitlines() if line.startswith("line")]
    assert whole == [f"line number {i}" for i in range(len(whole))]
    assert len(tree) < 600
    assert "read on with start=" in tree


async def test_addresses_that_may_not_be_opened_are_refused(lab: WebEnvironments):
    no_web = ["file:///etc/passwd", "chrome://settings", "view-source:http://lab.test/", "javascript:alert(1)"]
    no_web += ["data:text/html,<h1>x", "about:blank", "lab.test", "", "http://", "//lab.test/", "ftp://lab.test/"]
    elsewhere = ["http://lab.test:81/", "https://lab.test/", "http://shop.test/", "http://127.0.0.1/", "http://evil/"]
    elsewhere += ["http://lab.test@evil.example/", "http://lab.test.evil.example/", "http://evil.example#lab.test/"]
    async with visiting(lab) as visitor:
        for url in no_web:
            assert "begins with http:// or https://" in await visitor.call("open", url=url), url
        for url in elsewhere:
            assert (await visitor.call("open", url=url)).endswith("only: lab.test"), url
        for url in ("http://[::1", "http://lab.test:99999/"):
            assert "is not an address" in await visitor.call("open", url=url), url
        assert "cannot be used" in await visitor.call("open", url="http://lab.test/" + "x" * 5000)


async def test_a_missing_page_and_a_path_out_of_the_site_are_not_found(visitor: Visitor):
    for path in ("nothing.html", "..%2f..%2fetc/passwd", "%2e%2e/%2e%2e/etc/passwd", "%00", "x" * 3000):
        assert "opened (HTTP 404)" in await visitor.call("open", url=f"http://lab.test/{path}")


async def test_every_episode_starts_with_empty_storage(bundled: WebEnvironments):
    task = {"metadata": {"site": "shop", "check": {"js": "localStorage.length === 0 && document.cookie === ''"}}}
    async with visiting(bundled, **task) as one, visiting(bundled, **task) as other:
        await one.call("open", url="http://shop.test/product.html?id=trowel")
        assert "Added 1" in await one.click('button "Add to cart"')
        await other.call("open", url="http://shop.test/cart.html")
        assert (await _score(one, "a")).reward == 0
        assert (await _score(other, "a")).reward == 1
    async with visiting(bundled, **task) as later:
        assert (await _score(later, "a")).reward == 1


async def _score(visitor: Visitor, answer: str) -> Score:
    assert (await visitor.env.step(assistant(answer))).terminated
    score = await visitor.env.score()
    assert score is not None
    return score


@pytest.mark.parametrize(
    ("check", "holds"),
    [
        (PageCheck(url="http://lab.test/*"), True),
        (PageCheck(url="http://lab.test/other.html"), False),
        (PageCheck(text="The end"), True),
        (PageCheck(text="The beginning"), False),
        (PageCheck(js="document.title === 'Lab'"), True),
        (PageCheck(js="document.querySelector('#none').value === 'x'"), False),
        (PageCheck(js="JSON.parse('no JSON')"), False),
        (PageCheck(js="fetch('/other.html').then(reply => reply.ok)"), True),
        (PageCheck(url="http://lab.test/", js="false"), False),
    ],
)
async def test_the_last_page_is_checked_as_the_task_says(visitor: Visitor, check: PageCheck, holds: bool):
    score = await scored(visitor, check, "done", expected=None)

    assert score.reward == score.metrics["page_check"] == float(holds)
    assert bool(score.explanation) is not holds


async def scored(visitor: Visitor, check: PageCheck, answer: str, *, expected: str | None) -> Score:
    """What the episode would be worth if it ended now."""
    scorer = EndingScorer(scorer_of("exact_match", ScorerConfig()), check, visitor.env._actions)
    return await scorer.score(answer, Task(task_id="t", answer=expected))


async def test_answer_and_page_must_both_be_right(visitor: Visitor):
    here, elsewhere = PageCheck(url="http://lab.test/"), PageCheck(url="http://lab.test/x")

    assert (await scored(visitor, here, "a", expected="a")).reward == 1
    assert (await scored(visitor, here, "b", expected="a")).reward == 0
    assert (await scored(visitor, elsewhere, "a", expected="a")).reward == 0


async def test_a_check_that_never_ends_does_not_hold(visitor: Visitor):
    visitor.env._actions.window._seconds = 0.5
    try:
        score = await scored(visitor, PageCheck(js="new Promise(() => {})"), "done", expected=None)
    finally:
        visitor.env._actions.window._seconds = 60

    assert score.reward == 0
    assert "cannot be checked" in score.explanation


async def test_a_check_that_is_no_javascript_is_a_failure_of_scoring(visitor: Visitor):
    with pytest.raises(ScoreError, match=r"'t'.*check\.js"):
        await scored(visitor, PageCheck(js="this is not"), "a", expected="a")


async def test_a_task_without_pages_starts_with_an_empty_window(lab: WebEnvironments):
    async with visiting(lab, metadata={}) as visitor:
        assert await visitor.call("read", mode="text") == "(the page is empty)"
        assert await visitor.call("back") == "error: there is no page to go back to"
        assert "only: none" in await visitor.call("open", url="http://lab.test/")


async def test_a_first_page_that_cannot_be_opened_is_a_failure_of_the_environment(lab: WebEnvironments):
    env = lab.make(Task(task_id="t", answer="a", metadata={"site": "lab", "url": "http://lab.test/data.zip"}))
    try:
        with pytest.raises(EnvError, match="first page of the task"):
            await env.reset()
    finally:
        await env.close()


@pytest.mark.parametrize("site", ["no-such", "../lab", "LAB", "", "a/b"])
async def test_a_site_that_is_not_there_is_named(lab: WebEnvironments, site: str):
    with pytest.raises(InvalidInput, match="site"):
        lab.make(Task(task_id="t", answer="a", metadata={"site": site}))


async def test_what_is_missing_is_said_before_a_run(
    bundled: WebEnvironments, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    await bundled.check()
    for config, message in (
        (WebConfig(executable="no-such-browser"), "no-such-browser"),
        (WebConfig(pages=str(tmp_path / "none")), "is not a folder"),
        (WebConfig(headless=False), "display"),
    ):
        monkeypatch.delenv("DISPLAY", raising=False)
        monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
        with pytest.raises(InvalidInput, match=message):
            await WebEnvironments(config).check()
    with pytest.raises(InvalidInput, match="http://x"):
        WebEnvironments(WebConfig(allowed_hosts=("http://x",)))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PLAYWRIGHT_BROWSERS_PATH", str(tmp_path))
    monkeypatch.delenv("OUTRIDER_CHROMIUM", raising=False)
    with pytest.raises(InvalidInput, match="apt install chromium"):
        await WebEnvironments(WebConfig()).check()
    monkeypatch.setenv("OUTRIDER_CHROMIUM", "gone")
    with pytest.raises(InvalidInput, match="OUTRIDER_CHROMIUM 'gone'"):
        await WebEnvironments(WebConfig()).check()


async def test_playwright_is_not_imported_before_it_is_needed():
    source = "import sys, outrider.env.web; print([name for name in sys.modules if name.startswith('playwright')])"
    assert output_of(source) == "[]"


async def test_a_program_that_is_no_browser_is_a_failure_of_the_environment():
    environments = WebEnvironments(WebConfig(executable="true"))
    env = environments.make(Task(task_id="t", answer="a"))
    with pytest.raises(EnvError, match="true cannot be started"):
        await env.reset()
    await env.close()
    await environments.close()
