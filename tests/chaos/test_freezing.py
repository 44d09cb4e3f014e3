"""A worker that is frozen past its lease and wakes up again: what it writes then is refused."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from outrider import RolloutConfig, open_store
from outrider.core.status import AttemptStatus
from outrider.testing.history import check_store
from processes import line, program, tell

N_CALLS_AT_LEAST = 10

LATE_WRITER = """
import asyncio, sys
from outrider import LeaseLost, open_store

async def main(url):
    async with open_store(url) as store:
        claimed = await store.dequeue_rollout(worker_id="frozen", wait=10)
        print("claimed", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        for write in (
            store.update_attempt(claimed.rollout_id, claimed.attempt.attempt_id, status="succeeded", reward=1.0),
            store.append_events(claimed.rollout_id, claimed.attempt.attempt_id, []),
        ):
            try:
                await write
                print("written", flush=True)
            except LeaseLost as exc:
                print("refused:", exc.reason, flush=True)
        print("lost:", [lease.reason for lease in await store.heartbeat("frozen", [claimed.attempt.attempt_id])])

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
async def test_the_late_writes_of_a_frozen_worker_are_refused(
    engine: str, request: pytest.FixtureRequest, tmp_path: Path, history: Path
):
    url = f"sqlite:///{tmp_path / 'runs.db'}" if engine == "sqlite" else request.getfixturevalue("postgres_url")
    async with open_store(url) as store:
        config = RolloutConfig(unresponsive_seconds=1.0, max_attempts=2)
        rollout = await store.enqueue_rollout("task", config=config)
        with program(LATE_WRITER, url) as frozen:
            assert await asyncio.to_thread(line, frozen) == "claimed"
            os.kill(frozen.pid, signal.SIGSTOP)
            again = await store.dequeue_rollout(worker_id="awake", wait=10)
            assert again is not None
            await store.update_attempt(again.rollout_id, again.attempt.attempt_id, status="succeeded", reward=2.0)
            os.kill(frozen.pid, signal.SIGCONT)
            tell(frozen)
            said = [await asyncio.to_thread(line, frozen) for _ in range(3)]

        assert said == ["refused: unresponsive", "refused: unresponsive", "lost: ['unresponsive']"]
        ended = await store.get_rollout_by_id(rollout.rollout_id)
        assert ended is not None
        assert (ended.reward, ended.worker_id) == (2.0, "awake")
        statuses = [attempt.status for attempt in await store.query_attempts(rollout.rollout_id)]
        assert statuses == [AttemptStatus.UNRESPONSIVE, AttemptStatus.SUCCEEDED]
        assert await check_store(store, history) > N_CALLS_AT_LEAST
