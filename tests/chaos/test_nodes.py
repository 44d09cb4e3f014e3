"""Nodes of a Ray cluster and workers on them, lost at random: nothing is lost, nothing ends twice."""

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from ended_once import check_ended_once, enqueue_traced
from outrider import Store, open_store
from outrider.core.status import RolloutStatus, WorkerStatus
from outrider.testing.history import check_store
from ray_nodes import RayNodes, descendants, ray_nodes
from soaking import note_soak, time_limit, until

N_AHEAD = 40
N_WORKERS = 4
LEASE_SECONDS = 3.0
LOSS_SECONDS = 150.0
SOAK_SECONDS = 120.0
HERE = Path(__file__).parent


@contextmanager
def work(store_url: str, address: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "outrider", "work", "--store", store_url, "--ray", address, "--until-done"]
    command += [
        "--workers",
        str(N_WORKERS),
        "--agent",
        "chaos_agents:trace_after_a_while",
        "--max-env-num-per-worker",
        "2",
    ]
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output, cwd=HERE) as driver:
        try:
            yield driver
        finally:
            driver.kill()


class Harm:
    """Kills workers, and now and then the node that is not the head, while they work."""

    def __init__(self, store: Store, nodes: RayNodes) -> None:
        self._store = store
        self._nodes = nodes
        self._rng = random.Random(1)
        self.done: Counter[str] = Counter()

    async def lose_a_node(self) -> None:
        """While both nodes are at work, after workers were killed."""
        n_killed = 0
        while True:
            await asyncio.sleep(self._rng.uniform(0.3, 0.6))
            head, other = await self._busy()
            crowded = [pid for pids in (head, other) if len(pids) > 1 for pid in pids]
            if head and other and n_killed:
                await asyncio.to_thread(self._nodes.lose)
                self.done["node lost"] += 1
                return
            if crowded:
                with suppress(ProcessLookupError):
                    os.kill(self._rng.choice(crowded), signal.SIGKILL)
                    self.done["worker killed"] += 1
                    n_killed += 1

    async def _busy(self) -> list[list[int]]:
        """The processes of workers that hold leases, by node."""
        workers = await self._store.query_workers(status=WorkerStatus.BUSY)
        pids = {int(worker.worker_id.rpartition(":")[2]) for worker in workers}
        return [sorted(pids.intersection(descendants(raylet))) for raylet in self._nodes.raylets]


async def feed(store: Store, trace: Path, ids: list[str], is_over: asyncio.Event) -> None:
    """Have enough to do at any time, however fast this machine is."""
    while not is_over.is_set():
        if (await store.statistics()).rollouts[RolloutStatus.QUEUING] < N_AHEAD:
            ids += await enqueue_traced(store, trace, N_AHEAD, LEASE_SECONDS)
        await asyncio.sleep(0.2)


async def check_losing(postgres_url: str, tmp_path: Path, history: Path, losses: Iterable[int]) -> None:
    trace, log, ids = tmp_path / "trace", tmp_path / "log", list[str]()
    async with open_store(postgres_url) as store:
        is_over = asyncio.Event()
        feeding = asyncio.create_task(feed(store, trace, ids, is_over))
        with ray_nodes(2) as nodes, work(postgres_url, nodes.address, log) as driver:
            harm = Harm(store, nodes)
            try:
                for _ in losses:
                    async with asyncio.timeout(LOSS_SECONDS):
                        await harm.lose_a_node()
                is_over.set()
                await feeding
                code = await asyncio.to_thread(driver.wait, 60)
            finally:
                is_over.set()
                print(harm.done, log.read_text()[-3000:])
        assert code == 0
        await check_ended_once(store, ids, trace)
        n_calls = await check_store(store, history)
    note_soak("nodes lost", rollouts=len(ids), deaths=harm.done.total(), calls_checked=n_calls)


async def test_nothing_is_lost_and_nothing_ends_twice_when_a_node_is_lost(
    postgres_url: str, tmp_path: Path, history: Path
):
    await check_losing(postgres_url, tmp_path, history, range(1))


@pytest.mark.soak
@pytest.mark.timeout(time_limit(SOAK_SECONDS))
async def test_nothing_is_lost_and_nothing_ends_twice_however_many_nodes_are_lost(
    postgres_url: str, tmp_path: Path, history: Path
):
    await check_losing(postgres_url, tmp_path, history, until(SOAK_SECONDS))
