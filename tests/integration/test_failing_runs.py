"""Runs in which things fail, as a stranger meets them: exit codes, causes, and runs that stop by themselves."""

import asyncio
import json
import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest

from outrider.cli.tally import new_tally
from outrider.core.attempt import Failure
from outrider.core.causes import N_FIRST
from outrider.core.chat import assistant
from outrider.core.clock import SystemClock
from outrider.core.errors import Boundary
from outrider.core.rollout import TASK_KEY, Rollout
from outrider.evaluate.plan import RUN_KEY
from outrider.evaluate.plot import seconds_text
from outrider.policy import Completion, Usage
from outrider.store import open_store
from outrider.testing import ModelServer
from outrider.testing.model_server import Manner
from outrider.testing.model_server_faults import FaultPlan, status
from processes import OUTRIDER
from terminal import run_on_terminal
from warm_outrider import run_warm

OWN = """
from outrider import Result

class Counts:
    '''Says how many letters a word has; `size` is how long the game is.'''
    def __init__(self, size=3):
        self.size = size
    def reset(self, seed=None):
        if not isinstance(self.size, int):
            raise ValueError(f"size is {self.size!r}; give a number")
        return "how many letters has a word?"
    def step(self, action):
        return "", 0.0, True, False, {}

class Strict:
    def __init__(self, error="KeyError", where="reset"):
        self.error, self.where = error, where
        self.check("make")
    def check(self, where):
        if self.where == where:
            raise getattr(__import__("builtins"), self.error)("no such level")
    def reset(self, seed=None):
        self.check("reset")
        return "say yes"
    def step(self, action):
        return "", 1.0, True, False, {}

async def asks_itself(task, ctx):
    import os
    from openai import AsyncOpenAI
    said = [{"role": "user", "content": "6 * 7"}]
    async with AsyncOpenAI(base_url=os.environ["OWN_URL"], api_key="wrong", max_retries=0) as client:
        await client.chat.completions.create(model="test-model", messages=said)
    return 1.0

async def raises(task, ctx):
    raise RuntimeError(f"gave up on {ctx.rollout.rollout_id}\\nbecause")

async def imports(task, ctx):
    import a_library_that_is_not_there

async def every_second(task, ctx):
    if task["task_id"] % 2:
        raise RuntimeError("odd")
    return 1.0

async def asks_and_fails(task, ctx):
    await ctx.policy.complete(ctx.opening)
    raise RuntimeError("no luck")

async def fails_until_told(task, ctx):
    from pathlib import Path
    await ctx.policy.complete(ctx.opening)
    if not Path("told").exists():
        raise RuntimeError("not yet")
    return 1.0

async def waits_once(task, ctx):
    import asyncio, os
    from pathlib import Path
    await ctx.policy.complete(ctx.opening)
    if not Path("pid").exists():
        Path("pid").write_text(str(os.getpid()))
        await asyncio.sleep(60)
    return 1.0

async def half(task, ctx):
    return Result(reward=0.5)

async def takes_its_time(task, ctx):
    import asyncio, random
    await asyncio.sleep(random.Random(ctx.rollout.rollout_id.rpartition("/")[2]).uniform(0.2, 0.6))
    return 1.0

async def silent(task, ctx):
    return None

async def nothing(task, ctx):
    return Result(reward=0.0)
"""


LAKE = """
rollout_batch_size: 4
model: builtin:random
train_env_manager: {num_env_groups: 2, group_size: 2, tags: [FrozenLake]}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "own.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OUTRIDER_STORE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def outrider(*arguments: str, code: int) -> Any:
    done = run_warm(*arguments, seconds=60, OPENAI_API_KEY="right")
    assert done.returncode == code, (done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    return done


def run_json(*arguments: str, code: int) -> Any:
    return json.loads(outrider("run", *arguments, "--json", code=code).stdout)


SOLVER = ("--mode", "math", "--model", "builtin:solver")


def test_failed_rollouts_are_an_exit_code_of_1_that_can_be_forgiven():
    arguments = ("run", *SOLVER, "--agent", "own:raises", "--limit", "4", "--max-attempts", "1")
    said = outrider(*arguments, "--name", "bad", code=1).stdout
    assert "✅" not in said
    assert said.count("❌") == 4
    assert "4 failed: agent: RuntimeError: gave up on bad/" in said
    assert "one of them: outrider view bad bad/" in said
    outrider(*arguments, "--name", "forgiven", "--allow-failures", code=0)

    page, summary = (Path("results/bad", name).read_text() for name in ("page.html", "summary.md"))
    assert 'class="causes"' in page
    assert "gave up on" in summary
    (cause,) = run_json(*arguments[1:], "--name", "told", code=1)["summary"]["causes"]
    assert (cause["n"], cause["boundary"], cause["kind"]) == (4, "agent", "RuntimeError")


def test_a_tick_is_for_what_passed():
    for agent, mark in (("own:nothing", "⬜"), ("own:half", "🟡")):
        said = outrider("run", *SOLVER, "--agent", agent, "--limit", "2", code=0).stdout
        assert said.count(mark) == 2
        assert "✅" not in said


@pytest.mark.parametrize("workers", ["1", "2"])
def test_an_import_that_fails_stops_the_run_with_one_message_and_is_tried_once(workers: str):
    arguments = (*SOLVER, "--agent", "own:imports", "--num-rollouts", "1", "--workers", workers)
    outcome = run_json(*arguments, "--limit", "20", "--name", "import", code=3)
    assert "a_library_that_is_not_there" in outcome["stopped_by"]
    assert not outcome["complete"]
    assert outcome["summary"]["total"]["n"] < 10
    assert outcome["summary"]["total"]["retries"] == 0

    outcome = run_json(*arguments, "--limit", "6", "--no-fail-fast", code=1)
    assert outcome["complete"]
    assert outcome["summary"]["total"]["statuses"] == {"failed": 6}


def test_a_wrong_setting_of_ones_own_environment_stops_the_run():
    outcome = run_json("--mode", "own:Counts", "--env", "size=long", "--model", "builtin:random", "--limit", "20",
                       "--num-rollouts", "2", code=3)  # fmt: skip
    assert "size is 'long'; give a number" in outcome["stopped_by"]
    assert outcome["summary"]["total"]["n"] < 10


@pytest.mark.parametrize("where", ["make", "reset"])
@pytest.mark.parametrize("error", ["KeyError", "IndexError", "AssertionError", "FileNotFoundError", "TypeError"])
def test_a_wrong_setting_stops_the_run_whatever_ones_own_environment_raises(error: str, where: str):
    outcome = run_json("--mode", "own:Strict", "--env", f"error={error}", "--env", f"where={where}", "--model",
                       "builtin:random", "--limit", "20", "--num-rollouts", "2", code=3)  # fmt: skip
    assert error in outcome["stopped_by"]
    assert "no such level" in outcome["stopped_by"]
    assert outcome["summary"]["total"]["n"] < 10


@pytest.mark.parametrize("command", ["run", "work"])
async def test_an_agent_with_a_client_of_its_own_and_a_wrong_key_stops_the_run(
    command: str, monkeypatch: pytest.MonkeyPatch
):
    async with ModelServer("42", key="right") as server:
        monkeypatch.setenv("OWN_URL", server.base_url)
        if command == "run":
            arguments = (*SOLVER, "--limit", "20", "--num-rollouts", "2")
        else:
            await asyncio.to_thread(outrider, "enqueue", "--test", "200", code=0)
            arguments = ("--until-done", "--tasks", "--max-env-num-per-worker", "2")
        most = 100 if command == "work" else 24
        for fault in (None, 400, 404):
            before = server.n_calls
            server.key = "right" if fault is None else "wrong"
            server.faults = FaultPlan() if fault is None else FaultPlan(always=status(fault, "no such thing"))
            done = await asyncio.to_thread(
                outrider, command, *arguments, "--agent", "own:asks_itself", "--json", code=3
            )
            stopped_by = json.loads(done.stdout)["stopped_by"]
            assert str(fault or 401) in stopped_by
            assert "agent: " in stopped_by
            assert server.n_calls - before <= most
        server.faults = FaultPlan()


async def test_a_refusal_that_names_a_request_stops_the_run():
    async with ModelServer("42", key="right") as server:
        refusals = {n: status(400, f"no such field (request {token_hex(8)})") for n in range(1, 50)}
        server.faults = FaultPlan(at=refusals)
        outcome = await asyncio.to_thread(
            run_json, "--mode", "math", "--base-url", server.base_url, "--model", "test-model", "--limit", "20",
            "--num-rollouts", "1", "--no-check", code=3,
        )  # fmt: skip
    assert "no such field" in outcome["stopped_by"]
    assert outcome["summary"]["total"]["n"] <= 5
    assert len(outcome["summary"]["causes"]) == 1


BROKEN = {
    "missing.py": "import a_library_that_is_not_there\n\n\nasync def solve(task, ctx):\n    return 1.0\n",
    "unwritten.py": "async def solve(task, ctx):\n    return = 1.0\n",
    "leaving.py": "import sys\n\nsys.exit('no licence')\n",
    "made.py": """from outrider.env import Environment

class Own(Environment):
    def __init__(self, size=1):
        self.size = int("banana")
    async def reset(self, seed=None):
        return ()
    async def step(self, action):
        raise NotImplementedError

class Many:
    def __init__(self):
        raise ValueError("banana is no size")
    def make(self, task):
        return Own()

class Later:
    def make(self, task):
        return Own()
    async def check(self): ...
    async def close(self): ...

class Solver:
    def __init__(self, max_turns=1):
        raise KeyError("banana")
    async def __call__(self, task, ctx):
        return 1.0
""",
}
LAKES = ("--mode", "FrozenLake", "--model", "builtin:solver", "--limit", "1")
PLAYED = ("--model", "builtin:random", "--limit", "1")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ("run", *LAKES, "--agent", "missing:solve"),
            ("No module named 'a_library_that_is_not_there'", "missing.py:1"),
        ),
        (("run", *LAKES, "--agent", "unwritten:solve"), ("SyntaxError: invalid syntax", "unwritten.py:2")),
        (("run", *LAKES, "--agent", "leaving:solve"), ("SystemExit: no licence", "leaving.py:3")),
        (("run", *LAKES, "--agent", "made:Solver"), ("KeyError: 'banana'", "made.py:25")),
        (("run", *PLAYED, "--mode", "made:Own"), ("ValueError: invalid literal", "made.py:5")),
        (("run", *PLAYED, "--mode", "made:Many"), ("ValueError: banana is no size", "made.py:13")),
        (("run", *PLAYED, "--mode", "made:Later"), ("ValueError: invalid literal", "made.py:5")),
        (("work", "--agent", "missing:solve"), ("No module named 'a_library_that_is_not_there'", "missing.py:1")),
        (("work", "--tasks", "--agent", "unwritten:solve"), ("SyntaxError: invalid syntax", "unwritten.py:2")),
        (("rollout", "-c", "lake.yaml", "--set", "agent=missing:solve"), ("'a_library_that_", "missing.py:1")),
        (("rollout", "-c", "many.yaml"), ("tag own: ", "ValueError: banana is no size", "made.py:13")),
    ],
)
def test_what_ones_own_module_raises_is_one_line_with_its_place(arguments: tuple[str, ...], says: tuple[str, ...]):
    for name, text in BROKEN.items():
        Path(name).write_text(text)
    Path("lake.yaml").write_text(LAKE)
    Path("many.yaml").write_text(LAKE.replace("[FrozenLake]}", "[own]}\ncustom_envs: {own: {env: 'made:Many'}}"))
    if arguments[0] == "work":
        outrider("enqueue", "--test", "2", code=0)
    (line,) = outrider(*arguments, code=2).stderr.splitlines()
    for said in says:
        assert said in line
    assert not Path("results").exists()
    done = run_warm(*arguments, seconds=60, OUTRIDER_TRACEBACK="1")
    assert (done.returncode, done.stderr.splitlines()[-1]) == (2, line)
    assert "Traceback (most recent call last)" in done.stderr


async def test_a_request_that_the_server_refuses_stops_the_run_and_a_wrong_key_can_be_insisted_on():
    async with ModelServer("42", key="right") as server:
        arguments = ("--mode", "math", "--base-url", server.base_url, "--model", "test-model", "--limit", "20",
                     "--num-rollouts", "1", "--no-check")  # fmt: skip
        for code in (400, 404):
            server.faults = FaultPlan(always=status(code, "no such field"))
            outcome = await asyncio.to_thread(run_json, *arguments, code=3)
            assert str(code) in outcome["stopped_by"]
            assert outcome["summary"]["total"]["n"] <= 5
        server.faults = FaultPlan(always=status(401, "who are you?"))
        outcome = await asyncio.to_thread(run_json, *arguments, "--limit", "5", "--no-fail-fast", code=1)
        assert outcome["summary"]["total"]["statuses"] == {"failed": 5}
        assert outcome["summary"]["total"]["retries"] == 0


def test_work_says_by_its_exit_code_that_rollouts_failed_and_why():
    outrider("enqueue", "--test", "6", "--max-attempts", "1", code=0)
    done = outrider("work", "--until-done", "--tasks", "--agent", "own:every_second", code=1)
    assert "✅" not in done.stdout
    assert "3 failed: agent: RuntimeError: odd" in done.stdout
    assert "one of them: outrider show ro-" in done.stdout

    outrider("enqueue", "--test", "20", code=0)
    done = outrider("work", "--until-done", "--workers", "2", "--agent", "own:imports", "--json", code=3)
    assert "a_library_that_is_not_there" in json.loads(done.stdout)["stopped_by"]
    assert json.loads(done.stdout)["left_open"] > 10
    done = outrider("work", "--until-done", "--tasks", "--no-fail-fast", "--allow-failures", "--agent", "own:imports",
                    "--json", code=0)  # fmt: skip
    assert json.loads(done.stdout)["left_open"] == 0


async def test_work_says_how_many_have_no_score_and_it_is_a_failure_for_rollouts_of_a_run():
    await asyncio.to_thread(outrider, "enqueue", "--test", "3", code=0)
    work = ("work", "--until-done", "--tasks", "--agent", "own:silent")
    done = await asyncio.to_thread(outrider, *work, code=0)
    assert done.stdout.splitlines()[-1] == "3 succeeded without a score: the agent returned None"
    await asyncio.to_thread(outrider, "enqueue", "--test", "2", code=0)
    done = await asyncio.to_thread(outrider, *work, "--json", code=0)
    assert (json.loads(done.stdout)["unscored"], json.loads(done.stdout)["scored"]) == (2, 0)

    for code, forgiven in ((1, ()), (0, ("--allow-failures",))):
        async with open_store("sqlite:///outrider.db") as store:
            await store.enqueue_rollout({}, metadata={RUN_KEY: "scores", TASK_KEY: "t"})
        await asyncio.to_thread(outrider, *work, *forgiven, code=code)


async def test_failures_of_others_in_the_same_store_do_not_stop_a_worker():
    async with open_store("sqlite:///outrider.db") as store:
        attempts = [(await store.start_rollout({}, worker_id="another")).attempt for _ in range(N_FIRST)]
        tally = new_tally(SystemClock(), await store.statistics(), fail_fast=True)
        tally.own_workers = {"mine"}
        error = Failure(boundary=Boundary.AGENT, kind="ImportError", message="no module", permanent=True)
        for attempt in attempts:
            await store.update_attempt(attempt.rollout_id, attempt.attempt_id, status="failed", error=error)
        for rollout in (await store.finished_after(0)).items:
            tally.add(rollout)
            assert (rollout.status, rollout.n_attempts) == ("failed", 1), "it is not retried"
    assert (tally.n_missing, tally.stopped_by) == (N_FIRST, None)
    tally.own_workers = {"another"}
    for rollout in await _ended():
        tally.add(rollout)
    assert "no module" in (tally.stopped_by or "")


async def _ended() -> Sequence[Rollout]:
    async with open_store("sqlite:///outrider.db", read_only=True) as store:
        return (await store.finished_after(0)).items


def test_rollout_stops_when_no_member_can_ever_begin():
    Path("own.yaml").write_text(
        "rollout_batch_size: 4\nmodel: builtin:random\ntrain_env_manager:\n  num_env_groups: 2\n  group_size: 2\n"
        "  tags: [long]\ncustom_envs:\n  long: {env: 'own:Counts', config: {size: long}}\n"
    )
    done = outrider("rollout", "-c", "own.yaml", "--steps", "2", "--json", code=3)
    (end,) = [json.loads(line) for line in done.stdout.splitlines()]
    assert "size is 'long'" in end["stopped_by"]
    assert end["causes"][0]["boundary"] == "env"


def test_the_page_of_a_training_run_says_why_rollouts_failed_and_unused_fields_are_named():
    Path("tasks.jsonl").write_text('{"id": "a", "question": "1 + 1", "answer": 2, "author": "me"}\n')
    Path("own.yaml").write_text(
        "rollout_batch_size: 2\nmodel: builtin:solver\nagent: own:imports\ntrain_env_manager: {num_env_groups: 1, "
        "group_size: 2, tags: [sums]}\ncustom_envs: {sums: {env: math, tasks: tasks.jsonl}}\n"
    )
    done = run_warm("rollout", "-c", "own.yaml", "--steps", "1", "--timeline", "slots.html", "--json", seconds=60)
    assert done.returncode == 3, done.stderr
    end = json.loads(done.stdout.splitlines()[-1])
    assert "tag sums: mode math does not use the fields author" in done.stderr
    page = Path("slots.html").read_text()
    assert f"<b>{end['causes'][0]['n']} failed</b> agent: ModuleNotFoundError: No module named" in page
    assert 'class="causes"' in page


@pytest.mark.parametrize("command", ["run", "work", "rollout"])
def test_the_exit_codes_are_in_the_help(command: str):
    assert "3 stopped" in " ".join(outrider(command, "--help", code=0).stdout.split())


def test_totals_are_those_of_all_attempts_in_the_summary_and_in_the_page():
    arguments = (*SOLVER, "--agent", "own:asks_and_fails", "--limit", "10", "--name", "thrice")
    outcome = run_json(*arguments, "--prompt-price", "2", "--completion-price", "8", code=1)
    total = outcome["summary"]["total"]
    assert (total["n"], total["retries"], total["model_calls"]) == (10, 20, 30)
    assert total["prompt_tokens"] > 30
    assert total["attempt_seconds"] > 0
    cost = (total["prompt_tokens"] * 2 + total["completion_tokens"] * 8) / 1e6
    assert outcome["summary"]["money"] == pytest.approx(cost)
    page, report = (Path("results/thrice", name).read_text() for name in ("page.html", "summary.md"))
    assert "tokens in 30 calls" in page
    assert re.search(r"<b>[\d.]+ m?s</b><span>by all attempts, [\d.]+ m?s in calls<", page)
    assert re.search(r"[\d.]+ m?s by all attempts together, [\d.]+ m?s of it in model calls", report)
    lines = [json.loads(line) for line in Path("results/thrice/results.jsonl").read_text().splitlines()]
    assert sum(line["others"]["calls"] for line in lines) == 20


async def test_totals_have_what_an_attempt_took_whose_worker_was_killed():
    arguments = (*SOLVER, "--agent", "own:waits_once", "--limit", "1", "--workers", "2", "--name", "killed")
    process = await asyncio.create_subprocess_exec(*OUTRIDER, "run", *arguments, stdout=subprocess.PIPE)
    async with asyncio.timeout(60):
        while (recorded := await _turns()) == 0:
            await asyncio.sleep(0.05)
        os.kill(int(Path("pid").read_text()), signal.SIGKILL)
        said = (await process.communicate())[0].decode()
    assert (process.returncode, recorded) == (0, 1)
    (line,) = [json.loads(text) for text in Path("results/killed/results.jsonl").read_text().splitlines()]
    total = json.loads(Path("results/killed/summary.json").read_text())["total"]
    assert (total["retries"], total["model_calls"], line["others"]["calls"]) == (1, 2, 1)
    assert total["prompt_tokens"] == 2 * line["prompt_tokens"] == 2 * line["others"]["prompt_tokens"] > 0
    assert total["completion_tokens"] == line["completion_tokens"] + line["others"]["completion_tokens"]
    assert total["attempt_seconds"] == pytest.approx(line["seconds"] + line["others"]["seconds"])
    assert f"{total['prompt_tokens']:,} in, {total['completion_tokens']:,} out, 2 calls" in said
    assert "1 attempts, 0 calls, counted above" in said
    assert f"time spent │ {seconds_text(total['attempt_seconds'])} by all attempts together" in " ".join(said.split())


async def _turns() -> int:
    """How many turns the run has recorded."""
    if not Path("pid").exists():
        return 0
    async with open_store("sqlite:///results/killed/store.db", read_only=True) as store:
        (rollout,) = (await store.query_rollouts()).items
        return (await store.query_events(rollout.rollout_id, kind="turn")).total


@pytest.mark.parametrize("counts", [True, False], ids=["a server that counts", "one that does not"])
async def test_a_spent_budget_says_what_the_totals_say(counts: bool):
    usage = Usage(prompt_tokens=70, completion_tokens=30) if counts else Usage()

    async def answer(_: object) -> Completion:
        await asyncio.sleep(0.05)
        return Completion(message=assistant("x" * 100), usage=usage)

    async with ModelServer(answer) as server:
        outcome = await asyncio.to_thread(
            run_json, "--mode", "FrozenLake", "--base-url", server.base_url, "--model", "test-model", "--limit", "30",
            "--num-rollouts", "4", "--budget-tokens", "900", "--name", "spent", code=3,
        )  # fmt: skip
        said = (await asyncio.to_thread(outrider, "run", "--resume", "spent", code=3)).stdout
    total = outcome["summary"]["total"]
    used = total["prompt_tokens"] + total["completion_tokens"]
    assert used >= 900
    assert f"{used:,} tokens of 900 are used" in outcome["stopped_by"]
    assert outcome["summary"]["n_planned"] == 30
    assert total["n"] <= outcome["summary"]["n_begun"] < 30
    assert f"{used:,} tokens of 900" in " ".join(said.split())
    assert f"30 planned, {outcome['summary']['n_begun']} begun, {total['n']} done" in said


async def test_a_run_that_is_interrupted_says_what_was_planned_begun_and_done():
    arguments = (*LAKES[:4], "--agent", "own:takes_its_time", "--limit", "60", "--num-rollouts", "4", "--name", "cut")
    process = await asyncio.create_subprocess_exec(*OUTRIDER, "run", *arguments, stdout=subprocess.PIPE)
    results = Path("results/cut/results.jsonl")
    async with asyncio.timeout(60):
        while not results.exists() or results.read_bytes().count(b"\n") < 5:
            await asyncio.sleep(0.05)
        process.send_signal(signal.SIGINT)
        said = " ".join((await process.communicate())[0].decode().split())
    assert process.returncode == 3, said
    n_planned, n_begun, n_done = map(int, re.findall(r"(\d+) planned, (\d+) begun, (\d+) done", said)[0])
    assert (n_planned, n_done) == (60, results.read_bytes().count(b"\n"))
    assert 5 <= n_done <= n_begun < 60


def test_the_time_left_at_a_tenth_of_a_run_is_right_within_a_factor_of_two():
    arguments = (*LAKES[:4], "--agent", "own:takes_its_time", "--limit", "80", "--num-rollouts", "4", "--name", "timed")
    seen: list[tuple[float, str]] = []
    code, _ = run_on_terminal([*OUTRIDER, "run", *arguments], hear=lambda text: seen.append((time.time(), text)))
    assert code == 0
    end = Path("results/timed/results.jsonl").stat().st_mtime
    told = [
        (at, int(minutes or 0) * 60 + int(seconds))
        for at, text in seen
        for done, minutes, seconds in re.findall(r"(\d+)/80\b.*?about (?:(\d+) min )?(\d+) s left", text, re.DOTALL)
        if int(done) >= 8
    ]
    at, seconds = told[0]
    assert (end - at) / 2 <= seconds <= (end - at) * 2


def test_a_run_goes_on_by_its_name_alone_and_can_be_extended():
    Path("tasks.jsonl").write_text(
        "".join(f'{{"id": "t{n}", "question": "{n} + 1", "answer": {n + 1}}}\n' for n in range(4))
    )
    outrider("run", *SOLVER, "--data", "tasks.jsonl", "--limit", "2", "--seed", "3", "--name", "grows", code=0)
    again = run_json("--resume", "grows", code=0)
    assert (again["complete"], again["summary"]["total"]["n"]) == (True, 2)

    more = run_json("--resume", "grows", "--samples-per-task", "2", code=0)
    assert more["summary"]["total"]["n"] == 4
    more = run_json("--resume", "grows", "--limit", "4", code=0)
    assert (more["summary"]["total"]["n"], more["summary"]["total"]["n_tasks"]) == (8, 4)
    assert run_json("--resume", code=0)["run"] == "grows", "the newest"

    assert "samples_per_task was 2, now it is 1" in outrider(
        "run", "--resume", "grows", "--samples-per-task", "1", code=2
    ).stderr  # fmt: skip
    assert "the tasks are not the same" in outrider("run", "--resume", "grows", "--limit", "1", code=2).stderr
    for changed, says in (
        (("--seed", "4"), "begun with another plan: seed was 3, now it is 4. Give"),
        (("--timeout", "5"), "begun with another plan: timeout was not given, now it is 5.0. Give"),
        (("--mode", "rag"), 'begun with another plan: mode was "math", now it is "rag". Give'),
    ):
        assert says in outrider("run", "--resume", "grows", *changed, code=2).stderr
    assert "no run to go on with" in outrider("run", "--resume", "nobody", code=2).stderr


def test_a_retried_rollout_takes_the_place_of_the_one_that_failed():
    arguments = (*SOLVER, "--agent", "own:fails_until_told", "--limit", "4", "--max-attempts", "1", "--name", "again")
    before = run_json(*arguments, code=1)["summary"]
    assert (before["total"]["n"], before["total"]["n_scored"]) == (4, 0)

    Path("told").touch()
    after = run_json("--resume", "again", "--retry-failed", code=0)["summary"]
    assert (after["total"]["n"], after["total"]["n_scored"], after["total"]["n_tasks"]) == (4, 4, 4)
    assert (after["n_replaced"], after["causes"]) == (4, [])
    assert after["total"]["model_calls"] == 8, "what the failed ones took is counted too"
    assert after["total"]["pass_at"]["1"]["scored"]["n"] == 4
    again = run_json("--resume", "again", "--retry-failed", code=0)["summary"]
    assert again == after
    assert "4 samples, whose retries count in their place" in outrider("run", "--resume", "again", code=0).stdout
    page = Path("results/again/page.html").read_text()
    assert "samples that retries replace" in page
    assert (page.count("retried: agent: RuntimeError"), page.count('class="rollout error"')) == (4, 0)


def test_cancelled_rollouts_and_those_without_a_score_are_retried_with_the_failed():
    arguments = (*SOLVER, "--limit", "4", "--num-rollouts", "1", "--budget-tokens", "1", "--name", "gaps")
    assert run_json(*arguments, code=3)["summary"]["total"]["n"] == 0

    async def end_one_without_a_score() -> None:
        async with open_store("sqlite:///results/gaps/store.db", create=False) as store:
            claimed = await store.dequeue_rollout(worker_id="w")
            assert claimed is not None
            await store.update_attempt(claimed.rollout_id, claimed.attempt.attempt_id, status="succeeded")

    asyncio.run(end_one_without_a_score())
    outrider("cancel", "--all", "--store", "sqlite:///results/gaps/store.db", code=0)
    resumed = ("--resume", "gaps", "--budget-tokens", "1000000")
    kept = run_json(*resumed, code=1)["summary"]["total"]
    assert (kept["statuses"], kept["n_scored"]) == ({"succeeded": 1, "cancelled": 3}, 0)
    after = run_json(*resumed, "--retry-failed", code=0)["summary"]
    assert (after["total"]["n"], after["total"]["n_scored"], after["n_replaced"]) == (4, 4, 4)
    assert after["total"]["statuses"] == {"succeeded": 4}
    assert run_json(*resumed, "--retry-failed", code=0)["summary"] == after, "what has a score is left alone"


def test_a_retry_that_was_enqueued_by_hand_is_run_when_the_run_goes_on():
    outrider("run", *SOLVER, "--agent", "own:fails_until_told", "--limit", "2", "--max-attempts", "1", "--name", "hand",
             code=1)  # fmt: skip
    Path("told").touch()
    outrider("retry", "--failed", "--store", "sqlite:///results/hand/store.db", code=0)
    assert run_json("--resume", "hand", code=0)["summary"]["total"]["n_scored"] == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "--mode", "FrozenLake", "--model", "builtin:solver?latency=0.01", "--limit", "30", "--name", "piped"),
        ("work", "--until-done", "--tasks"),
        ("rollout", "-c", "lake.yaml", "--steps", "8", "--name", "piped", "--set", "model=builtin:random?latency=0.01"),
    ],
    ids=["run", "work", "rollout"],
)
def test_a_closed_pipe_ends_the_output_and_not_the_run(arguments: tuple[str, ...]):
    outrider("enqueue", "--test", "15", code=0)
    Path("lake.yaml").write_text(LAKE)
    command = shlex.join([*OUTRIDER, *arguments])
    done = subprocess.run(
        ["bash", "-c", f"{command} 2>errors | head -n 2; echo ${{PIPESTATUS[0]}}"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert len(done.stdout.splitlines()) == 3
    assert (done.stdout.splitlines()[-1], Path("errors").read_text()) == ("0", "")
    if arguments[0] == "run":
        assert len(Path("results/piped/results.jsonl").read_text().splitlines()) == 30
    elif arguments[0] == "rollout":
        assert len(Path("results/piped/steps.jsonl").read_text().splitlines()) == 8
    else:
        assert json.loads(outrider("status", "--json", code=0).stdout)["rollouts"]["succeeded"] == 15


@pytest.mark.parametrize("name", ["../../x", "/tmp/x", "..", "a/b", ""])
@pytest.mark.parametrize("command", ["run", "rollout"])
def test_a_name_that_leads_out_of_the_folder_is_refused(command: str, name: str):
    settings = (*SOLVER, "--limit", "1") if command == "run" else ("-c", "lake.yaml", "--steps", "1")
    Path("lake.yaml").write_text(LAKE)
    refused = outrider(command, *settings, "--name", name, code=2).stderr
    assert "cannot name a folder" in refused
    assert not Path("results").exists()


@pytest.mark.parametrize("store", ["sqlite:///nowhere/x.db", "postgresql://u:p@127.0.0.1:9/db"])
@pytest.mark.parametrize("command", ["run", "rollout"])
def test_a_store_that_cannot_be_reached_leaves_no_folder(command: str, store: str):
    settings = (*SOLVER, "--limit", "1") if command == "run" else ("-c", "lake.yaml", "--steps", "1")
    Path("lake.yaml").write_text(LAKE)
    refused = outrider(command, *settings, "--store", store, "--name", "lost", code=2).stderr
    assert len(refused.splitlines()) == 1
    assert not Path("results").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("run", "--config", "wrong.yaml"), "did you mean model?"),
        (("run", "--mode", "maths"), "did you mean math?"),
        (("run", "--mode", "math", "--scorer", "mathh"), "did you mean math?"),
        (("run", "--mode", "math", "--env", "calculator=banana"), "`bool`"),
        (("view", "nosuch"), "there are no runs yet"),
    ],
)
def test_a_wrong_setting_is_one_line_said_once(arguments: tuple[str, ...], says: str):
    Path("wrong.yaml").write_text("mode: math\nmodle: builtin:solver\n")
    model = () if "--config" in arguments or arguments[0] == "view" else ("--model", "builtin:solver")
    refused = outrider(*arguments, *model, code=2).stderr
    assert refused.count(says) == 1
    assert len(refused.splitlines()) == 1


def test_a_run_that_is_not_there_is_answered_with_how_many_there_are_and_the_nearest():
    for name in ("first", "second", "third"):
        outrider("run", *SOLVER, "--limit", "1", "--name", name, code=0)
    refused = outrider("view", "secnod", code=2).stderr
    assert "there are 3 runs, the nearest results/second" in refused


@pytest.mark.parametrize("manner", [Manner.OPENAI, Manner.VLLM, Manner.NO_LOGPROBS])
async def test_training_on_nothing_is_told_before_the_run_and_after_it(manner: Manner):
    Path("lake.yaml").write_text(LAKE.replace("builtin:random", "test-model") + "max_turns: 2\n")
    async with ModelServer("<answer>right</answer>", manner=manner, key="right") as server:
        code = 1 if manner is Manner.OPENAI else 0
        command = ("rollout", "-c", "lake.yaml", "--set", f"base_urls=[{server.base_url}]", "--steps", "2")
        done = await asyncio.to_thread(outrider, *command, code=code)
        forgiven = ("--no-fail-fast", "--allow-failures", "--name", "forgiven")
        await asyncio.to_thread(outrider, *command, *forgiven, code=0)
        shown = await asyncio.to_thread(outrider, *command, "--json", "--allow-failures", "--name", "shown", code=0)
    *steps, end = [json.loads(line) for line in shown.stdout.splitlines()]
    n_delivered = sum(sum(step["tokens"].values()) for step in steps)
    said = " ".join(done.stdout.split())
    if manner is not Manner.OPENAI:
        assert end["in_loss"] == end["tokens"]["trained"] == n_delivered > 0
        assert "trained" in said
        assert "text" not in end["tokens"]
        without = end["in_loss"] if manner is Manner.NO_LOGPROBS else 0
        assert (end["without_logprobs"], "⚠" in said) == (without, without > 0)
        if without:
            assert "⚠ test-model gives no log-probabilities" in said
            assert f"⚠ {without} of {without} tokens in the loss have no log-probability" in said
        return
    assert (end["in_loss"], end["tokens"]["trained"], end["tokens"]["text"]) == (0, 0, n_delivered)
    assert [step["tokens"] for step in steps] == [{"trained": 0, "text": step["text"]} for step in steps]
    assert "trained" not in said
    assert f"{n_delivered} as text only" in said
    status = await asyncio.to_thread(
        outrider, "status", "--store", "sqlite:///results/shown/store.db", "--mode", "train", code=0
    )
    assert f"{n_delivered} delivered" in " ".join(status.stdout.split())
    before, _, after = said.partition("2 steps of 4 trajectories")
    assert "⚠ test-model gives no token ids" in before
    assert "0 tokens in the loss (⚠" in after
    assert "known as text only, since the endpoint gave no token ids: nothing was learnt of them" in after
    assert after.count("warning: batch 0:") == 1


async def test_a_run_that_asks_for_tokens_is_told_if_there_are_none():
    async with ModelServer("42", manner=Manner.OPENAI, key="right") as server:
        arguments = (
            "run", "--mode", "math", "--limit", "1", "--base-url", server.base_url, "--model", "test-model"
        )  # fmt: skip
        said = await asyncio.to_thread(outrider, *arguments, "--logprobs", code=0)
        assert "note: test-model gives no token ids" in said.stdout
        said = await asyncio.to_thread(outrider, *arguments, code=0)
        assert "token ids" not in said.stdout
