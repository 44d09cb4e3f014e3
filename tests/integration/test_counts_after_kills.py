"""Counts are exact after processes were killed that worked and added up at the same time."""

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from outrider.core.status import RolloutStatus
from outrider.store import open_store
from processes import line, program

WORKER = """
import asyncio, sys
from outrider.core.rollout import RolloutConfig, RolloutRequest
from outrider.store import open_store
import outrider.store.postgres.steps, outrider.store.sqlite.reads

outrider.store.postgres.steps.TALLIED_AT = outrider.store.sqlite.reads.TALLIED_AT = 1

async def main(url, name):
    config = RolloutConfig(unresponsive_seconds=3600)
    async with open_store(url) as store:
        async def work(slot):
            while True:
                tags = [f"t{n % 3}" if n % 4 else None for n in range(8)]
                await store.enqueue_many_rollouts([RolloutRequest(input=0, tag=tag, config=config) for tag in tags])
                for one in await store.dequeue_many_rollouts(6, worker_id=f"{name}-{slot}"):
                    await store.update_attempt(one.rollout_id, one.attempt.attempt_id, status="succeeded")
                print("round", flush=True)
        async def add_up():
            while True:
                await store._add_up()
                await asyncio.sleep(0.002)
        await asyncio.gather(*(work(slot) for slot in range(3)), add_up())

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
async def test_counts_are_exact_after_kills_amid_adding_up(engine: str, tmp_path: Path, request: pytest.FixtureRequest):
    url = f"sqlite:///{tmp_path}/runs.db" if engine == "sqlite" else request.getfixturevalue("postgres_url")
    with program(WORKER, url, "a") as first, program(WORKER, url, "b") as second:
        for process in (first, second):
            for _ in range(6):
                assert await asyncio.to_thread(line, process) == "round"
    async with open_store(url) as store:
        rollouts = (await store.query_rollouts()).items
        assert len(rollouts) >= 2 * 6 * 8
        plain = Counter(one.status for one in rollouts)
        assert (await store.statistics()).rollouts == {status: plain[status] for status in RolloutStatus}
        of_tags = Counter((one.status, one.tag) for one in rollouts)
        for status in RolloutStatus:
            for tag in ("t0", "t1", "t2"):
                found = await store.query_rollouts(status=status, tag=tag, limit=0)
                assert found.total == of_tags[status, tag]
