"""`outrider view`: tables, conversations and pages of real runs in real stores."""

import asyncio
import json
import re
import shutil
import struct
import subprocess
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from click.testing import CliRunner

from outrider import AttemptedRollout, RolloutConfig, Store, open_store
from outrider.cli import cli
from outrider.cli.run_config import read_config
from outrider.cli.run_job import run_job
from outrider.core.attempt import Failure
from outrider.core.chat import Image, Message, ToolCall, assistant, system, tool_result, user
from outrider.core.errors import Boundary, InvalidInput
from outrider.core.event import Event, EventKind
from outrider.core.task import Task
from outrider.core.turn import RESET, StepRecord, Transcript, TurnRecord, to_data
from outrider.evaluate.page import PageLimits, write_page
from outrider.evaluate.plan import Plan, enqueue, save_identity
from terminal import run_on_terminal

HOSTILE = (
    "</pre></script></details><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
    "<!-- \x1b]0;owned\x07\x1b[31m \u202e &amp; [bold]"
)
CALL = ToolCall(id="c1", name="calculator", arguments='{"expression": "6*7"}')


def picture() -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 2, 2, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(b"\0abcdef" * 2))
        + chunk(b"IEND", b"")
    )


class Episode:
    """Records an episode of a claimed rollout as agents do."""

    def __init__(self, claimed: AttemptedRollout) -> None:
        self._claimed = claimed
        self._transcript = Transcript()
        self._messages: list[Message] = []
        self._events: list[Event] = []

    def _record(self, kind: EventKind, name: str, data: Any) -> None:
        at = self._claimed.attempt.started_at + timedelta(milliseconds=len(self._events))
        self._events.append(Event(kind=kind, at=at, name=name, data=data))

    def step(self, *observation: Message, name: str = "", **facts: Any) -> None:
        self._record(EventKind.STEP, name, to_data(StepRecord(observation=observation, seconds=0.01, **facts)))
        self._transcript.extend(observation)
        self._messages.extend(observation)

    def turn(self, reply: Message) -> None:
        kept, added = self._transcript.ask(self._messages)
        record = TurnRecord(kept=kept, added=added, reply=reply, prompt_tokens=100, completion_tokens=20, seconds=1.5)
        self._record(EventKind.TURN, "", to_data(record))
        self._transcript.extend((reply,))
        self._messages.append(reply)

    async def end(self, store: Store, reward: float, output: str) -> None:
        self._record(EventKind.REWARD, "result", {"reward": reward, "output": output, "stop_reason": "terminated"})
        attempt = self._claimed.attempt
        await store.update_attempt(
            attempt.rollout_id, attempt.attempt_id, status="succeeded", reward=reward, events=self._events
        )

    async def fail(self, store: Store) -> None:
        failure = Failure(
            boundary=Boundary.POLICY, kind="Gone", message=HOSTILE, stage="policy.complete", traceback="tb"
        )
        attempt = self._claimed.attempt
        await store.update_attempt(
            attempt.rollout_id, attempt.attempt_id, status="failed", error=failure, events=self._events
        )


async def solve(store: Store, claimed: AttemptedRollout, *, text: str = "") -> None:
    episode = Episode(claimed)
    episode.step(system("Be brief." + text), user(claimed.input["question"]), name=RESET)
    episode.turn(assistant("Let me see." + text, (CALL,)))
    episode.step(tool_result(CALL, "42" + text, (Image(data=picture()),)), reward=0.25)
    if claimed.attempt.sequence_id == 1 and claimed.rollout_id.endswith("q1:0"):
        await episode.fail(store)
        return
    episode.turn(assistant("The answer is 42." + text))
    episode.step(terminated=True)
    await episode.end(store, float(claimed.rollout_id.endswith(":0")), "42" + text)


async def make_run(folder: Path, *, n_tasks: int = 3, text: str = "", n_left: int = 0) -> None:
    """A run of two samples a task; the first sample of q1 fails once, and the last `n_left` rollouts never ran."""
    folder.mkdir(parents=True)
    tasks = tuple(Task(task_id=f"q{n}", question=f"6 * {n}?{text}", answer="42") for n in range(n_tasks))
    plan = Plan(
        run=folder.name,
        tasks=tasks,
        samples_per_task=2,
        tag="math",
        settings={"model": "scripted"},
        config=RolloutConfig(max_attempts=2),
    )
    save_identity(folder / "plan.json", plan.identity())
    async with open_store(f"sqlite:///{folder / 'store.db'}") as store:
        await enqueue(store, plan)
        n_open = len(plan) - n_left
        while n_open and (claimed := await store.dequeue_many_rollouts(min(n_open, 50), worker_id="w1")):
            for rollout in claimed:
                await solve(store, rollout, text=text)
            open_now = await store.query_rollouts(status_in=["queuing", "requeuing"], limit=0)
            n_open = open_now.total - n_left


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs to look at, which no test changes."""
    folder = tmp_path_factory.mktemp("view")
    asyncio.run(make_run(folder / "results" / "demo"))
    asyncio.run(make_run(folder / "results" / "hostile", text=HOSTILE))
    asyncio.run(make_run(folder / "results" / "begun", n_left=4))
    asyncio.run(make_run(folder / "results" / "empty", n_tasks=0))
    return folder


@pytest.fixture(autouse=True)
def here(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(results)
    monkeypatch.delenv("OUTRIDER_STORE", raising=False)


def view(*arguments: str) -> str:
    done = CliRunner().invoke(cli, ["view", *arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def refusal(*arguments: str) -> str:
    """What is said of a mistake; both kinds of errors end the command with exit code 2."""
    done = CliRunner().invoke(cli, ["view", *arguments])
    assert done.exit_code == 2 or isinstance(done.exception, InvalidInput), done.output
    return done.output if done.exit_code == 2 else str(done.exception)


def test_a_run_is_a_table_of_its_rollouts():
    heading, *rows = view("demo").splitlines()
    assert heading.split() == ["rollout", "task", "status", "reward", "turns", "tokens", "time", "answer"]
    assert [row.split()[0] for row in rows] == [f"demo/q{n}:{sample}" for n in range(3) for sample in range(2)]
    assert rows[0].split()[1:6] == ["q0", "succeeded", "1", "2", "240"]
    assert rows[0].split()[-1] == "42"
    assert len(view("results/demo", "--limit", "2").splitlines()) == 4
    assert "… 4 more; --limit 6 shows all" in view("demo", "--limit", "2")


def test_the_command_prints_to_a_pipe_and_ends_with_its_exit_code():
    command = [sys.executable, "-m", "outrider", "view", "demo"]
    done = subprocess.run([*command, "q0:0"], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == view("demo", "q0:0")
    done = subprocess.run([*command, "nobody"], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("outrider: no rollout of this run is called 'nobody'")


def test_scripts_get_json_of_all_rollouts_and_of_one():
    rows = json.loads(view("demo", "--json"))
    assert [(row["rollout_id"], row["reward"], row["n_attempts"]) for row in rows[2:4]] == [
        ("demo/q1:0", 1.0, 2),
        ("demo/q1:1", 0.0, 1),
    ]
    one = json.loads(view("demo", "q1:0", "--json"))
    assert one["result"]["rollout_id"] == "demo/q1:0"
    assert [attempt["status"] for attempt in one["attempts"]] == ["failed", "succeeded"]
    assert [entry["turn"] for entry in one["entries"]] == [0, 0, 1, 1, 1, 2, 2, 2]


def test_a_rollout_is_a_conversation():
    text = view("demo", "demo/q0:0")
    parts = [
        "demo/q0:0  succeeded  reward 1",
        "2 turns · 200 → 40 tokens",
        "── opening",
        "system",
        "  Be brief.",
        "  6 * 0?",
        "── turn 1 1.5 s · 100 → 20 tokens · stop",
        "  Let me see.",
        '  → calculator {"expression":"6*7"}',
        "tool calculator  10 ms",
        "  42",
        "[picture: image/png,",
        "step reward 0.25",
        "── turn 2",
        "The answer is 42.",
        "step terminated",
        "── end terminated",
        "expected",
    ]
    places = [text.index(part) for part in parts]
    assert places == sorted(places)


def test_each_attempt_can_be_seen_with_its_failure():
    latest = view("demo", "q1:0")
    assert "attempt 2 of 2" in latest
    assert "attempt 1 failed: policy: Gone in policy.complete" in latest
    first = view("demo", "q1:0", "--attempt", "1")
    assert "attempt 1 of 2" in first
    assert "failed: policy: Gone in policy.complete" in first
    assert "── turn 2" not in first


def test_nothing_that_was_said_steers_the_terminal():
    for text in (view("hostile"), view("hostile", "q0:0"), view("hostile", "q1:0")):
        assert not set(text) & {"\x1b", "\x07", "\u202e", "\r"}
    assert r"\x1b]0;owned\x07\x1b[31m \u202e &amp; [bold]" in view("hostile", "q0:0")


def test_rollouts_are_found_by_how_their_ids_begin():
    assert "demo/q2:1" in view("demo", "q2:1").splitlines()[0]
    assert "demo/q2:1" in view("demo", "demo/q2:1").splitlines()[0]
    assert "demo/q2:1" in view("results/demo/store.db", "q2:1").splitlines()[0]
    assert "demo/q2:1" in view("sqlite:///results/demo/store.db", "q2:1").splitlines()[0]
    assert "demo/q2:1" in view("demo", "q2:1", "--store", "sqlite:///results/demo/store.db").splitlines()[0]


def test_rollouts_that_have_not_ended_are_shown_as_far_as_they_are():
    rows = view("begun").splitlines()[1:]
    assert [row.split()[2] for row in rows] == ["succeeded"] * 2 + ["queuing"] * 4
    assert view("begun", "--status", "queuing").splitlines()[1].startswith("begun/q1:0")
    assert "no rollout of begun is failed" in view("begun", "--status", "failed")
    assert "begun/q2:1  queuing  no reward" in view("begun", "q2:1")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["demmo"], "there is no run 'demmo' here or in results; there are 4 runs, the nearest results/demo"),
        (["nowhere/at/all"], "there is no run 'nowhere/at/all'"),
        (["results"], "results is not a run: it holds no store.db; there are"),
        (["results/demo/plan.json"], "is not an Outrider store"),
        (["empty"], "empty holds no rollouts"),
        (["empty", "q1"], "empty holds no rollouts"),
        (["empty", "--html", "x.html"], "empty holds no rollouts"),
        (["demo", "q0"], "2 rollouts begin with 'q0': demo/q0:0, demo/q0:1"),
        (["demo", "qq:0"], "no rollout of this run is called 'qq:0'; the nearest are demo/q"),
        (["demo", "q0:0", "--attempt", "7"], "demo/q0:0 has 1 attempts; there is no attempt 7"),
        (["demo", "--attempt", "1"], "--attempt goes with one ROLLOUT"),
        (["demo", "--json", "--html", "x.html"], "give one of --html, --artifacts"),
        (["demo", "--html", "nowhere/x.html"], "cannot write nowhere/x.html"),
        (["demo", "--store", "sqlite:///nowhere.db"], "there is no store in nowhere.db"),
        (["demmo", "--store", "sqlite:///results/demo/store.db"], "demmo holds no rollouts; this store holds demo"),
        (["mysql://x"], "is not a store URL"),
        (["demo", "--status", "lost"], "'lost' is not one of"),
    ],
)
def test_a_mistake_is_explained(arguments: list[str], says: str):
    assert says in " ".join(refusal(*arguments).split())
    assert not Path("x.html").exists()


def test_long_texts_are_cut_unless_all_is_asked_for(tmp_path: Path):
    asyncio.run(make_run(tmp_path / "long", n_tasks=1, text="x" * 5_000))
    assert "more characters; --full shows all" in view(str(tmp_path / "long"), "q0:0")
    assert "more characters" not in view(str(tmp_path / "long"), "q0:0", "--full")


def test_a_terminal_gets_colours_and_a_framed_table():
    code, text = run_on_terminal([sys.executable, "-m", "outrider", "view", "demo"], columns=120)
    assert code == 0
    assert "\x1b[32msucceeded" in text
    assert text.startswith("┏━")


def test_a_page_holds_everything_and_loads_nothing(tmp_path: Path):
    page = tmp_path / "page.html"
    assert "is ready to open" in view("demo", "--html", str(page))
    html = page.read_text()
    assert html.count('<details class="rollout') == 6
    assert "data:image/png;base64," in html
    assert "model <b>scripted</b>" in html
    for outside in ("http://", "https://", "@import", "url("):
        assert outside not in html.replace('xmlns="http://www.w3.org/2000/svg"', "")
    view("demo", "q2:0", "--html", str(page))
    assert page.read_text().count('<details class="rollout') == 1


async def test_what_does_not_fit_into_a_page_goes_on_in_further_ones_and_nothing_is_left_out(tmp_path: Path):
    small = tmp_path / "small.html"
    async with open_store("sqlite:///results/demo/store.db", create=False) as store:
        whole = await write_page(tmp_path / "whole.html", store, title="demo")
        for n in (1, 1, 5):  # of a run that had become longer, and was written here before
            limits = PageLimits(max_bytes=12_000, max_rollouts=n)
            said = await write_page(small, store, title="demo", limits=limits)
    assert whole == ""
    pages = [small, *sorted(tmp_path.glob("small.part*.html"))]
    assert 1 < len(pages) < 6
    assert f"It goes on in {len(pages) - 1} more page" in said
    texts = [page.read_text() for page in pages]
    assert sum(text.count('<details class="rollout') for text in texts) == 6
    assert all(text.count('<details class="rollout') <= 5 for text in texts)
    assert "Left out here" not in "".join(texts)
    assert "mean reward of 6 scored" in texts[0]
    for name in (page.name for page in pages[1:]):
        assert f'href="{name}"' in texts[0]


async def test_a_conversation_that_fits_into_no_page_has_one_to_itself_with_its_middle_cut_and_a_link(tmp_path: Path):
    async with open_store("memory://") as store:
        for number, n_turns in enumerate((1, 60, 1)):
            await store.enqueue_rollout({"question": "How long?"}, rollout_id=f"long/q{number}:0")
            claimed = await store.dequeue_rollout(worker_id="w")
            assert claimed is not None
            episode = Episode(claimed)
            episode.step(user("How long?"), name=RESET)
            for turn in range(n_turns):
                episode.turn(assistant(f"[turn {turn}] " + "x" * 1_000))
            await episode.end(store, 1.0, "done")
        said = await write_page(tmp_path / "page.html", store, title="long", limits=PageLimits(max_bytes=20_000))
    assert "Left out to keep this page small: 1 middles of long conversations." in said
    first, own, last = (tmp_path.joinpath(f"page{part}.html").read_text() for part in ("", ".part2", ".part3"))
    for text in (first, own, last):
        assert text.count('<details class="rollout') == 1
    (row,) = re.findall(r"<details class=.rollout.*?</script></details>", own, re.DOTALL)
    assert 15_000 < len(row) < 22_000
    before, after = re.split(
        r'<p class="note">Left out here: \d+ parts of 1\d\d; see <code>outrider view RUN long/q1:0</code></p>', row
    )
    assert "[turn 0]" in before
    assert "[turn 59]" in after
    assert "[turn 30]" not in row
    assert 'Cut in the middle: <a href="page.part2.html#long%2Fq1%3A0">q1:0</a>.' in first


@pytest.mark.timeout(120)
def test_a_search_on_the_first_page_is_one_over_all_pages(tmp_path: Path):
    from playwright.sync_api import sync_playwright

    async def write() -> None:
        async with open_store("sqlite:///results/demo/store.db", create=False) as store:
            await write_page(tmp_path / "page.html", store, title="demo", limits=PageLimits(max_rollouts=4))

    asyncio.run(write())
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page()
        page.goto((tmp_path / "page.html").as_uri())
        page.locator("#count", has_text="4 of 4").wait_for(timeout=5_000)
        page.fill("#search", "q2 calculator")
        page.locator("#count", has_text="2 of 6 in all pages").wait_for(timeout=30_000)
        assert page.locator("details.rollout:not([hidden])").count() == 0
        page.fill("#search", "calculator")
        page.locator("#count", has_text="6 of 6 in all pages").wait_for(timeout=30_000)
        page.click("button[data-show=good]")
        page.locator("#count", has_text="3 of 6 in all pages").wait_for(timeout=30_000)
        (hit,) = page.locator("#elsewhere a.hit").all()
        assert hit.locator("span").nth(1).inner_text() == "q2:0"
        hit.click()
        page.locator("details.rollout[open] .body", has_text="The answer is 42").wait_for(timeout=5_000)
        assert page.url.endswith("page.part2.html#demo%2Fq2%3A0")
        page.fill("#search", "q1 calculator")
        page.locator("#count", has_text="0 of 2").wait_for(timeout=5_000)
        page.click("a[data-page]")
        page.locator("#count", has_text="2 of 6 in all pages").wait_for(timeout=30_000)
        assert page.input_value("#search") == "q1 calculator"
        browser.close()


COUNT_FRAMES = """
window.loaded = []; window.most = 0;
new MutationObserver((changes) => {
  window.most = Math.max(window.most, document.querySelectorAll("iframe").length);
  for (const { addedNodes } of changes)
    for (const node of addedNodes) if (node.tagName === "IFRAME") window.loaded.push(node.getAttribute("src"));
}).observe(document.body, { childList: true });
const progress = document.getElementById("count");
window.progress = [];
new MutationObserver(() => window.progress.push(progress.textContent)).observe(progress, { childList: true });
"""


@pytest.mark.timeout(120)
def test_a_search_loads_further_pages_one_after_another_and_names_those_that_it_cannot_read(tmp_path: Path):
    from playwright.sync_api import sync_playwright

    given = {"mode": "FrozenLake", "limit": 21, "model": "builtin:solver", "name": "ten", "output_dir": str(tmp_path)}
    limits = PageLimits(max_rollouts=2)
    outcome = asyncio.run(run_job(read_config(None, given), resume=None, as_json=False, page_limits=limits))
    first = Path(outcome.folder, "page.html")
    parts = [f"page.part{n}.html" for n in range(2, 12)]
    assert {page.name for page in first.parent.glob("page.part*")} == set(parts)
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(first.as_uri())
        page.evaluate(COUNT_FRAMES)
        page.fill("#search", "FrozenLake")
        page.locator("#count", has_text="21 of 21 in all pages").wait_for(timeout=30_000)
        assert (page.evaluate("loaded"), page.evaluate("most")) == (parts, 1)
        assert page.locator("iframe").count() == 0
        shown = page.evaluate("progress")
        assert "4 of 4 so far, searching page 3 of 11 …" in shown
        assert page.locator("a.hit").count() == 19
        page.fill("#search", "FrozenL")
        page.fill("#search", "nothing like it")
        page.locator("#count", has_text="0 of 21 in all pages").wait_for(timeout=30_000)
        assert (page.evaluate("most"), page.locator("a.hit").count()) == (1, 0)
        (first.parent / parts[3]).unlink()
        page.fill("#search", "FrozenLake")
        page.locator("#count", has_text=f"19 of 19 in all pages, but {parts[3]} cannot be read").wait_for(
            timeout=30_000
        )
        page.fill("#search", "")
        page.locator("#count", has_text="2 of 2").wait_for(timeout=5_000)
        assert page.locator("iframe").count() == 0
        browser.close()


SPY = """<iframe src="{page}"></iframe><p>nothing</p><script>
addEventListener("message", ({{ data, source }}) => {{
  if (data.found) document.querySelector("p").textContent = "heard";
  source.postMessage({{ search: "", shown: "" }}, "*");
}});
document.querySelector("iframe").addEventListener("load", ({{ target }}) => {{
  target.contentWindow.postMessage({{ search: "", shown: "" }}, "*");
  setTimeout(() => document.title = "waited", 500);
}});
</script>"""


@pytest.mark.timeout(120)
def test_a_run_that_is_too_long_for_one_page_has_several_that_are_searched_as_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    from playwright.sync_api import sync_playwright

    given = {"mode": "FrozenLake", "limit": 10, "model": "builtin:solver", "name": "long", "output_dir": str(tmp_path)}
    limits = PageLimits(max_rollouts=4)
    outcome = asyncio.run(run_job(read_config(None, given), resume=None, as_json=False, page_limits=limits))
    folder = Path(outcome.folder)
    assert "page.html takes a second for about a thousand rollouts" in capsys.readouterr().out
    assert {page.name for page in folder.glob("page*")} == {"page.html", "page.part2.html", "page.part3.html"}
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with served(folder) as port, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(f"http://127.0.0.1:{port}/page.html")
        page.fill("#search", "FrozenLake")
        page.locator("#count", has_text="10 of 10 in all pages").wait_for(timeout=30_000)
        assert page.locator("a.hit").count() == 6

        for host, heard in (("127.0.0.1", "heard"), ("localhost", "nothing")):
            (folder / "spy.html").write_text(SPY.format(page=f"http://127.0.0.1:{port}/page.part2.html"))
            page.goto(f"http://{host}:{port}/spy.html")
            page.wait_for_function("document.title == 'waited'", timeout=5_000)
            assert page.inner_text("p") == heard, "a page of another origin is told nothing"
        browser.close()


@contextmanager
def served(folder: Path) -> Iterator[int]:
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.timeout(60)
def test_a_browser_opens_the_page_searches_it_and_runs_nothing_that_was_said(tmp_path: Path):
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    page_file = tmp_path / "page.html"
    view("hostile", "--html", str(page_file))
    asked: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.goto(f"{page_file.as_uri()}#hostile%2Fq0%3A0")
        assert page.locator("details.rollout[open]").count() == 1
        for number in range(6):
            if page.locator("details.rollout").nth(number).get_attribute("open") is None:
                page.locator("details.rollout > summary").nth(number).click()
        bodies = page.locator("details.rollout .body")
        bodies.nth(5).wait_for(timeout=5_000)
        assert bodies.count() == 6
        assert "</pre></script></details><script>document.title='owned'</script>" in bodies.first.inner_text()
        assert (
            page.locator("#rollouts .body img").count() == 6 == page.locator("#rollouts .body img[alt=picture]").count()
        )
        assert page.locator(".body script").count() == 0
        page.fill("#search", "6 * 1?</pre> calculator")
        page.locator("#count", has_text="2 of 6").wait_for(timeout=5_000)
        page.fill("#search", "")
        page.click("button[data-show=bad]")
        page.locator("#count", has_text="3 of 6").wait_for(timeout=5_000)
        page.select_option("#order", "reward")
        assert page.locator("details.rollout").first.get_attribute("data-reward") == "1.0"
        assert page.title() == "hostile"
        browser.close()
    assert [url.partition("#")[0] for url in asked if not url.startswith("data:")] == [page_file.as_uri()]
