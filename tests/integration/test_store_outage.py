"""A database that is away: what runs waits for it, says so once, loses no finished work, and can still be stopped."""

import asyncio
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import asyncpg
import pytest

from disks import fill, small_disk
from machine_runs import folder_for_pools
from outrider.core.machine import MachineState
from outrider.core.rollout import RolloutRequest
from outrider.pool.service.client import PoolClient
from outrider.pool.service.place import PoolPlace
from outrider.store import Store, open_store
from outrider.testing import eventually
from postgres_load import PATIENT
from postgres_server import PostgresServer
from soaking import note_soak
from store_invariants import check_invariants

IMPATIENT = """
from outrider.store.postgres import links
links.RETRY_SECONDS = 0.3
"""
"""So that a short outage is like a long one: calls are given up at once instead of after ten seconds."""

COMMAND = """
from outrider.cli import main
main()
"""

AGENTS = """
import asyncio, os

async def wait_for_go(task, ctx):
    while not os.path.exists(task):
        await asyncio.sleep(0.02)
    return 1.0
"""

CONFIG = """
model: builtin:solver
rollout_batch_size: 8
train_env_manager:
  max_env_num_per_worker: 8
  num_env_groups: 2
  group_size: 4
  tags: [FrozenLake]
  num_groups_partition: [2]
"""


class Said:
    """What a command has said so far, and whether it says something in time."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self.lines: list[str] = []

    def until(self, words: str) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            if words in line:
                return
        raise AssertionError(f"ended with {self.process.wait()} without {words!r}: {''.join(self.lines)}")

    def to_the_end(self) -> str:
        assert self.process.stdout is not None
        self.lines += self.process.stdout
        return "".join(self.lines)


@contextmanager
def command(folder: Path, *arguments: str, is_impatient: bool = True) -> Iterator[Said]:
    """An `outrider` command in `folder`, which gives up calls at once if it is impatient, as its agents do."""
    preamble = IMPATIENT if is_impatient else ""
    (folder / "outage_agents.py").write_text(preamble + AGENTS)
    line = [sys.executable, "-u", "-c", preamble + COMMAND, *arguments]
    with subprocess.Popen(line, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            yield Said(process)
        finally:
            process.kill()


@contextmanager
def away(server: PostgresServer) -> Iterator[None]:
    server.stop("fast")
    try:
        yield
    finally:
        server._start()


async def at_work(store: Store, n: int) -> None:
    async def so_many() -> bool:
        return (await store.statistics()).rollouts["running"] >= n

    await eventually(so_many, within_seconds=60)


@pytest.mark.parametrize("kind", [["--workers", "2"], ["--tasks", "--workers", "2"]], ids=["processes", "tasks"])
async def test_workers_outlast_a_database_that_is_away_and_keep_finished_work(
    postgres_server: PostgresServer, postgres_url: str, tmp_path: Path, kind: list[str]
):
    go = tmp_path / "go"
    async with open_store(postgres_url) as store:
        await store.enqueue_many_rollouts([RolloutRequest(input=str(go), config=PATIENT) for _ in range(6)])
        work = ["work", "--store", postgres_url, "--agent", "outage_agents:wait_for_go", "--until-done", *kind]
        with command(tmp_path, *work) as said:
            await at_work(store, 2)
            with away(postgres_server):
                go.touch()
                await asyncio.to_thread(said.until, "the store is away since")
                await asyncio.sleep(2)  # long after every call was given up
                assert said.process.poll() is None
            await asyncio.to_thread(said.until, "the store is back after")
            text = await asyncio.to_thread(said.to_the_end)
            assert said.process.wait() == 0, text
        rollouts = await store.query_rollouts()
        assert [(one.status, one.reward, one.n_attempts) for one in rollouts] == [("succeeded", 1.0, 1)] * 6, text
        for words in ("is away since", "is back after"):
            own = [line for line in text.splitlines() if words in line and "Worker-" not in line]
            assert len(own) == 1, text
        await check_invariants(store)


@pytest.mark.soak
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "kind",
    [["--workers", "2"], ["--tasks", "--workers", "2"], ["--min-workers", "0", "--max-workers", "3"]],
    ids=["processes", "tasks", "elastic"],
)
async def test_workers_with_the_real_patience_outlast_a_database_that_is_away_for_half_a_minute(
    postgres_server: PostgresServer, postgres_url: str, tmp_path: Path, kind: list[str]
):
    """What ends meanwhile is kept; what waits in the queue is run afterwards."""
    go, n = tmp_path / "go", 24
    async with open_store(postgres_url) as store:
        await store.enqueue_many_rollouts([RolloutRequest(input=str(go), config=PATIENT) for _ in range(n)])
        work = ["work", "--store", postgres_url, "--agent", "outage_agents:wait_for_go", "--until-done", *kind]
        work += ["--max-env-num-per-worker", "4"]
        with command(tmp_path, *work, is_impatient=False) as said:
            await at_work(store, 4)
            with away(postgres_server):
                began = asyncio.get_running_loop().time()
                go.touch()
                await asyncio.to_thread(said.until, "the store is away since")
                await asyncio.sleep(began + 30 - asyncio.get_running_loop().time())
                assert said.process.poll() is None
            await asyncio.to_thread(said.until, "the store is back after")
            text = await asyncio.to_thread(said.to_the_end)
            assert said.process.wait() == 0, text
        rollouts = (await store.query_rollouts(limit=n)).items
        assert [(one.status, one.reward, one.n_attempts) for one in rollouts] == [("succeeded", 1.0, 1)] * n, text
        await check_invariants(store)
    note_soak("database away for half a minute", rollouts=n)


@pytest.fixture
def crowded_server() -> Iterator[PostgresServer]:
    """A server whose data and log of commits lie on a small disk."""
    folder = Path(tempfile.mkdtemp(prefix="outrider-pg-"))
    server = PostgresServer(folder, min_wal_size="32MB", max_wal_size="48MB")
    try:
        with small_disk(server.data, 160 << 20, n_files=5000):
            server.own(server.data)
            server.start()
            try:
                yield server
            finally:
                server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def break_down(server: PostgresServer) -> Path:
    """Fill its disk, and have it write its log of commits until it gives up; the file that takes the room."""
    link = await asyncpg.connect(server.url)  # there may be no room to open a connection later
    filler = fill(server.data)
    for _ in range(1000):
        with suppress(asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
            await link.execute("SELECT pg_logical_emit_message(false, 'a', 'b'); SELECT pg_switch_wal()")
        if link.is_closed():
            return filler
    raise AssertionError(f"the server finds room for its log: {(server.folder / 'log').read_text()[-3000:]}")


async def answers(server: PostgresServer) -> bool:
    """Whether it answers, after it was started again if it is down."""
    try:
        if not server.is_running:
            await asyncio.to_thread(server._start)
        await asyncio.to_thread(server.sql, "SELECT 1")
    except AssertionError:
        return False
    return True


async def test_workers_outlast_a_server_that_has_no_room_for_its_log(crowded_server: PostgresServer, tmp_path: Path):
    url, go, n = crowded_server.new_url(), tmp_path / "go", 12
    async with open_store(url) as store:
        await store.enqueue_many_rollouts([RolloutRequest(input=str(go), config=PATIENT) for _ in range(n)])
    work = ["work", "--store", url, "--agent", "outage_agents:wait_for_go", "--until-done", "--workers", "2"]
    with command(tmp_path, *work, "--max-env-num-per-worker", "4") as said:
        async with open_store(url, read_only=True) as store:
            await at_work(store, 4)
        filler = await break_down(crowded_server)
        go.touch()
        await asyncio.to_thread(said.until, "the store is away since")
        await asyncio.sleep(2)  # long after every call was given up
        assert said.process.poll() is None
        filler.unlink()
        await eventually(partial(answers, crowded_server))
        await asyncio.to_thread(said.until, "the store is back after")
        text = await asyncio.to_thread(said.to_the_end)
        assert said.process.wait() == 0, text
    async with open_store(url) as store:
        rollouts = await store.query_rollouts()
        assert [(one.status, one.reward, one.n_attempts) for one in rollouts] == [("succeeded", 1.0, 1)] * n, text
        await check_invariants(store)
    assert "PANIC" in (crowded_server.folder / "log").read_text()


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.soak), signal.SIGTERM])
async def test_a_signal_ends_workers_while_the_database_is_away(
    postgres_server: PostgresServer, postgres_url: str, tmp_path: Path, number: signal.Signals
):
    async with open_store(postgres_url):
        pass
    with command(tmp_path, "work", "--store", postgres_url, "--workers", "2") as said:
        await asyncio.to_thread(said.until, "Starting Worker-1")
        with away(postgres_server):
            await asyncio.to_thread(said.until, "the store is away since")
            said.process.send_signal(number)
            text = await asyncio.to_thread(said.to_the_end)
            assert said.process.wait() == 1, text
    assert "stopped while the store has been away" in text


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "--mode", "FrozenLake", "--limit", "60", "--model", "builtin:solver", "--workers", "2"],
        ["rollout", "-c", "frozen_lake.yaml", "--steps", "8", "--train-seconds", "0.3", "--workers", "2"],
    ],
    ids=lambda arguments: arguments[0],
)
async def test_runs_outlast_a_database_that_is_away(
    postgres_server: PostgresServer, postgres_url: str, tmp_path: Path, arguments: list[str]
):
    (tmp_path / "frozen_lake.yaml").write_text(CONFIG)
    with command(tmp_path, *arguments, "--store", postgres_url) as said:
        async with open_store(postgres_url) as store:

            async def has_begun() -> bool:
                return (await store.statistics()).rollouts["succeeded"] > 0

            await eventually(has_begun, within_seconds=60)
        with away(postgres_server):
            await asyncio.to_thread(said.until, "the store is away since")
        text = await asyncio.to_thread(said.to_the_end)
        assert said.process.wait() == 0, text
    assert "the store is back after" in text


async def test_a_command_that_asks_once_says_that_the_database_is_away(
    postgres_server: PostgresServer, postgres_url: str, tmp_path: Path
):
    async with open_store(postgres_url):
        pass
    with away(postgres_server):
        for asked in (["status"], ["enqueue", "--test", "1"]):
            with command(tmp_path, *asked, "--store", postgres_url) as said:
                text = await asyncio.to_thread(said.to_the_end)
                assert said.process.wait() == 2, text
            assert "check host and port, and that the server runs" in text


async def test_a_served_pool_outlasts_a_database_that_is_away(
    postgres_server: PostgresServer, postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A machine is lent when the journal knows of it; what was asked for meanwhile is had afterwards."""
    with folder_for_pools(monkeypatch):
        client = PoolClient(PoolPlace("desks").socket)
        serve = ["pool", "serve", "--name", "desks", "--provider-name", "process", "--num-vms", "1"]
        with command(tmp_path, *serve, "--store", postgres_url) as said:
            await asyncio.to_thread(said.until, "share it with")
            with away(postgres_server):
                asking = asyncio.create_task(client.take(deadline=60.0))
                await asyncio.to_thread(said.until, "the journal cannot be written")
                await asyncio.wait([asking], timeout=1.0)
                assert not asking.done()
            (lease,) = await asking
            lease.release()
            await client.close()
            said.process.send_signal(signal.SIGINT)
            text = await asyncio.to_thread(said.to_the_end)
            assert said.process.wait() == 0, text
    async with open_store(postgres_url) as store:
        (machine,) = await store.query_machines()
        assert (machine.state, machine.n_uses) == (MachineState.GONE, 1)
