"""Real processes whose wall clock jumps under them, and a PostgreSQL server whose clock does."""

import asyncio
import os
import re
import shutil
import struct
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

import pytest

from outrider import RolloutConfig, RolloutRequest, open_store
from outrider.core.clock import utc
from outrider.core.status import AttemptStatus, RolloutStatus
from outrider.testing import eventually
from outrider.testing.history import check_store
from postgres_server import PostgresServer
from processes import OUTRIDER, line, program, tell

HERE = Path(__file__).parent

HOUR = 3600.0
N_ROLLOUTS = 8
ENGINES = pytest.mark.parametrize("engine", ["sqlite", "postgres"])


class JumpingClock:
    """The wall clock of the processes that are started with `variables`."""

    def __init__(self, folder: Path) -> None:
        self._library, self._file = folder / "clock_jumps.so", folder / "clock"
        source = HERE / "clock_jumps.c"
        command = ["gcc", "-Wall", "-Werror", "-O1", "-shared", "-fPIC", "-o", self._library, source, "-ldl", "-lm"]
        subprocess.run(command, check=True)
        self.ahead, self._asleep = 0.0, 0.0
        self._write()

    @property
    def variables(self) -> dict[str, str]:
        return {"LD_PRELOAD": str(self._library), "CLOCK_FILE": str(self._file)}

    def now(self) -> datetime:
        return utc(time.time() + self.ahead)

    def jump(self, seconds: float) -> None:
        """Set the wall clock."""
        self.ahead += seconds
        self._write()

    def suspend(self, seconds: float) -> None:
        """Let the machine sleep, as its processes see it when they wake: time has passed, monotonic time has not."""
        self._asleep += seconds
        self.jump(seconds)

    def _write(self) -> None:
        descriptor = os.open(self._file, os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, struct.pack("dd", self.ahead, self._asleep))
        finally:
            os.close(descriptor)


@pytest.fixture
def wall_clock() -> Iterator[JumpingClock]:
    folder = Path(tempfile.mkdtemp(prefix="outrider-clock-"))
    folder.chmod(0o755)  # a server runs as another user
    yield JumpingClock(folder)
    shutil.rmtree(folder)


def url_of(engine: str, request: pytest.FixtureRequest, folder: Path) -> str:
    return f"sqlite:///{folder / 'runs.db'}" if engine == "sqlite" else request.getfixturevalue("postgres_url")


@ENGINES
async def test_workers_keep_their_rollouts_when_the_clock_is_set_and_when_the_machine_sleeps(
    engine: str, request: pytest.FixtureRequest, tmp_path: Path, wall_clock: JumpingClock, history: Path
):
    url, file, log = url_of(engine, request, tmp_path), tmp_path / "go", tmp_path / "log"
    config = RolloutConfig(unresponsive_seconds=6, timeout_seconds=600)
    async with open_store(url) as store:
        await store.enqueue_many_rollouts(
            [RolloutRequest(input={"file": str(file)}, config=config) for _ in range(N_ROLLOUTS)]
        )
    command = [*OUTRIDER, "work", "--store", url, "--workers", "2", "--max-env-num-per-worker", "4", "--until-done"]
    command += ["--agent", "chaos_agents:wait_for_file", "--heartbeat-interval", "0.3"]
    variables = {**os.environ, **wall_clock.variables, "PYTHONPATH": str(HERE)}
    with log.open("wb") as output:
        working = subprocess.Popen(command, stdout=output, stderr=output, env=variables)
    try:
        # The test itself only reads: on one machine nobody's clock is another's.
        async with open_store(url, read_only=True) as store:

            async def heard_since() -> bool:
                rollouts = (await store.query_rollouts(status="running")).items
                found = [await store.get_latest_attempt(rollout.rollout_id) for rollout in rollouts]
                heard = [attempt.last_heartbeat_at for attempt in found if attempt is not None]
                return len(heard) == N_ROLLOUTS and min(heard) > since

            since = utc(0.0)
            await eventually(heard_since, within_seconds=60)
            for move in (wall_clock.jump, wall_clock.suspend, wall_clock.jump):
                move(HOUR)
                since = wall_clock.now() if engine == "sqlite" else utc(time.time())
                await eventually(heard_since, within_seconds=60)
            file.touch()
            assert await asyncio.to_thread(working.wait, 60) == 0
            for rollout in await store.query_rollouts():
                assert (rollout.status, rollout.n_attempts) == (RolloutStatus.SUCCEEDED, 1)
            await check_store(store, history)
    finally:
        working.kill()
        working.wait()
    # On PostgreSQL nobody looks at the clock of a worker.
    assert log.read_text().count("jumped forward by 3600.0 s") == (3 if engine == "sqlite" else 0)


HOLDER = """
import asyncio, sys
from outrider import open_store

async def main(url):
    async with open_store(url) as store:
        claimed = await store.dequeue_rollout(worker_id="holder")
        print("holding", flush=True)
        await asyncio.to_thread(sys.stdin.readline)

asyncio.run(main(*sys.argv[1:]))
"""

WAITER = """
import asyncio, sys
from outrider import open_store

async def main(url):
    async with open_store(url) as store:
        waits = asyncio.gather(store.dequeue_rollout(worker_id="waiter", wait=50), store.get_latest_resources(wait=1))
        await asyncio.sleep(0.1)
        print("waiting", flush=True)
        claimed, _ = await waits
        print(claimed and claimed.attempt.sequence_id, flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


@ENGINES
async def test_a_lease_ends_in_time_and_waits_return_when_the_clock_goes_back(
    engine: str, request: pytest.FixtureRequest, tmp_path: Path, wall_clock: JumpingClock, history: Path
):
    url = url_of(engine, request, tmp_path)
    async with open_store(url) as store:
        await store.enqueue_rollout("x", config=RolloutConfig(unresponsive_seconds=2))
    with program(HOLDER, url, **wall_clock.variables) as holder:
        assert await asyncio.to_thread(line, holder) == "holding"
        with program(WAITER, url, **wall_clock.variables) as waiter:
            assert await asyncio.to_thread(line, waiter) == "waiting"
            wall_clock.jump(-HOUR)
            holder.kill()
            assert await asyncio.to_thread(line, waiter) == "2"  # before its own wait is over
    async with open_store(url, read_only=True) as store:
        await check_store(store, history)


NEIGHBOUR = """
import asyncio, sys
from outrider import open_store

async def main(url):
    async with open_store(url) as store:
        claimed = await store.dequeue_rollout(worker_id="neighbour")
        while True:
            print(len(await store.heartbeat("neighbour", [claimed.attempt.attempt_id])), flush=True)
            await asyncio.to_thread(sys.stdin.readline)
            # Woken by a lease that ends; long enough for several looks at all leases.
            assert await store.dequeue_rollout(worker_id="neighbour", wait=2) is None

asyncio.run(main(*sys.argv[1:]))
"""


async def test_a_neighbour_whose_clock_is_ahead_takes_nobodys_lease(
    postgres_url: str, wall_clock: JumpingClock, history: Path
):
    wall_clock.jump(HOUR)
    async with open_store(postgres_url) as store:
        config = RolloutConfig(unresponsive_seconds=30, timeout_seconds=600)
        await store.enqueue_many_rollouts([RolloutRequest(input=n, config=config) for n in range(2)])
        claimed = await store.dequeue_rollout(worker_id="w")
        assert claimed is not None
        with program(NEIGHBOUR, postgres_url, **wall_clock.variables) as neighbour:
            assert await asyncio.to_thread(line, neighbour) == "0"
            for jump in (HOUR, -3 * HOUR):
                wall_clock.jump(jump)
                tell(neighbour)
                assert await asyncio.to_thread(line, neighbour) == "0"
        assert await store.heartbeat("w", [claimed.attempt.attempt_id]) == ()
        for rollout in await store.query_rollouts():
            attempt = await store.get_latest_attempt(rollout.rollout_id)
            assert attempt is not None
            assert (attempt.status, rollout.n_attempts) == (AttemptStatus.PREPARING, 1)
            assert abs(attempt.started_at - utc(time.time())) < timedelta(minutes=5)
        await check_store(store, history)


@pytest.fixture
def jumping_server(wall_clock: JumpingClock) -> Iterator[PostgresServer]:
    folder = Path(tempfile.mkdtemp(prefix="outrider-pg-"))
    server = PostgresServer(folder, variables=wall_clock.variables)
    try:
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


SWEEPER = """
import asyncio, logging, sys
from outrider import open_store

logging.basicConfig(stream=sys.stdout, format="%(message)s")

async def main(url):
    async with open_store(url) as store:
        print("sweeping", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
    print("done", flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


async def test_a_jump_of_the_servers_clock_costs_nobody_a_lease(
    jumping_server: PostgresServer, wall_clock: JumpingClock, history: Path, caplog: pytest.LogCaptureFixture
):
    url, said = jumping_server.new_url(), list[str]()
    async with open_store(url) as store:
        config = RolloutConfig(unresponsive_seconds=20, timeout_seconds=600)
        await store.enqueue_many_rollouts([RolloutRequest(input=n, config=config) for n in range(N_ROLLOUTS)])
        held = await store.dequeue_many_rollouts(N_ROLLOUTS, worker_id="w")
        ids = [claimed.attempt.attempt_id for claimed in held]
        with program(SWEEPER, url) as sweeper:
            assert await asyncio.to_thread(line, sweeper) == "sweeping"
            for jump in (HOUR, HOUR, -2 * HOUR):
                wall_clock.jump(jump)
                assert await store.heartbeat("w", ids) == ()

                await eventually(partial(_is_followed, url, wall_clock))
                assert await store.heartbeat("w", ids) == ()
            tell(sweeper)
            while (text := await asyncio.to_thread(line, sweeper)) != "done":
                said.append(text)
            for claimed in held:
                await store.update_attempt(claimed.rollout_id, claimed.attempt.attempt_id, status="succeeded")
        for rollout in await store.query_rollouts():
            assert (rollout.status, rollout.n_attempts) == (RolloutStatus.SUCCEEDED, 1)
        await check_store(store, history)
    # Each jump is followed by one of the two, which says so.
    said += [record.getMessage() for record in caplog.records]
    told = [re.match(r"the clock of the PostgreSQL server jumped (forward|back) by ([\d.]+) s", text) for text in said]
    jumps = [(one[1], round(float(one[2]) / HOUR, 2)) for one in told if one is not None]
    assert Counter(jumps) == {("forward", 1.0): 2, ("back", 2.0): 1}, said


async def _is_followed(url: str, wall_clock: JumpingClock) -> bool:
    """Whether the store knows how far its server's clock has jumped, which it would not if two had noted one jump."""
    import asyncpg

    address, _, schema = url.partition("&schema=")
    link = await asyncpg.connect(address)
    try:
        jumped = await link.fetchval(f"SELECT jumped FROM {schema}.lease_clock")
    finally:
        await link.close()
    return abs(jumped - wall_clock.ahead) < 1
