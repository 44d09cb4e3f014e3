"""A PostgreSQL server that neither answers nor closes its connections, for longer than its leases last."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ended_once import check_ended_once, enqueue_traced
from outrider import RolloutConfig, RolloutRequest, open_store
from outrider.testing import eventually
from outrider.testing.history import check_store
from postgres_server import PostgresServer, started_server
from processes import stop
from soaking import note_soak

HERE = Path(__file__).parent
LEASE_SECONDS = 2.0
HANG_SECONDS = 3 * LEASE_SECONDS
N_SLOTS, N_SHORT = 8, 120


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    with started_server() as server:
        yield server


@contextmanager
def hanging(server: PostgresServer) -> Iterator[None]:
    """Nothing of the server runs in the block: it takes connections, by the kernel, and answers none."""
    stopped = [server.pid]
    try:
        stop(server.pid)  # so that it starts no more
        for child in Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split():
            stopped.append(int(child))
            stop(int(child))
        yield
    finally:
        for pid in reversed(stopped):
            os.kill(pid, signal.SIGCONT)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("kind", "n_hangs"),
    [
        (["--workers", "2"], 1),
        pytest.param(["--tasks", "--workers", "2"], 3, marks=pytest.mark.soak),
        pytest.param(["--min-workers", "0", "--max-workers", "3"], 3, marks=pytest.mark.soak),
    ],
    ids=["processes", "tasks", "elastic"],
)
async def test_a_server_that_hangs_past_all_leases_loses_and_doubles_nothing(
    own_server: PostgresServer, tmp_path: Path, history: Path, kind: list[str], n_hangs: int
):
    url, trace, log = own_server.new_url(), tmp_path / "trace", tmp_path / "log"
    config = RolloutConfig(unresponsive_seconds=LEASE_SECONDS, max_attempts=100)
    lasting = {"trace": str(trace), "seconds": 2 * LEASE_SECONDS}
    async with open_store(url) as store:
        long = await store.enqueue_many_rollouts([RolloutRequest(input=lasting, config=config)] * N_SLOTS * n_hangs)
        ids = [rollout.rollout_id for rollout in long]
        ids += await enqueue_traced(store, trace, N_SHORT, LEASE_SECONDS)
    command = [sys.executable, "-m", "outrider", "work", "--store", url, *kind, "--until-done"]
    command += ["--agent", "chaos_agents:trace", "--max-env-num-per-worker", str(N_SLOTS // 2)]
    with log.open("wb") as output, subprocess.Popen(command, cwd=HERE, stdout=output, stderr=output) as working:
        try:
            for _ in range(n_hangs):
                async with open_store(url, read_only=True) as store:

                    async def are_running() -> bool:
                        assert working.poll() is None, log.read_text()
                        return (await store.statistics()).rollouts["running"] >= N_SLOTS // 2

                    await eventually(are_running, within_seconds=90)
                with hanging(own_server):
                    await asyncio.sleep(HANG_SECONDS)
                    assert working.poll() is None, log.read_text()
            assert await asyncio.to_thread(working.wait, 120) == 0, log.read_text()
        finally:
            working.kill()
    async with open_store(url) as store:
        await check_ended_once(store, ids, trace)
        n_calls = await check_store(store, history)
    assert "the store is away since" in log.read_text()
    assert "Traceback" not in log.read_text()
    note_soak("database hung", hangs=n_hangs, rollouts=len(ids), calls_checked=n_calls)
