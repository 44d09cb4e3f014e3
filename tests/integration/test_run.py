"""`outrider run`, as people use it: tasks in, scores out, killed and resumed in between."""

import json
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from processes import OUTRIDER, run_outrider
from terminal import run_on_terminal

SLOW_GAME = ("--mode", "FrozenLake", "--model", "builtin:solver?latency=0.1", "--num-rollouts", "4")

OWN = """
import random
from outrider.core.chat import user

class Guess:
    '''Guess a number from 1 to 3.'''

    def reset(self, seed=None):
        self.number = random.Random(seed).randint(1, 3)
        self.tries = 0
        return "Guess a number from 1 to 3."

    def step(self, action):
        self.tries += 1
        right = action.strip() == str(self.number)
        return "right" if right else "wrong", float(right), right, self.tries >= 3, {}

async def counts_up(task, ctx):
    for number in (1, 2, 3):
        step = await ctx.env.step(__import__("outrider").core.chat.assistant(str(number)))
        if step.terminated:
            return

async def knows(task, ctx):
    return "the answer is " + str(ctx.task.answer)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "own.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OUTRIDER_STORE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def run(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    return run_outrider("run", *arguments, code=code)


def run_json(*arguments: str, code: int = 0) -> Any:
    return json.loads(run(*arguments, "--json", code=code).stdout)


def lines_of(run_name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path("results", run_name, "results.jsonl").read_text().splitlines()]


def started(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*OUTRIDER, "run", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        stdin=subprocess.DEVNULL,
    )


def wait_for_results(run_name: str, n: int) -> None:
    """Until so many rollouts have ended and are written down."""
    path = Path("results", run_name, "results.jsonl")
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if path.exists() and path.read_text().count("\n") >= n:
            return
        time.sleep(0.02)
    pytest.fail(f"{run_name} did not come to {n} results")


def test_a_benchmark_is_run_scored_and_summed_up_without_a_key_or_a_network():
    outcome = run_json("--mode", "math", "--model", "builtin:solver", "--name", "first", "--num-rollouts", "10")

    total = outcome["summary"]["total"]
    lines = lines_of("first")
    assert outcome["complete"]
    assert total["n"] == total["n_scored"] == len(lines) == len({line["task_id"] for line in lines})
    assert total["reward"]["scored"]["mean"] == 1.0
    assert all(line["n_turns"] >= 1 and line["prompt_tokens"] > 0 for line in lines)
    made = {path.name for path in Path("results/first").iterdir()}
    assert {"results.jsonl", "summary.json", "summary.md", "plot.svg", "page.html", "store.db", "config.yaml"} <= made


def test_a_file_of_ones_own_is_answered_in_the_form_it_has():
    Path("tasks.jsonl").write_text('{"id": "a", "question": "What is 3 + 4?", "answer": "7"}\n')
    outcome = run_json("--mode", "math", "--data", "tasks.jsonl", "--agent", "own:knows", "--model", "builtin:solver",
                       "--scorer", "contains", "--name", "mine")  # fmt: skip
    (line,) = lines_of("mine")
    assert outcome["summary"]["total"]["reward"]["scored"]["mean"] == 1.0
    assert (line["task_id"], line["expected"], line["n_turns"]) == ("a", "7", 0)


def test_samples_of_a_task_differ_by_seed_and_give_pass_at_k():
    outcome = run_json("--mode", "FrozenLake", "--model", "builtin:noisy?p=0.5", "--limit", "6",
                       "--samples-per-task", "4", "--max-turns", "8", "--name", "k")  # fmt: skip
    lines = lines_of("k")
    assert Counter(line["task_id"] for line in lines) == dict.fromkeys({line["task_id"] for line in lines}, 4)
    assert len({line["seed"] for line in lines}) == 24
    assert set(outcome["summary"]["total"]["pass_at"]) == {"1", "2", "4"}


def test_the_same_seed_gives_the_same_results_whatever_the_number_of_workers():
    arguments = ("--mode", "FrozenLake", "--model", "builtin:noisy?p=0.4", "--limit", "8", "--seed", "5")
    run(*arguments, "--name", "one", "--num-rollouts", "1")
    run(*arguments, "--name", "two", "--num-rollouts", "8", "--workers", "2")

    def rewards(name: str) -> dict[str, tuple[float, int]]:
        return {line["task_id"]: (line["reward"], line["n_turns"]) for line in lines_of(name)}

    assert rewards("one") == rewards("two")


def test_an_environment_and_an_agent_of_ones_own():
    outcome = run_json("--mode", "own:Guess", "--agent", "own:counts_up", "--model", "builtin:solver", "--limit", "5",
                       "--name", "own")  # fmt: skip
    assert outcome["summary"]["total"]["reward"]["scored"]["mean"] == 1.0
    assert {line["n_steps"] for line in lines_of("own")} <= {1, 2, 3}


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_run_killed_in_the_middle_is_resumed_and_counts_each_task_once(workers: str):
    arguments = (*SLOW_GAME, "--limit", "30", "--workers", workers)
    with started(*arguments, "--name", "killed") as process:
        wait_for_results("killed", 5)
        process.send_signal(signal.SIGKILL)
    before = len(lines_of("killed"))
    assert before < 30

    outcome = run_json(*arguments, "--resume", "killed")

    lines = lines_of("killed")
    assert outcome["complete"]
    assert len(lines) == len({line["rollout_id"] for line in lines}) == outcome["summary"]["total"]["n"] == 30
    assert outcome["summary"]["total"]["reward"]["scored"]["mean"] == 1.0


def test_ctrl_c_leaves_a_run_that_the_same_command_resumes():
    arguments = (*SLOW_GAME, "--limit", "30")
    with started(*arguments) as process:
        deadline = time.monotonic() + 30
        while not list(Path("results").glob("*/results.jsonl")) and time.monotonic() < deadline:
            time.sleep(0.02)
        (name,) = [path.name for path in Path("results").iterdir()]
        wait_for_results(name, 3)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 3, output
    assert f"--resume {name}" in output
    assert len(lines_of(name)) < 30

    outcome = run_json(*arguments, "--resume")
    assert outcome["run"] == name
    assert len(lines_of(name)) == outcome["summary"]["total"]["n"] == 30


def test_a_finished_run_is_not_run_again():
    arguments = ("--mode", "FrozenLake", "--model", "builtin:solver", "--limit", "3", "--name", "done")
    run(*arguments)
    lines = lines_of("done")
    outcome = run_json(*arguments, "--resume", "done")
    assert outcome["complete"]
    assert lines_of("done") == lines


def test_a_run_is_not_resumed_with_other_settings_nor_by_two_at_once():
    run("--mode", "FrozenLake", "--model", "builtin:solver", "--limit", "3", "--name", "done")
    told = run("--mode", "FrozenLake", "--model", "builtin:random", "--limit", "3", "--resume", "done", code=2).stderr
    assert "builtin:solver" in told
    assert "builtin:random" in told
    told = run("--mode", "FrozenLake", "--model", "builtin:solver", "--limit", "3", "--name", "done", code=2).stderr
    assert "--resume done" in told

    endless = ("--mode", "FrozenLake", "--model", "builtin:solver?latency=30", "--limit", "4")
    with started(*endless, "--name", "busy") as process:
        wait_for_results("busy", 0)
        told = run(*endless, "--resume", "busy", code=2).stderr
        assert "another process" in told
        process.send_signal(signal.SIGKILL)


@pytest.mark.parametrize("workers", ["1", pytest.param("2", marks=pytest.mark.soak)])
def test_a_spent_budget_drains_the_run_and_a_higher_one_completes_it(workers: str):
    arguments = ("--mode", "FrozenLake", "--model", "builtin:solver?latency=0.3", "--num-rollouts", "4",
                 "--limit", "20", "--workers", workers, "--name", "thrifty")  # fmt: skip
    outcome = run_json(*arguments, "--budget-tokens", "2000", code=3)
    assert "tokens" in outcome["stopped_by"]
    done = outcome["summary"]["total"]["n"]
    assert done < 20
    assert outcome["summary"]["total"]["statuses"].get("failed", 0) == 0

    outcome = run_json(*arguments, "--budget-tokens", "10000000", "--resume", "thrifty")
    assert outcome["complete"]
    assert outcome["summary"]["total"]["n"] == 20


def test_a_recorded_run_is_replayed_without_its_model():
    run("--mode", "math", "--model", "builtin:noisy?p=0.3", "--limit", "8", "--record", "calls.jsonl", "--name", "live")
    run("--mode", "math", "--model", "replay:calls.jsonl", "--limit", "8", "--name", "again", "--num-rollouts", "3")

    def story(name: str) -> dict[str, Any]:
        return {line["task_id"]: (line["reward"], line["output"], line["n_turns"]) for line in lines_of(name)}

    assert story("live") == story("again")


def test_settings_come_from_a_file_and_flags_go_over_them():
    Path("run.yaml").write_text("mode: FrozenLake\nmodel: builtin:random\nlimit: 4\nname: filed\nmax_turns: 2\n")
    shown = run_json("--config", "run.yaml", "--model", "builtin:solver", "--dry-run")
    assert (shown["config"]["model"], shown["config"]["max_turns"], shown["tasks"]) == ("builtin:solver", 2, 4)
    assert not Path("results").exists()

    run("--config", "run.yaml")
    assert len(lines_of("filed")) == 4
    assert {line["stop_reason"] for line in lines_of("filed")} <= {"max_turns", "terminated", "truncated"}
    run("--config", "results/filed/config.yaml", "--name", "like_it")
    assert [line["reward"] for line in lines_of("like_it")]


def test_a_pipe_gets_plain_lines_and_a_table_at_the_end():
    output = run("--mode", "FrozenLake", "--model", "builtin:solver", "--limit", "3", "--name", "piped").stdout
    assert output.count("✅") == 3
    assert "mean score" in output
    assert "results/piped/page.html" in output
    assert "\x1b[" not in output


def test_a_terminal_gets_a_live_picture():
    code, text = run_on_terminal([*OUTRIDER, "run", *SLOW_GAME, "--limit", "12"])
    assert code == 0, text
    assert "slowest running" in text
    assert "tokens/s" in text
    assert "mean score" in text
    assert "12/12" in text


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "give a --mode"),
        (["--mode", "maths"], "did you mean math?"),
        (["--mode", "math", "--data", "nowhere.jsonl"], "cannot read nowhere.jsonl"),
        (["--mode", "math", "--data", "noquestion.jsonl"], "line 2"),
        (["--mode", "math", "--data", "twice.jsonl"], "each id must be there once"),
        (["--mode", "math", "--data", "noanswer.jsonl"], "b2"),
        (["--mode", "math", "--scorer", "mathh"], "mathh"),
        (["--mode", "math", "--env", "calculater=false"], "calculator"),
        (["--mode", "py", "--env", "sandbox=auto"], "'auto' - at `$.sandbox`; give bubblewrap or subprocess"),
        (["--mode", "math", "--agent", "chatt"], "there is no agent 'chatt'"),
        (["--mode", "math", "--agent", "nowhere:agent"], "no module 'nowhere'"),
        (["--mode", "math", "--model", "builtin:solvr"], "solver"),
        (["--mode", "math", "--model", "replay:nowhere"], "nowhere"),
        (["--mode", "math", "--model", "gpt-4.1-2025-04-14"], "OPENAI_API_KEY is not set"),
        (["--mode", "math", "--resume"], "holds no run"),
        (["--mode", "math", "--num-rollouts", "0"], "num_rollouts is 0"),
        (["--mode", "math", "--budget-money", "1"], "prompt_price"),
        (["--mode", "math", "--model", "gpt-4.1-2025-04-14", "--base-url", "http://127.0.0.1:9/v1"], "127.0.0.1:9"),
    ],
)
def test_a_mistake_is_explained_before_anything_is_made(arguments: list[str], says: str):
    Path("noquestion.jsonl").write_text('{"id": 1, "question": "a", "answer": 1}\n{"id": 2, "answer": 2}\n')
    Path("noanswer.jsonl").write_text('{"id": "a1", "question": "a", "answer": 1}\n{"id": "b2", "question": "b"}\n')
    Path("twice.jsonl").write_text('{"id": 1, "question": "a", "answer": 1}\n{"id": 1, "question": "b", "answer": 2}\n')
    model = [] if "--model" in arguments or not arguments else ["--model", "builtin:solver"]
    told = run(*arguments, *model, code=2).stderr
    assert says in told
    assert not Path("results").exists()


def test_flags_of_machines_are_accepted_and_said_to_do_nothing_without_them():
    output = run("--mode", "FrozenLake", "--model", "builtin:solver", "--limit", "1", "--use-vm-pool", "--num-vms", "2",
                 "--screen-width", "800", "--headless").stdout  # fmt: skip
    assert "--use-vm-pool, --num-vms, --screen-width, --headless have no effect in mode FrozenLake" in output
