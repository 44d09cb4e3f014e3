"""Agents that do the worst they can to their worker, beside innocent ones, under `outrider work --until-done`.

Whatever they do, the same holds: the command ends by itself, in time, with a truthful exit code; each of them is failed
with a message that names the cause, or did no harm; every innocent rollout succeeds, and no failure is counted against
it; no process is left.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pytest

from agents_from_hell import (
    AGENTS,
    DIE,
    FALL_SILENT,
    HANG,
    IN_ONE_PROCESS,
    IN_THREADS,
    LITTER,
    RAISE,
    check_hell,
    enqueue_hell,
    none_left,
)
from outrider import RolloutConfig, open_store
from outrider.core.status import RolloutStatus, WorkerStatus
from outrider.runner.worker import DRAIN_SECONDS
from outrider.testing import eventually
from processes import OUTRIDER
from promptly import within


@pytest.mark.parametrize(
    ("function", "hell", "n_slots"),
    [
        ("agent", RAISE, 4),
        ("agent", DIE, 4),
        ("agent", HANG, 4),
        ("agent", FALL_SILENT, 1),
        ("agent", LITTER, 4),
        ("plain", IN_THREADS, 4),
        ("agent", IN_ONE_PROCESS, 0),
    ],
    ids=["raise", "die", "hang", "silent", "litter", "threads", "tasks"],
)
async def test_whatever_an_agent_does_the_work_is_done_and_nobody_else_is_harmed(
    tmp_path: Path, function: str, hell: dict[str, str | None], n_slots: int
):
    (tmp_path / "hell.py").write_text(AGENTS)
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    async with open_store(url) as store:
        innocent = await enqueue_hell(store, hell)

    ended = work(url, tmp_path, f"hell:{function}", n_slots)

    async with open_store(url) as store:
        await check_hell(store, hell, innocent)
    assert ended.returncode == 0, ended.stderr
    assert len(ended.stdout) < 3_000_000, "more is shown than anybody can read"


def work(url: str, folder: Path, agent: str, n_slots: int) -> "subprocess.CompletedProcess[str]":
    """Work until all is done, with short limits; fails if a process is left behind. No slots: as tasks."""
    mark = f"HELL={uuid4()}"
    command = [
        sys.executable,
        "-m",
        "outrider",
        "work",
        "--until-done",
        "--allow-failures",
        "--agent",
        agent,
        "--store",
        url,
    ]
    command += ["--workers", "2", "--max-block", "4", "--grace", "1"]
    command += ["--max-env-num-per-worker", str(n_slots)] if n_slots else ["--max-env-num-per-worker", "4", "--tasks"]
    name, _, value = mark.partition("=")
    try:
        return subprocess.run(
            command,
            check=False,
            cwd=folder,
            env={**os.environ, name: value},
            capture_output=True,
            text=True,
            timeout=100,
        )
    finally:
        none_left(mark)


@pytest.mark.parametrize("agent", ["blocks", "swallows_cancellation"])
async def test_a_command_that_is_told_to_end_does_so_soon_after_its_grace_and_hands_back_what_it_ran(
    tmp_path: Path, agent: str
):
    (tmp_path / "hell.py").write_text(AGENTS)
    url, mark = f"sqlite:///{tmp_path / 'runs.db'}", uuid4().hex
    command = [*OUTRIDER, "work", "--store", url, "--agent", "hell:agent", "--workers", "1", "--grace", "0.5"]
    async with open_store(url) as store:
        rollout = await store.enqueue_rollout({"hell": agent}, config=RolloutConfig(max_attempts=1))

        async def runs() -> bool:
            return len(await store.query_workers(status=WorkerStatus.BUSY)) == 1

        with subprocess.Popen(
            [*command, "--max-block", "600"],
            stdout=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "HELL": mark},
        ) as working:
            try:
                await eventually(runs, within_seconds=30)
                working.send_signal(signal.SIGTERM)
                with within(0.5 + DRAIN_SECONDS + 3.0):
                    said, _ = await asyncio.to_thread(working.communicate, timeout=60)
            finally:
                working.kill()
                none_left(f"HELL={mark}")
        (left,) = await store.query_rollouts()
    assert "did not end within" in said
    assert (left.rollout_id, left.status, left.n_failures) == (rollout.rollout_id, RolloutStatus.REQUEUING, 0)


BLOCKING = """
import time
from pathlib import Path

async def first_task(task, ctx):
    if ctx.rollout.rollout_id.endswith("/t0:0"):
        time.sleep(1e9)
    return 1.0

async def once(task, ctx):
    try:
        Path("blocked").touch(exist_ok=False)
    except FileExistsError:
        return 1.0
    time.sleep(1e9)
"""

LAKE = """
rollout_batch_size: 4
steps: 1
model: builtin:random
agent: blocking:once
train_env_manager: {num_env_groups: 2, group_size: 2, tags: [FrozenLake]}
"""


def ended(*command: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    """A command that ends by itself, and leaves no process behind."""
    (folder / "blocking.py").write_text(BLOCKING)
    mark = uuid4().hex
    try:
        return subprocess.run(
            [*OUTRIDER, *command],
            check=False,
            cwd=folder,
            env={**os.environ, "HELL": mark},
            capture_output=True,
            text=True,
            timeout=60,
        )
    finally:
        none_left(f"HELL={mark}")


def test_a_run_without_workers_replaces_the_one_that_an_agent_blocks(tmp_path: Path):
    lines = (json.dumps({"id": f"t{n}", "question": f"What is {n} + 1?", "answer": f"{n + 1}"}) for n in range(4))
    (tmp_path / "sums.jsonl").write_text("\n".join(lines))
    sums = ("--mode", "math", "--data", "sums.jsonl", "--model", "builtin:solver", "--num-rollouts", "4")
    done = ended(
        "run",
        *sums,
        "--agent",
        "blocking:first_task",
        "--max-block",
        "2",
        "--max-attempts",
        "1",
        "--json",
        folder=tmp_path,
    )

    assert done.returncode == 1, done.stderr
    outcome = json.loads(done.stdout)
    assert outcome["complete"]
    assert outcome["summary"]["total"]["statuses"] == {"failed": 1, "succeeded": 3}
    (cause,) = outcome["summary"]["causes"]
    assert cause["kind"] == "LoopBlocked"
    assert "blocking.py:7 in first_task" in cause["message"]


async def test_a_rollout_command_without_workers_replaces_the_one_that_an_agent_blocks(tmp_path: Path):
    (tmp_path / "lake.yaml").write_text(LAKE)
    done = ended("rollout", "-c", "lake.yaml", "--max-block", "2", "--name", "lake", "--json", folder=tmp_path)

    assert done.returncode == 0, done.stderr
    outcome = json.loads(done.stdout.splitlines()[-1])
    assert (outcome["complete"], outcome["steps"]) == (True, 1)
    async with open_store(f"sqlite:///{tmp_path}/results/lake/store.db") as store:
        rollouts = await store.query_rollouts()
        attempts = [attempt for one in rollouts for attempt in await store.query_attempts(one.rollout_id)]
    kinds = [attempt.failure.kind for attempt in attempts if attempt.failure is not None]
    assert kinds.count("LoopBlocked") == 1
    assert sum(rollout.n_failures for rollout in rollouts) == 1, "the others in that worker went back"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("agent", ["blocks", "blocks_in_a_library"])
async def test_workers_that_are_tasks_end_on_a_signal_though_an_agent_blocks_their_loop(
    tmp_path: Path, agent: str, number: signal.Signals
):
    (tmp_path / "hell.py").write_text(AGENTS)
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    command = [*OUTRIDER, "work", "--tasks", "--store", url, "--agent", "hell:agent", "--workers", "1", "--grace", "2"]
    async with open_store(url) as store:
        rollout = await store.enqueue_rollout({"hell": agent})

        async def runs() -> bool:
            return len(await store.query_workers(status=WorkerStatus.BUSY)) == 1

        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path
        ) as working:
            try:
                await eventually(runs, within_seconds=30)
                working.send_signal(number)
                with within(2 + DRAIN_SECONDS + 1.0):
                    _, said = await asyncio.to_thread(working.communicate, timeout=60)
            finally:
                working.kill()
    assert working.returncode == 3, said
    assert f"rollout {rollout.rollout_id} blocks" in said
    assert "hell.py:" in said
    assert f"in {agent}" in said
