"""`outrider ls` and `outrider compare`, over runs made for real."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from processes import OUTRIDER
from warm_outrider import run_warm

LAKE = """
rollout_batch_size: 4
model: builtin:random
train_env_manager: {num_env_groups: 2, group_size: 2, tags: [FrozenLake]}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OUTRIDER_STORE", raising=False)


def outrider(*arguments: str, code: int = 0) -> Any:
    done = run_warm(*arguments, seconds=60)
    assert done.returncode == code, (done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    return done


def test_runs_are_listed_with_how_far_they_are():
    assert "holds no run" in outrider("ls").stdout
    Path("lake.yaml").write_text(LAKE)
    outrider("run", "--mode", "math", "--limit", "3", "--model", "builtin:solver", "--name", "whole")
    outrider("run", "--mode", "math", "--limit", "3", "--model", "builtin:solver", "--name", "part",
             "--num-rollouts", "1", "--budget-tokens", "1", code=3)  # fmt: skip
    outrider("rollout", "-c", "lake.yaml", "--steps", "2", "--name", "trained")
    Path("results/broken").mkdir()
    Path("results/broken/plan.json").write_text("{")

    runs = {one["name"]: one for one in json.loads(outrider("ls", "--json").stdout)}
    assert (runs["whole"]["state"], runs["whole"]["n_done"], runs["whole"]["mean_reward"]) == ("done", 3, 1.0)
    assert (runs["part"]["state"], runs["part"]["n_planned"]) == ("stopped", 3)
    assert runs["part"]["n_done"] < 3
    assert (runs["trained"]["command"], runs["trained"]["n_done"], runs["trained"]["n_planned"]) == ("rollout", 2, 2)
    assert runs["broken"]["state"] == "unreadable"
    shown = outrider("ls").stdout
    assert "run math builtin:solver" in shown
    assert "results/broken/plan.json is not the plan of a run" in shown
    assert "elsewhere holds no run" in outrider("ls", "--output-dir", "elsewhere").stdout


def test_runs_are_listed_without_the_extra_that_training_needs():
    outrider("run", "--mode", "math", "--limit", "3", "--model", "builtin:solver", "--name", "whole")
    Path("results/trained").mkdir()
    Path("results/trained/rollout.yaml").write_text(LAKE)
    command = "import sys; sys.modules['numpy'] = None; from outrider.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", command, "ls", "--json"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    runs = {one["name"]: one for one in json.loads(done.stdout)}
    assert runs["whole"]["state"] == "done"
    assert "numpy" in runs["trained"]["trouble"] or "[train]" in runs["trained"]["trouble"]


@pytest.mark.parametrize("command", ["run", "rollout"])
async def test_a_run_is_listed_as_running_until_its_process_ends(command: str):
    Path("lake.yaml").write_text(LAKE)
    slow = "builtin:random?latency=0.2"
    arguments = {
        "run": ("--mode", "FrozenLake", "--limit", "500", "--model", slow),
        "rollout": ("-c", "lake.yaml", "--steps", "500", "--model", slow),
    }[command]
    process = await asyncio.create_subprocess_exec(
        *OUTRIDER, command, *arguments, "--name", "slow", stdout=subprocess.DEVNULL
    )

    def states() -> list[str]:
        return [one["state"] for one in json.loads(outrider("ls", "--json").stdout)]

    async with asyncio.timeout(60):
        while await asyncio.to_thread(states) != ["running"]:
            await asyncio.sleep(0.1)
    process.kill()
    await process.wait()
    assert await asyncio.to_thread(states) == ["stopped"]


def test_two_runs_are_compared_task_by_task():
    game = ("--mode", "FrozenLake", "--limit", "12", "--seed", "1")
    outrider("run", *game, "--model", "builtin:solver", "--name", "solver")
    outrider("run", *game, "--model", "builtin:random", "--name", "random", "--env", "max_steps=2")
    told = json.loads(outrider("compare", "random", "results/solver", "--json").stdout)
    found = told["comparison"]
    assert (found["mean_b"], len(found["tasks"])) == (1.0, 12)
    assert found["difference"]["mean"] == pytest.approx(1.0 - found["mean_a"])
    assert found["n_better"] + found["n_worse"] + found["n_same"] == 12

    shown = outrider("compare", "random", "solver", "--html", "compared.html").stdout
    assert "solver against random" in shown
    assert "Tasks that differ most" in shown
    assert "compared.html is ready to open" in shown
    assert "Tasks that differ most" not in outrider("compare", "random", "solver", "--limit", "0").stdout
    page = Path("compared.html").read_text()
    assert page.count("<tr>") == 13
    assert "script" not in page


def test_a_task_that_is_not_the_same_in_both_runs_is_said_and_the_order_of_a_file_does_not_matter():
    rows = [{"id": n, "question": f"What is {n} + 1?", "answer": n + 1} for n in range(1, 5)]
    others = [
        *rows[:1],
        *({**row, "question": f"What is {row['id']} * 2?", "answer": row["id"] * 2} for row in rows[1:]),
    ]
    files = {"one": rows, "reversed": rows[::-1], "other": others}
    for name, content in files.items():
        Path(f"{name}.jsonl").write_text("\n".join(map(json.dumps, content)))
        outrider("run", "--mode", "math", "--data", f"{name}.jsonl", "--model", "builtin:solver", "--name", name)
    found = json.loads(outrider("compare", "one", "reversed", "--json").stdout)["comparison"]
    assert (len(found["tasks"]), found["differing"]) == (4, [])
    assert "4, 4 of them the same in both" in (shown := outrider("compare", "one", "reversed").stdout)
    assert "another question" not in shown
    shown = outrider("compare", "one", "other", "--html", "c.html").stdout
    assert "4, 1 of them the same in both" in shown
    warning = "3 of 4 pairs have the same id, but another question or expected answer, such as 2; 1 match"
    assert warning in shown
    assert warning in Path("c.html").read_text()
    assert json.loads(outrider("compare", "one", "other", "--json").stdout)["comparison"]["differing"] == [
        "2",
        "3",
        "4",
    ]
    for name in files:  # as results were before they had a digest
        path = Path("results", name, "results.jsonl")
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        path.write_text("".join(f"{json.dumps({**line, 'task_digest': ''})}\n" for line in lines))
    assert "4, 1 of them the same in both" in outrider("compare", "one", "other").stdout


def test_runs_without_a_common_task_or_that_are_not_there_are_refused():
    outrider("run", "--mode", "FrozenLake", "--limit", "2", "--model", "builtin:solver", "--name", "lake")
    outrider("run", "--mode", "math", "--limit", "2", "--model", "builtin:solver", "--name", "math")
    assert "no task that both have scored" in outrider("compare", "lake", "math", code=2).stderr
    assert "there are 2 runs, the nearest results/math" in outrider("compare", "lake", "maht", code=2).stderr
