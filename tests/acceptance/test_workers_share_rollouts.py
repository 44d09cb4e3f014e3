"""The document that explains how workers share rollouts: each of its code blocks runs against Outrider."""

import asyncio
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from markdown import Block, blocks, execute
from outrider import Context, Runner, Store, open_store
from outrider.core.status import WorkerStatus

HERE = Path(__file__).parent
EXAMPLE = HERE.parent.parent / "examples" / "workers_share_rollouts"
DOCUMENT = HERE / "workers_share_rollouts.md"
BLOCKS = blocks(DOCUMENT)
WORDS = (
    "next_rollout = await store.dequeue_rollout",
    "await store.update_attempt(",
    "await asyncio.gather(*tasks)",
    "python -m src.create_test_rollouts",
    "python -m src.aglrunner",
    "Initializing 4 workers",
    "num_workers = 8",
    "max_rollouts_per_worker = 5",
    "poll_interval=2.0",
    "workers = await store.query_workers()",
    "attempts = await store.query_attempts(rollout_id)",
    "from multiprocessing import Process",
    'store.query_rollouts(status="preparing")',
)
"""Words by which each block of the document is found; a test below runs each."""

CLAIM = re.compile(
    r"[✅▶] Worker-(\d) processing rollout: (ro-\S+) \| Input: (\{'prompt': 'Task \d+', 'task_id': \d+\})"
)


@pytest.fixture
async def store(tmp_path: Path):
    async with open_store(f"sqlite:///{tmp_path / 'runs.db'}") as opened:
        for i in range(1, 21):
            await opened.enqueue_rollout({"prompt": f"Task {i}", "task_id": i})
        yield opened


async def agent(task: Any, ctx: Context) -> float:
    await asyncio.sleep(0.01)
    return 1.0


async def worker_task(worker_id: int, store: Store) -> None:
    """The document does not define it: a worker on its own connection, so that it may be in any process."""
    async with open_store(store.url) as mine:
        await Runner(mine, agent, worker_id=worker_id, max_rollouts=5).iter()


def block(words: str) -> Block:
    assert words in WORDS
    (found,) = [one for one in BLOCKS if words in one.code]
    return found


async def run(words: str, **names: Any) -> dict[str, Any]:
    one = block(words)
    names |= {"asyncio": asyncio, "worker_task": worker_task}
    await execute(one.code, names, f"{DOCUMENT.name}:{one.line}")
    return names


async def by_worker(store: Store) -> Counter[str | None]:
    return Counter(rollout.worker_id for rollout in await store.query_rollouts(status="succeeded"))


async def test_a_worker_takes_a_rollout_and_says_so(store: Store):
    runner = Runner(store, agent, worker_id=7)

    names = await run("next_rollout = await store.dequeue_rollout", store=store, self=runner)
    claimed = names["next_rollout"]
    assert claimed.input == {"prompt": "Task 1", "task_id": 1}

    names |= {"rollout_id": claimed.rollout_id, "attempt_id": claimed.attempt.attempt_id}
    await run("await store.update_attempt(", **names)
    assert (await store.query_attempts(claimed.rollout_id))[0].worker_id == "7"


async def test_four_workers_run_side_by_side(store: Store):
    await run("await asyncio.gather(*tasks)", store=store)
    assert await by_worker(store) == {"0": 5, "1": 5, "2": 5, "3": 5}


async def test_four_workers_run_as_processes(store: Store):
    await run("from multiprocessing import Process", store=store)
    assert await by_worker(store) == {"0": 5, "1": 5, "2": 5, "3": 5}


async def test_the_settings_are_settings_of_the_runner(store: Store):
    names = await run("num_workers = 8")
    names |= await run("max_rollouts_per_worker = 5")
    names |= await run("poll_interval=2.0")
    settings = {"max_rollouts": names["max_rollouts_per_worker"], "poll_interval": names["poll_interval"]}
    runners = [Runner(store, agent, worker_id=i, **settings) for i in range(names["num_workers"])]
    ids = [rollout.rollout_id for rollout in await store.query_rollouts()]

    async def stop() -> None:
        await store.wait_for_rollouts(ids, timeout=20)
        for runner in runners:
            runner.stop()

    async with asyncio.TaskGroup() as group:
        for runner in runners:
            group.create_task(runner.iter())
        group.create_task(stop())

    assert len(await by_worker(store)) == 8


async def test_workers_and_attempts_can_be_watched(store: Store, capsys: pytest.CaptureFixture[str]):
    claimed = await store.dequeue_rollout(worker_id=3)
    assert claimed is not None

    await run("workers = await store.query_workers()", store=store)
    await run("attempts = await store.query_attempts(rollout_id)", store=store, rollout_id=claimed.rollout_id)

    expected = [f"Worker-3: {WorkerStatus.BUSY}", f"Attempt {claimed.attempt.attempt_id} by Worker-3"]
    assert capsys.readouterr().out.splitlines() == expected


async def test_the_number_of_workers_can_follow_the_queue(store: Store):
    for n_claimed, expected in ((3, 3), (12, 10)):
        while (await store.query_rollouts(status="preparing")).total < n_claimed:
            await store.dequeue_rollout(worker_id=0)
        names = await run('store.query_rollouts(status="preparing")', store=store)
        assert names["num_workers"] == expected


def test_two_commands_share_a_durable_store(tmp_path: Path):
    for name in ("create_test_rollouts", "aglrunner"):
        (tmp_path / "src").mkdir(exist_ok=True)
        (tmp_path / "src" / f"{name}.py").write_text((EXAMPLE / "src" / f"{name}.py").read_text())

    output = {}
    for words in ("python -m src.create_test_rollouts", "python -m src.aglrunner"):
        command = block(words).code.split()
        done = subprocess.run(
            [sys.executable, *command[1:]], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=30
        )
        output[words] = done.stdout

    check_like_the_document(output["python -m src.aglrunner"])


def test_the_two_commands_of_outrider_print_what_the_document_shows(tmp_path: Path):
    outrider = [sys.executable, "-m", "outrider"]
    for arguments in (["enqueue", "--test", "20"], ["work", "--workers", "4", "--until-done"]):
        done = subprocess.run(
            [*outrider, *arguments], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60
        )
    check_like_the_document(done.stdout)


def check_like_the_document(printed: str) -> None:
    """The same lines at the start, and a claim in the document's form for each of the 20 rollouts."""
    shown = block("Initializing 4 workers").code.splitlines()
    assert printed.splitlines()[:3] == shown[:3]
    starts = [line for line in shown if line.startswith("🚀")]
    assert sorted(line for line in printed.splitlines() if line.startswith("🚀")) == starts
    claims = CLAIM.findall(printed)
    assert len({rollout_id for _, rollout_id, _ in claims}) == len(claims) == 20
    assert {text for _, _, text in claims} == {str({"prompt": f"Task {i}", "task_id": i}) for i in range(1, 21)}
    assert len({worker for worker, _, _ in claims}) > 1


def test_every_block_of_the_document_is_run_above():
    assert sorted(block(words).line for words in WORDS) == [one.line for one in BLOCKS]
