"""One pool for many processes: real machines (sandboxes), real processes, and what becomes of them when they die."""

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from leaks import no_leaks
from outrider.core.errors import InvalidInput, MachineError, MachineRefusal
from outrider.core.machine import MachineState
from outrider.pool import MachinePool, PoolConfig
from outrider.pool.computer import MoveTo
from outrider.pool.service.client import PoolClient
from outrider.pool.service.host import clean_up, hosted_pool
from outrider.pool.service.messages import Hello, Take, frame
from outrider.pool.service.place import PoolPlace, pools_on_host
from outrider.pool.spec import MachineSpec
from outrider.store import Store, open_store
from outrider.testing import eventually
from processes import is_running, line, program, tell
from promptly import within

SANDBOXES = MachineSpec(provider="process")

HOLDER = """
import asyncio, sys
from pathlib import Path
from outrider.core.errors import MachineError
from outrider.pool.service.client import PoolClient

async def main(path, holder):
    client = PoolClient(Path(path))
    (lease,) = await client.take(deadline=30, run="r", holder=holder)
    print(lease.machine_id, lease.epoch, flush=True)
    loop = asyncio.get_running_loop()
    while command := (await loop.run_in_executor(None, sys.stdin.readline)).strip():
        try:
            print((await lease.computer.execute(command)).stdout.strip() or "nothing", flush=True)
        except MachineError as exc:
            print("refused:", exc, flush=True)
    lease.release()
    await client.close()
    print("released", flush=True)

asyncio.run(main(*sys.argv[1:]))
"""
"""Takes a machine, then carries out each line it reads there; an empty line ends it."""

OWNER = """
import asyncio, sys
from pathlib import Path
from outrider.pool import PoolConfig
from outrider.pool.service.host import hosted_pool
from outrider.pool.spec import MachineSpec
from outrider.store import open_store

async def main(name, root, url):
    async with open_store(url) as store:
        config = PoolConfig(name=name, n_machines=2)
        async with hosted_pool(MachineSpec(provider="process"), config, journal=store, root=Path(root)) as pool:
            await pool.wait_until_ready(deadline=30)
            print("ready", flush=True)
            await asyncio.Event().wait()

asyncio.run(main(*sys.argv[1:]))
"""
"""Has a pool until it is killed."""


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return f"{request.node.name}-{os.getpid()}"


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "pools"
    yield folder
    assert not folder.exists() or list(folder.iterdir()) == [], "something is left of a pool"


@asynccontextmanager
async def pool_at(root: Path, name: str, n_machines: int = 1, store: Store | None = None) -> AsyncIterator[MachinePool]:
    config = PoolConfig(name=name, n_machines=n_machines)
    async with hosted_pool(SANDBOXES, config, journal=store, root=root) as pool:
        await pool.wait_until_ready(deadline=30)
        yield pool


@asynccontextmanager
async def client_of(root: Path, name: str) -> AsyncIterator[PoolClient]:
    client = PoolClient(PoolPlace(name, root=root).socket)
    try:
        yield client
    finally:
        await client.close()


@contextmanager
def holder(root: Path, name: str, who: str) -> Iterator[tuple[subprocess.Popen[str], str, int]]:
    with program(HOLDER, str(PoolPlace(name, root=root).socket), who) as process:
        machine_id, epoch = line(process).split()
        yield process, machine_id, int(epoch)


async def said(process: subprocess.Popen[str], command: str = "") -> str:
    tell(process, command)
    return await asyncio.to_thread(line, process)


async def started(root: Path, name: str, who: str) -> tuple[object, subprocess.Popen[str], str, int]:
    """A holder that has its machine; its context is to be left by whoever asked."""
    context = holder(root, name, who)
    return (context, *await asyncio.to_thread(context.__enter__))


async def state(pool: MachinePool, machine_id: str) -> MachineState:
    return next(machine.state for machine in pool.machines if machine.machine_id == machine_id)


async def test_processes_share_machines_one_after_the_other_and_each_finds_them_clean(root: Path, name: str):
    async with pool_at(root, name) as pool:
        for who in ("first", "second"):
            context, process, machine_id, _ = await started(root, name, who)
            assert pool.machines[0].holder == who
            assert await said(process, "ls ~ | grep left || true; touch ~/left") == "nothing"
            assert await said(process, "ls ~ | grep left") == "left"
            assert await said(process) == "released"
            context.__exit__(None, None, None)
        assert pool.statistics().n_leases == 2
        assert machine_id == pool.machines[0].machine_id


async def test_everything_a_computer_does_and_refuses_comes_through(root: Path, name: str):
    async with no_leaks(), pool_at(root, name), client_of(root, name) as client:
        (lease,) = await client.take(deadline=5, holder="me")
        computer = lease.computer
        assert computer.screen_size == (0, 0)
        assert lease.address["pid"]
        done = await computer.execute(["sh", "-c", "printf ü; echo no >&2; exit 3"])
        assert (done.returncode, done.stdout, done.stderr) == (3, "ü", "no\n")
        content = bytes(range(256)) * 10_000
        await computer.write_file("/tmp/data", content)
        assert await computer.read_file("/tmp/data") == content
        assert await computer.read_file("/tmp/none") is None
        assert await computer.terminal_text() is None
        await computer.launch(["touch", "/tmp/launched"])

        async def launched() -> bool:
            return await computer.read_file("/tmp/launched") is not None

        await eventually(launched)
        for attempt in (computer.screenshot(), computer.input([MoveTo(1, 2)]), computer.accessibility_tree()):
            with pytest.raises(MachineRefusal, match="has no screen"):
                await attempt
        with pytest.raises(MachineError) as caught:
            await computer.write_file("/proc/none", b"x")
        assert not isinstance(caught.value, MachineRefusal)
        several = [computer.execute(f"sleep 0.0{n}; echo {n}") for n in range(9)]
        assert [done.stdout.strip() for done in await asyncio.gather(*several)] == [str(n) for n in range(9)]
        lease.release()
        with pytest.raises(MachineError, match="the lease is over"):
            await computer.execute("true")


async def test_a_frozen_holder_whose_lease_was_revoked_is_refused_when_it_goes_on(root: Path, name: str):
    async with pool_at(root, name) as pool:
        context, frozen, machine_id, epoch = await started(root, name, "frozen")
        assert await said(frozen, "echo mine > ~/work; cat ~/work") == "mine"
        os.kill(frozen.pid, signal.SIGSTOP)
        try:
            pool.revoke(machine_id, "it has not answered")
            other_context, other, same, next_epoch = await started(root, name, "other")
            assert same == machine_id
            assert next_epoch > epoch
            assert await said(other, "ls ~ | grep -c work || true") == "0"
            tell(frozen, "echo intruded > ~/work; echo done")
        finally:
            os.kill(frozen.pid, signal.SIGCONT)
        refused = await asyncio.to_thread(line, frozen)
        assert refused.startswith("refused: the lease is over")
        assert "it has not answered" in refused
        assert await said(other, "ls ~ | grep -c work || true") == "0"
        for each in (context, other_context):
            each.__exit__(None, None, None)


async def test_the_pool_itself_refuses_an_old_epoch_whatever_the_client_believes(root: Path, name: str):
    async with no_leaks(), pool_at(root, name) as pool, client_of(root, name) as client:
        (old,) = await client.take(deadline=5, holder="me")
        pool.revoke(old.machine_id, "because")
        (new,) = await client.take(deadline=5, holder="me")
        connection = client._connection
        assert connection is not None
        await new.computer.execute("true")
        from outrider.pool.service.messages import Execute

        with pytest.raises(MachineError, match="the lease is over"):
            await connection.call(old.machine_id, old.epoch, Execute("touch ~/intruded", 5.0), 5.0)
        assert (await new.computer.execute("ls ~ | grep -c intruded || true")).stdout.strip() == "0"


async def test_a_holder_that_is_killed_gives_its_machine_back_within_a_second(root: Path, name: str, tmp_path: Path):
    async with open_store(f"sqlite:///{tmp_path}/s.db") as store, pool_at(root, name, 1, store) as pool:
        context, process, machine_id, epoch = await started(root, name, "doomed")
        tell(process, "touch ~/left; sleep 100")
        os.kill(process.pid, signal.SIGKILL)

        async def is_back() -> bool:
            return await state(pool, machine_id) is not MachineState.LEASED

        with within(1):
            await eventually(is_back)
        async with pool.acquire(deadline=10, holder="next") as lease:
            assert lease.machine_id == machine_id
            assert lease.epoch > epoch
            assert (await lease.computer.execute("ls ~ | grep -c left || true")).stdout.strip() == "0"
        moves = (await store.query_machine_moves(machine_id)).items
        assert any(move.reason == "the process of its holder doomed has gone" for move in moves)
        context.__exit__(None, None, None)


async def test_whoever_leaves_the_line_or_the_process_leaves_no_trace(root: Path, name: str):
    async with no_leaks(), pool_at(root, name) as pool, client_of(root, name) as client:
        (lease,) = await client.take(deadline=5, holder="me")
        waiting = asyncio.create_task(client.take(deadline=60, holder="another"))

        async def waits(n: int) -> bool:
            return pool.statistics().n_waiting == n

        await eventually(lambda: waits(1))
        waiting.cancel()
        await eventually(lambda: waits(0))
        with pytest.raises(MachineError, match=r"no machine for another after 0.05 s"):
            await client.take(deadline=0.05, holder="another")
        lease.release()
        for n_rounds in range(40):  # cancelled before, while and after it is granted
            taking = asyncio.create_task(client.take(deadline=60, holder="hasty"))
            for _ in range(n_rounds):
                await asyncio.sleep(0)
            if not taking.cancel():
                (granted,) = taking.result()
                granted.release()
        async with pool.acquire(deadline=10) as own:
            assert own.holder == ""
        await eventually(lambda: waits(0))


async def test_a_killed_pool_is_taken_over_by_the_next_and_whoever_waits_does_not_notice(
    root: Path, name: str, tmp_path: Path
):
    url = f"sqlite:///{tmp_path}/s.db"
    async with open_store(url) as store:
        client = PoolClient(PoolPlace(name, root=root).socket)
        with program(OWNER, name, str(root), url) as owner:
            assert await asyncio.to_thread(line, owner) == "ready"
            leases = await client.take(2, deadline=10, holder="me")
            await leases[0].computer.write_file("/tmp/mine", b"x")
            pids = {lease.machine_id: lease.address["pid"] for lease in leases}
            waiting = asyncio.create_task(client.take(deadline=60, holder="patient"))
            await asyncio.sleep(0)
            os.kill(owner.pid, signal.SIGKILL)
            assert "is gone" in await asyncio.wait_for(leases[0].wait_until_lost(), 5)
            with pytest.raises(MachineError, match="is gone"):
                await leases[1].computer.execute("true")
        facts = list(pools_on_host(root=root))
        assert [(found.name, found.n_machines) for found in facts] == [(name, 2)]
        assert not PoolPlace(name, root=root).is_alive()
        async with pool_at(root, name, 2, store) as pool:
            assert {machine.machine_id for machine in pool.machines} == set(pids)
            (lease,) = await asyncio.wait_for(waiting, 30)
            assert await lease.computer.read_file("/tmp/mine") is None
            assert PoolPlace(name, root=root).is_alive()
        await client.close()
        records = await store.query_machines(name)
        assert {record.state for record in records} == {MachineState.GONE}
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids.values())


async def test_what_a_killed_pool_has_left_can_be_cleaned_up_without_starting_it_again(
    root: Path, name: str, tmp_path: Path
):
    url = f"sqlite:///{tmp_path}/s.db"
    async with open_store(url) as store:
        with program(OWNER, name, str(root), url) as owner:
            assert await asyncio.to_thread(line, owner) == "ready"
            os.kill(owner.pid, signal.SIGKILL)
        pids = [record.address["pid"] for record in await store.query_machines(name)]
        assert len(pids) == 2
        (facts,) = pools_on_host(root=root)
        assert await clean_up(facts, journal=store, root=root) == (2, 0)
        assert not any(map(is_running, pids))
        assert list(pools_on_host(root=root)) == []


async def test_a_name_belongs_to_one_living_process(root: Path, name: str):
    async with pool_at(root, name):
        with pytest.raises(InvalidInput, match=f"process {os.getpid()} on this host has the pool"):
            async with pool_at(root, name):
                pass
        async with client_of(root, name) as client:
            assert (await client.standing()).name == name
    async with client_of(root, name) as client:
        with pytest.raises(MachineError, match="no pool answers"):
            await client.take(deadline=0.1)


async def test_machines_can_be_reset_and_replaced_from_another_process(root: Path, name: str):
    async with no_leaks(), pool_at(root, name) as pool, client_of(root, name) as client:
        (lease,) = await client.take(deadline=5, holder="me")
        await client.reset(lease.machine_id, "somebody asked")
        assert await asyncio.wait_for(lease.wait_until_lost(), 5) == "somebody asked"
        (again,) = await client.take(deadline=10)
        assert again.machine_id == lease.machine_id
        again.release()
        await client.reset(lease.machine_id, "worn", replace=True)
        (other,) = await client.take(deadline=10)
        assert other.machine_id != lease.machine_id
        with pytest.raises(InvalidInput, match="no machine 'nothing'"):
            await client.reset("nothing", "")
        assert (await client.standing()).statistics.n_leases == pool.statistics().n_leases


@pytest.mark.parametrize(
    "nonsense",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff" * 64,
        b"\x00\x00\x00\x02{}",
        frame({"type": "Take"}),
        frame(Hello(protocol=99)),
    ],
)
async def test_nonsense_ends_its_connection_and_nothing_else(root: Path, name: str, nonsense: bytes):
    async with no_leaks(), pool_at(root, name), client_of(root, name) as client:
        (lease,) = await client.take(deadline=5)
        reader, writer = await asyncio.open_unix_connection(PoolPlace(name, root=root).socket)
        writer.write(frame(Hello()) if nonsense.startswith(b"\x00") else b"")
        writer.write(nonsense)
        writer.write_eof()
        async with asyncio.timeout(30):
            while await reader.read(1000):
                pass
        writer.close()
        await lease.computer.execute("true")


async def test_a_client_that_takes_no_answers_holds_nobody_up(root: Path, name: str):
    async with no_leaks(), pool_at(root, name, 2) as pool, client_of(root, name) as client:
        _, writer = await asyncio.open_unix_connection(PoolPlace(name, root=root).socket)
        writer.write(frame(Hello()) + frame(Take(id=1, n=1, deadline=5, run="", holder="deaf")))

        async def is_held() -> bool:
            return any(machine.holder == "deaf" for machine in pool.machines)

        await eventually(is_held)
        (lease,) = await client.take(deadline=5)
        assert (await lease.computer.execute("echo well")).stdout == "well\n"
        writer.transport.abort()

        async def is_free() -> bool:
            return all(
                machine.state is not MachineState.LEASED or machine.holder != "deaf" for machine in pool.machines
            )

        with within(1):
            await eventually(is_free)


async def test_facts_of_a_pool_hold_what_the_next_needs(root: Path, name: str):
    async with pool_at(root, name, 2):
        place = PoolPlace(name, root=root)
        written = json.loads((place.folder / "pool.json").read_text())
        assert written["machines"]["provider"] == "process"
        assert oct(place.folder.stat().st_mode & 0o777) == "0o700"
        assert oct(place.socket.stat().st_mode & 0o777) == "0o600"
