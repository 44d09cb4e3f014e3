"""Containers of a real docker engine: what holds of them alone; tests/contract_machines has the rest."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Self

import pytest

from docker_engine import IMAGE, DockerEngine
from leaks import no_leaks
from outrider.core.errors import InvalidInput, MachineError
from outrider.pool.config import PoolConfig
from outrider.pool.docker import container
from outrider.pool.docker.command import OUTPUT_BYTES, Output
from outrider.pool.docker.container import DockerMachine, DockerSettings
from outrider.pool.pool import MachinePool
from outrider.pool.providers.docker import MIB, DockerProvider
from outrider.pool.registry import provider_of
from outrider.pool.spec import MachineSpec
from outrider.testing import eventually

US = f"docker-{os.getpid()}"


@asynccontextmanager
async def machine_of(socket: Path, **settings: object) -> AsyncIterator[DockerMachine]:
    async with no_leaks():
        provider = DockerProvider(IMAGE, DockerSettings(socket=str(socket), **settings))
        machine = await provider.create("m-1", US)
        try:
            yield machine
        finally:
            async with asyncio.timeout(20):
                await machine.destroy()
            assert await provider.owned(US) == ()
            await provider.close()


@pytest.fixture
async def machine(docker_engine: DockerEngine) -> AsyncIterator[DockerMachine]:
    async with machine_of(docker_engine.socket) as machine:
        yield machine


class Door:
    """A way to the engine that can be shut."""

    def __init__(self, engine: Path, path: Path) -> None:
        self.path = path
        self._engine = engine
        self._ways: set[asyncio.Task[None]] = set()
        self._open = asyncio.Event()
        self._open.set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_unix_server(self._lead, self.path)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.end()

    def hold(self) -> None:
        """From now on the engine seems to hang."""
        self._open.clear()

    def let(self) -> None:
        self._open.set()

    async def end(self) -> None:
        """From now on the engine seems to be gone."""
        self._server.close()
        for way in self._ways:
            way.cancel()
        await asyncio.gather(*self._ways, return_exceptions=True)
        self.path.unlink(missing_ok=True)

    async def _lead(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        way = asyncio.current_task()
        assert way is not None
        self._ways.add(way)
        engine_reader, engine_writer = await asyncio.open_unix_connection(self._engine)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pass_on(reader, engine_writer))
                group.create_task(self._pass_on(engine_reader, writer))
        except* OSError:
            pass
        finally:
            self._ways.discard(way)
            for each in (writer, engine_writer):
                each.transport.abort()

    async def _pass_on(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        while chunk := await source.read(65536):
            await self._open.wait()
            target.write(chunk)
            await target.drain()
        with suppress(OSError):
            target.write_eof()


async def test_a_command_is_killed_when_nobody_waits_for_it_any_more(machine: DockerMachine):
    asked = asyncio.create_task(machine.computer.execute("touch /tmp/begun; sleep 4731 & sleep 4731"))

    async def begun() -> bool:
        return await machine.computer.read_file("/tmp/begun") is not None

    await eventually(begun)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    assert (await machine.computer.execute("ps | grep '[s]leep 4731'")).returncode == 1


async def test_a_command_that_is_cancelled_at_any_moment_does_not_go_on(machine: DockerMachine):
    for delay in (0.0, 0.002, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16):
        asked = asyncio.create_task(machine.computer.execute("sleep 4734"))
        await asyncio.wait([asked], timeout=delay)
        asked.cancel()
        async with asyncio.timeout(30):
            with pytest.raises(asyncio.CancelledError):
                await asked
    assert (await machine.computer.execute("ps | grep '[s]leep 4734'")).returncode == 1


async def test_a_command_that_kills_its_own_shell_is_no_failure_of_the_machine(machine: DockerMachine):
    done = await machine.computer.execute("echo begun; kill -9 $PPID; sleep 0.1")
    assert (done.returncode, done.stdout) == (137, "begun\n")
    await machine.probe()


async def test_output_beyond_what_is_kept_is_dropped_and_the_exit_code_is_known(machine: DockerMachine):
    done = await machine.computer.execute(f"head -c {OUTPUT_BYTES + MIB} /dev/zero | tr '\\0' x; echo no >&2; exit 5")
    assert (done.returncode, len(done.stdout), done.stderr) == (5, OUTPUT_BYTES, "no\n")


def test_the_mark_at_the_end_of_an_output_is_found_however_it_is_cut():
    said = b"words\nmore words, no newlinemark 130\nfrom the background"
    for size in range(1, len(said) + 1):
        for most in (3, 27, 28, 1000):
            output = Output("mark", most)
            for start in range(0, len(said), size):
                output.hear(said[start : start + size])
            assert output.returncode == 130
            assert (bytes(output.kept), output.n_bytes) == (b"words\nmore words, no newline"[:most], 28)


async def test_paths_are_taken_as_commands_take_them(machine: DockerMachine):
    computer = machine.computer
    await computer.write_file("~/folder/-a b'$HOME", b"at home")
    assert (await computer.execute("cat ~/folder/*")).stdout == "at home"
    await computer.execute("echo here > here; echo odd > -n")
    assert await computer.read_file("here") == b"here\n"
    assert await computer.read_file("-n") == b"odd\n"


async def test_what_cannot_be_written_is_an_error_even_if_it_is_large(machine: DockerMachine):
    async with asyncio.timeout(30):
        with pytest.raises(MachineError, match=r"/tmp: .*directory"):
            await machine.computer.write_file("/tmp", b"x" * 5 * MIB)
    await machine.probe()


async def test_a_program_that_cannot_be_launched_is_an_error(machine: DockerMachine):
    with pytest.raises(MachineError, match="no-such-program"):
        await machine.computer.launch(["no-such-program"])
    await machine.probe()


async def test_a_container_has_no_network_and_no_more_than_its_settings_say(docker_engine: DockerEngine):
    settings = {"memory_bytes": 32 * MIB, "n_cpus": 0.5, "n_processes": 20, "user": "1000:1000"}
    async with machine_of(docker_engine.socket, **settings) as machine:
        execute = machine.computer.execute
        assert (await execute("id -u; ls /sys/class/net; hostname")).stdout == "1000\nlo\nm-1\n"
        taken = await execute("head -c 60000000 /dev/zero | tail -c 50000000 | wc -c")
        assert taken.stdout.strip() == "0"
        assert "fork" in (await execute("for i in $(seq 30); do sleep 4732 & done", timeout=20)).stderr
        told = docker_engine.ask("GET", f"/containers/{machine.address['container']}/json")
        assert told["HostConfig"]["NanoCpus"] == 500_000_000


async def test_a_paused_container_fails_its_probe_and_can_be_destroyed(
    docker_engine: DockerEngine, machine: DockerMachine
):
    await machine.probe()
    docker_engine.ask("POST", f"/containers/{machine.address['container']}/pause")
    async with asyncio.timeout(30):
        with pytest.raises(MachineError, match="paused"):
            await machine.probe()


async def test_an_engine_that_goes_away_is_the_death_of_its_machines(docker_engine: DockerEngine, tmp_path: Path):
    async with machine_of(docker_engine.socket), Door(docker_engine.socket, tmp_path / "door") as door:
        provider = DockerProvider(IMAGE, DockerSettings(socket=str(door.path)))
        (address,) = await provider.owned(US)
        machine = await provider.adopt("m-1", address)
        assert machine is not None
        watching = asyncio.create_task(machine.wait_until_dead())
        running = asyncio.create_task(machine.computer.execute("sleep 4733"))
        await machine.probe()
        assert not watching.done()
        await door.end()
        async with asyncio.timeout(30):
            assert "machine m-1" in await watching
            for attempt in (running, machine.probe(), machine.reset()):
                with pytest.raises(MachineError):
                    await attempt
        await provider.close()


async def test_an_engine_that_hangs_fails_the_probe_in_time(
    docker_engine: DockerEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(container, "PROBE_SECONDS", 0.3)
    async with Door(docker_engine.socket, tmp_path / "door") as door, machine_of(door.path) as machine:
        door.hold()
        async with asyncio.timeout(30):
            with pytest.raises(MachineError, match="does not answer"):
                await machine.probe()
        door.let()


async def test_what_a_killed_maker_has_not_started_is_found_and_removed(docker_engine: DockerEngine):
    provider = DockerProvider(IMAGE, DockerSettings(socket=str(docker_engine.socket)))
    recipe = provider._recipe("m-half", US)
    made = await provider._engine.ask("POST", "/containers/create", json=recipe.asked())
    (address,) = await provider.owned(US)
    assert address == {"machine_id": "m-half", "container": made["Id"]}
    assert await provider.adopt("m-half", address) is None
    assert await provider.owned(US) == ()
    await provider.close()


async def test_a_machine_that_was_replaced_is_not_adopted_by_its_old_address(
    docker_engine: DockerEngine, machine: DockerMachine
):
    provider = DockerProvider(IMAGE, DockerSettings(socket=str(docker_engine.socket)))
    old = dict(machine.address)
    await machine.reset()
    assert machine.address != old
    assert await provider.adopt("m-1", old) is None
    await provider.close()
    await machine.probe()


async def test_a_pool_hands_containers_on_clean_and_leaves_none(docker_engine: DockerEngine):
    spec = MachineSpec(provider="docker", image=IMAGE, settings={"socket": f"unix://{docker_engine.socket}"})
    config = PoolConfig(name=US, n_machines=2)
    async with no_leaks(), MachinePool(provider_of(spec), config) as pool:

        async def hold(number: int) -> str:
            async with pool.acquire(deadline=60, holder=str(number)) as lease:
                found = await lease.computer.execute("cat /tmp/left ~/left; echo left | tee /tmp/left > ~/left")
                return found.stdout

        assert await asyncio.gather(*map(hold, range(5))) == [""] * 5
    provider = provider_of(spec)
    assert await provider.owned(US) == ()
    await provider.close()


async def test_what_is_missing_is_named_before_anything_starts(docker_engine: DockerEngine, tmp_path: Path):
    socket = str(docker_engine.socket)
    for image, settings, told in (
        ("no-such/image:1", {"socket": socket}, r"no-such/image:1.*docker pull no-such/image:1"),
        (IMAGE, {"socket": str(tmp_path / "none")}, r"install a docker engine \(the package `docker.io`\)"),
        (IMAGE, {"socket": socket, "memory_bytes": 2**40}, r"3 containers of 1048576 MiB need 3145728 MiB .* 0 would"),
    ):
        provider = provider_of(MachineSpec(provider="docker", image=image, settings=settings))
        with pytest.raises(InvalidInput, match=told):
            await provider.check(3)
        await provider.close()
    provider = DockerProvider("no-such-image", DockerSettings(socket=socket))
    with pytest.raises(MachineError, match="No such image"):
        await provider.create("m-1", US)
    await provider.close()


async def test_a_container_that_cannot_be_started_is_removed(docker_engine: DockerEngine):
    provider = DockerProvider(IMAGE, DockerSettings(socket=str(docker_engine.socket), network="no-such-network"))
    with pytest.raises(MachineError, match="no-such-network"):
        await provider.create("m-1", US)
    assert await provider.owned(US) == ()
    await provider.close()


def test_a_spec_that_cannot_be_followed_is_refused(monkeypatch: pytest.MonkeyPatch):
    for spec, told in (
        (MachineSpec(provider="docker"), "needs an image"),
        (MachineSpec(provider="docker", image="a", snapshot="b"), "takes no snapshot"),
        (MachineSpec(provider="docker", image="a", width=800), "takes no width"),
        (MachineSpec(provider="docker", image="a", settings={"memory": 1}), "did you mean memory_bytes"),
        (MachineSpec(provider="docker", image="a", settings={"socket": "tcp://h:2375"}), "over a Unix socket"),
    ):
        with pytest.raises(InvalidInput, match=told):
            provider_of(spec)
    monkeypatch.setenv("DOCKER_HOST", "ssh://somewhere")
    with pytest.raises(InvalidInput, match="ssh://somewhere"):
        provider_of(MachineSpec(provider="docker", image="a"))
