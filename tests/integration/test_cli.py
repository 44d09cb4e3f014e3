"""The command line, as a user and as a script meet it."""

import asyncio
import json
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from outrider.cli import COMMANDS
from outrider.store import open_store
from promptly import within
from terminal import run_on_terminal
from warm_outrider import run_warm

OUTRIDER = [sys.executable, "-m", "outrider"]

AGENTS = """
import asyncio, time
from outrider import Result

async def odd_fails(task, ctx):
    ctx.log("looking", number=task["task_id"])
    if task["task_id"] % 2:
        raise ValueError("odd")
    return Result(reward=0.5, output="even")

async def slow(task, ctx):
    await asyncio.sleep(60)

async def wordy(task, ctx):
    raise ValueError("[bold]first[/bold] line\\n" + "a long word/" * 200 + "\\n[/end] of it")
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "my_agents.py").write_text(AGENTS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OUTRIDER_STORE", raising=False)
    return tmp_path


def run(*arguments: str, code: int = 0, stdin: str = "") -> subprocess.CompletedProcess[str]:
    done = run_warm(*arguments, stdin=stdin, seconds=60)
    assert done.returncode == code, (done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    return done


def run_json(*arguments: str, code: int = 0) -> Any:
    return json.loads(run(*arguments, "--json", code=code).stdout)


def n_rollouts() -> int:
    if not Path("outrider.db").exists():
        return 0
    return sum(run_json("status")["rollouts"].values())


def test_the_whole_story_from_tasks_to_export():
    Path("tasks.jsonl").write_text("".join(f'{{"task_id": {i}, "text": "ταξί 🚕"}}\n' for i in range(10)))
    enqueued = run_json("enqueue", "tasks.jsonl", "--tag", "numbers", "--max-attempts", "2")
    assert enqueued["enqueued"] == len(set(enqueued["rollout_ids"])) == 10

    summary = run_json("work", "--workers", "2", "--agent", "my_agents:odd_fails", "--until-done", code=1)
    assert (summary["ended"], summary["succeeded"], summary["failed"]) == (10, 5, 5)
    assert (summary["scored"], summary["mean_reward"], summary["retries"]) == (5, 0.5, 5)
    assert summary["failed_by_infrastructure"] == 0
    assert sum(summary["by_worker"].values()) == 10

    status = run_json("status", "--tag", "numbers")
    assert status["rollouts"]["succeeded"] == status["rollouts"]["failed"] == 5
    assert any("5 failed with agent: ValueError" in line for line in status["stuck"])

    odd = enqueued["rollout_ids"][1]
    shown = run_json("show", odd)
    assert [attempt["status"] for attempt in shown["attempts"]] == ["failed", "failed"]
    assert shown["events"][0]["data"] == {"number": 1}
    assert "odd" in run("show", odd).stdout
    assert "ValueError" in run("show", odd).stdout

    retried = run_json("retry", "--failed")
    assert set(retried["rollout_ids"]) == {f"{id}~1" for id in enqueued["rollout_ids"][1::2]}
    assert run_json("retry", "--failed")["enqueued"] == 0
    assert run_json("cancel", odd + "~1")["cancelled"] == [odd + "~1"]
    assert len(run_json("cancel", "--tag", "numbers")["cancelled"]) == 4

    run("export", "-o", "out.jsonl", "--status", "succeeded")
    lines = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    assert len(lines) == 5
    assert {line["rollout"]["input"]["task_id"] for line in lines} == {0, 2, 4, 6, 8}
    assert all(line["attempt"]["status"] == "succeeded" and line["events"][-1]["data"]["output"] for line in lines)


def test_a_long_error_is_shown_whole_and_elsewhere_by_its_first_line():
    run("enqueue", "--test", "1", "--max-attempts", "2")
    run("work", "--agent", "my_agents:wordy", "--workers", "1", "--max-rollouts", "1")
    (waiting,) = [line for line in run("status").stdout.splitlines() if "waits for attempt 2 of 2" in line]
    rollout_id = waiting.split()[1].rstrip(":")
    assert waiting.endswith(f"after agent: ValueError: [bold]first[/bold] line… (whole: `outrider show {rollout_id}`)")
    shown = run("show", rollout_id).stdout
    assert "ValueError: [bold]first[/bold] line\n" + "a long word/" * 200 + "\n[/end] of it" in shown


def test_tasks_may_come_as_a_list_or_from_standard_input():
    Path("tasks.json").write_text('[{"a": 1}, "text", 3]')
    assert run_json("enqueue", "tasks.json")["enqueued"] == 3
    assert json.loads(run("enqueue", "-", "--json", stdin='{"a": 1}\n\n{"a": 2}').stdout)["enqueued"] == 2


def test_enqueueing_again_with_ids_adds_nothing():
    Path("tasks.jsonl").write_text('{"id": "o\'hara"}\n{"id": 7}\n')
    for _ in range(2):
        assert run_json("enqueue", "tasks.jsonl", "--id-field", "id")["rollout_ids"] == ["o'hara", "7"]
    assert n_rollouts() == 2


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b'{"a": 1}\n{"a": \n', "tasks.jsonl, line 2"),
        (b'{"a": 1}\n\n{"a": "\xff"}\n', "tasks.jsonl, line 3"),
        (b'{"a": 1}\n{"a": 1' + b"0" * 40 + b"}\n", "tasks.jsonl, line 2"),
        (b'{"a": NaN}\n', "tasks.jsonl, line 1"),
        (b"", "holds no task"),
        (b'{"id": "x"}\n{"id": "y"}\n{"id": "x"}\n', "line 3 has the id 'x' of tasks.jsonl, line 1"),
        (b'{"id": "x"}\n{"no": "id"}\n', "line 2 has no field 'id'"),
    ],
)
def test_a_bad_line_is_named_and_nothing_is_enqueued(content: bytes, says: str):
    Path("tasks.jsonl").write_bytes(content)
    arguments = ["--id-field", "id"] if b"id" in content else []
    assert says in run("enqueue", "tasks.jsonl", *arguments, code=2).stderr
    assert n_rollouts() == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["enqueue"], "give a FILE"),
        (["enqueue", "nowhere.jsonl"], "cannot read nowhere.jsonl"),
        (["enqueue", "--test", "0"], "--test"),
        (["enqueue", "--test", "1", "--max-attempts", "0"], "--max-attempts"),
        (["enqueue", "--test", "1", "--timeout", "-1"], "timeout_seconds is -1"),
        (["enqueue", "--test", "1", "--mode", "trane"], "'trane' is not one of"),
        (["enqueue", "--test", "1", "--store", "mysql://x"], "is not a store URL"),
        (["enqueue", "--test", "1", "--store", "sqlite:///nowhere/x.db"], "does not exist"),
        (["enqueue", "--test", "1", "--store", "sqlite:///my_agents.py"], "is not an Outrider store"),
        (["status", "--store", "sqlite:///nowhere.db"], "there is no store in nowhere.db"),
        (["status", "--tag", "nobody"], "no rollout in this store has the tag 'nobody'"),
        (["show", "nobody"], "not in this store: nobody"),
        (["show"], "Missing argument"),
        (["retry"], "name rollouts, or give --failed"),
        (["retry", "first"], "only an ended rollout can be retried"),
        (["retry", "nobody"], "not in this store: nobody"),
        (["cancel"], "name rollouts, or give --all"),
        (["cancel", "first", "nobody"], "not in this store: nobody"),
        (["export", "--status", "running"], "'running' is not one of"),
        (["export", "-o", "nowhere/out.jsonl"], "cannot write"),
        (["work", "--heartbeat-interval", "40"], "a lease ends after 30 s"),
        (["work", "--workers", "0"], "--workers"),
        (["work", "--min-workers", "5", "--max-workers", "2"], "cannot keep between 5 and 2"),
        (["work", "--poll-interval", "-3"], "poll_interval is -3"),
        (["work", "--agent", "my_agents"], "write it as module:name"),
        (["work", "--agent", "my_agents:nobody"], "has no 'nobody'"),
        (["work", "--agent", "nowhere:agent"], "no module 'nowhere'"),
        (["work", "--agent", "my_agents.py:slow"], "name the module, not its file: my_agents:slow"),
        (["work", "--until-done", "--store", "sqlite:///nowhere.db"], "there is no store in nowhere.db"),
        (["work", "--store", "memory://"], "lives in one process"),
        (["status", "--store", "postgresql://u:secret@127.0.0.1:9/db"], "postgresql://"),
        (["bench", "nothing"], "no benchmarks"),
        (["stauts"], "Did you mean 'status'?"),
        (["dance"], "No such command"),
    ],
)
async def test_a_mistake_is_explained_with_exit_code_2_and_changes_nothing(arguments: list[str], says: str):
    async with open_store("sqlite:///outrider.db") as store:
        await store.enqueue_rollout({}, rollout_id="first")

    refused = run(*arguments, code=2)

    assert says in refused.stderr
    assert refused.stdout == "", "nothing was begun"
    assert "secret" not in refused.stderr
    async with open_store("sqlite:///outrider.db", read_only=True) as store:
        found = (await store.statistics()).rollouts
    assert found["queuing"] == sum(found.values()) == 1


def test_a_database_of_a_newer_version_is_refused_and_left_alone():
    run("enqueue", "--test", "1")
    with sqlite3.connect("outrider.db") as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    assert "upgrade Outrider" in run("status", code=2).stderr
    assert "upgrade Outrider" in run("enqueue", "--test", "1", code=2).stderr
    with sqlite3.connect("outrider.db") as db:
        assert db.execute("PRAGMA user_version").fetchone() == (99,)
    db.close()


def test_status_says_that_nobody_works():
    run("enqueue", "--test", "3")
    assert "3 rollouts wait" in run("status").stdout
    assert "start one with `outrider work`" in " ".join(run("status").stdout.split())


async def _with_resources() -> str:
    async with open_store("sqlite:///outrider.db") as store:
        version = (await store.put_resources({"prompt": "p"})).version
        claimed = await store.start_rollout("task", rollout_id="r", worker_id="w")
        assert claimed.resources_version == version
        await store.update_attempt("r", claimed.attempt.attempt_id, metadata={"host": "node-7"})
        busy = await store.start_rollout("task", rollout_id="s", worker_id="w")
        await store.update_attempt("r", claimed.attempt.attempt_id, status="succeeded")
        return busy.attempt.attempt_id


def test_show_tells_which_resources_a_rollout_ran_with_and_status_what_a_worker_has_done():
    attempt_id = asyncio.run(_with_resources())
    shown = run("show", "r").stdout
    assert "resources_version" in shown
    assert "node-7" in shown
    assert run_json("show", "r")["attempts"][0]["resources_version"] == 1
    (worker,) = run_json("status")["workers"]
    assert (worker["n_succeeded"], worker["n_failed"]) == (1, 0)
    assert (worker["attempt_ids"], worker["rollout_ids"]) == ([attempt_id], ["s"])
    header = next(line for line in run("status").stdout.splitlines() if "leases" in line)
    assert all(name in header for name in ("busy for", "succeeded", "failed"))


def started(*arguments: str) -> subprocess.Popen[str]:
    process = subprocess.Popen([*OUTRIDER, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if "processing" in line:
            return process
    raise AssertionError("no worker claimed anything")


def test_ctrl_c_hands_back_what_runs_and_leaves_nothing():
    run("enqueue", "--test", "2")
    process = started("work", "--workers", "2", "--agent", "my_agents:slow", "--grace", "0.3")

    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=20)

    assert process.returncode == 0
    assert "Stopping" in output
    assert run_json("status")["rollouts"]["requeuing"] + run_json("status")["rollouts"]["queuing"] == 2
    assert not list(Path("outrider.db-bells").glob("*-*"))


def test_a_second_ctrl_c_stops_at_once_and_the_rollouts_come_back():
    run("enqueue", "--test", "2")
    process = started("work", "--workers", "2", "--agent", "my_agents:slow")

    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    with within(10):
        process.communicate(timeout=60)

    counts = run_json("status")["rollouts"]
    assert counts["requeuing"] + counts["queuing"] == 2


def test_a_terminal_gets_a_live_progress_line_and_a_summary():
    run("enqueue", "--test", "20")
    code, text = run_on_terminal([*OUTRIDER, "work", "--workers", "2", "--until-done"])
    assert code == 0
    assert "20/20" in text
    assert "mean reward" in text
    assert "Summary" in text


def test_until_done_says_by_its_exit_code_that_rollouts_are_left_open():
    run("enqueue", "--test", "4")
    said = run("work", "--workers", "1", "--max-rollouts", "1", "--until-done", code=3).stderr
    assert "3 rollouts are left open" in said


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_every_command_has_a_help_that_helps(command: str):
    text = run(*command.split(), "--help").stdout
    assert "Usage: outrider" in text
    assert len(text.splitlines()) > 6
