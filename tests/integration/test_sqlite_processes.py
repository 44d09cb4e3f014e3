"""Several real processes on one SQLite file: nothing is claimed twice, everyone wakes, and nothing breaks."""

import asyncio
import json
import sqlite3
import statistics
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from outrider.core.rollout import RolloutRequest
from outrider.store import open_store
from outrider.store.sql import migrations
from outrider.testing import eventually
from processes import CLAIMER, line, output_of, program, tell
from store_invariants import check_invariants


async def test_four_processes_claim_two_thousand_rollouts_once_each(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/runs.db"
    async with open_store(url) as store:
        await store.enqueue_many_rollouts([RolloutRequest(input=n) for n in range(2000)])
        with ExitStack() as stack:
            claimers = [stack.enter_context(program(CLAIMER, url, f"w{n}")) for n in range(4)]
            for claimer in claimers:
                assert line(claimer) == "ready"
            for claimer in claimers:
                tell(claimer)
            taken = [json.loads(await asyncio.to_thread(line, claimer)) for claimer in claimers]
        assert sorted(n for several in taken for n in several) == list(range(2000))
        assert (await store.statistics()).rollouts["succeeded"] == 2000
        assert all(several for several in taken), "every process got some"
        await check_invariants(store)
    assert list((tmp_path / "runs.db-bells").glob("*-*")) == []


WAITER = """
import asyncio, sys, time
from outrider.store import open_store

async def main(url, count):
    async with open_store(url) as store:
        for _ in range(int(count)):
            print("waiting", flush=True)
            claimed = await store.dequeue_rollout(worker_id="waiter", wait=30)
            print(time.time() - claimed.input, flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


async def test_a_process_that_waits_is_woken_by_another_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    url, n_times = f"sqlite:///{tmp_path}/runs.db", 21
    bells = tmp_path / "runs.db-bells"

    async def somebody_listens() -> bool:
        return bells.exists() and any(bells.glob("queue-*"))

    async with open_store(url) as store:
        with program(WAITER, url, str(n_times)) as waiter:
            latencies = []
            for _ in range(n_times):
                assert await asyncio.to_thread(line, waiter) == "waiting"
                await eventually(somebody_listens)
                await store.enqueue_rollout(time.time())
                latencies.append(float(await asyncio.to_thread(line, waiter)))
    median = statistics.median(latencies)
    with capsys.disabled():
        print(
            f"\nwoken by another process after {median * 1000:.1f} ms (median), {max(latencies) * 1000:.1f} ms (worst)"
        )
    assert median < 0.5


ENDER = """
import asyncio, sys
from outrider.store import open_store

async def main(url):
    async with open_store(url) as store:
        claimed = await store.dequeue_rollout(worker_id="ender", wait=30)
        print(claimed.attempt.attempt_id, flush=True)
        lost = await store.heartbeat("ender", [claimed.attempt.attempt_id], wait=30)
        print(lost[0].reason, flush=True)
        claimed = await store.dequeue_rollout(worker_id="ender", wait=30)
        await store.update_attempt(claimed.rollout_id, claimed.attempt.attempt_id, status="succeeded", reward=1)

asyncio.run(main(*sys.argv[1:]))
"""


async def test_a_cancel_and_an_end_are_heard_in_the_other_process(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/runs.db"
    async with open_store(url) as store:
        first, second = [await store.enqueue_rollout(n) for n in range(2)]
        with program(ENDER, url) as other:
            await asyncio.to_thread(line, other)
            await store.cancel_rollouts([first.rollout_id])
            assert await asyncio.to_thread(line, other) == "cancelled"
            (ended,) = await store.wait_for_rollouts([second.rollout_id], timeout=30)
            assert ended.reward == 1
            assert await asyncio.to_thread(other.wait, 30) == 0


IDLER = """
import asyncio, sys, time
from outrider.store import open_store

async def main(url):
    async with open_store(url) as store:
        await store.dequeue_rollout(worker_id="idler")
        before = time.process_time()
        await asyncio.gather(
            store.dequeue_rollout(worker_id="idler", wait=2),
            store.finished_after(wait=2),
            store.heartbeat("idler", wait=2),
        )
        print(time.process_time() - before)

asyncio.run(main(*sys.argv[1:]))
"""


def test_a_process_that_waits_uses_almost_no_cpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    used = float(output_of(IDLER, f"sqlite:///{tmp_path}/runs.db"))
    with capsys.disabled():
        print(f"\n2 s of waiting cost {used * 1000:.1f} ms of CPU")
    assert used < 0.1


OPENER = """
import asyncio, sys
from outrider.store import open_store

async def main(folder, name):
    for n in range(10):
        print("ready", flush=True)
        sys.stdin.readline()
        async with open_store(f"sqlite:///{folder}/runs{n}.db") as store:
            await store.enqueue_rollout(name)
            await store.statistics()
            await store.dequeue_rollout(worker_id=name)

asyncio.run(main(*sys.argv[1:]))
"""


def test_four_processes_that_open_a_new_file_together_make_one_store(tmp_path: Path):
    with ExitStack() as stack:
        openers = [stack.enter_context(program(OPENER, str(tmp_path), f"o{n}")) for n in range(4)]
        for _ in range(10):
            for opener in openers:
                assert line(opener) == "ready"
            for opener in openers:
                tell(opener)
        assert [opener.wait(60) for opener in openers] == [0] * 4
    for n in range(10):
        database = sqlite3.connect(tmp_path / f"runs{n}.db")
        assert database.execute("PRAGMA user_version").fetchone() == (len(migrations("sqlite")),)
        assert database.execute("SELECT count(*) FROM rollouts").fetchone() == (4,)
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        database.close()


OPEN_AND_CLOSE = """
import asyncio, sys
from outrider.store import open_store

async def main(url):
    for _ in range(40):
        async with open_store(url) as store:
            await store.query_rollouts()
            await store.enqueue_rollout(0)
            await store.statistics()

asyncio.run(main(*sys.argv[1:]))
"""


async def test_processes_that_come_and_go_disturb_nobody(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/runs.db"
    with ExitStack() as stack:
        others = [stack.enter_context(program(OPEN_AND_CLOSE, url)) for _ in range(4)]
        assert [await asyncio.to_thread(other.wait, 60) for other in others] == [0] * 4
    async with open_store(url) as store:
        assert (await store.query_rollouts(limit=0)).total == 160
