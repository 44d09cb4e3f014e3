"""What holds of process machines alone: their walls, their bounds, their folder."""

import asyncio
import os
import signal
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from contract_machines.kinds import US
from outrider.core.errors import InvalidInput, MachineError
from outrider.pool.providers.process import Bounds, ProcessMachine, ProcessProvider
from outrider.pool.sandbox import walls
from outrider.testing import eventually

MIB = 2**20


@pytest.fixture
async def place() -> AsyncIterator[Path]:
    with tempfile.TemporaryDirectory(prefix="om-") as name:
        place = Path(name) / "machines"
        yield place
        provider = ProcessProvider(folder=place)
        left = await provider.owned(US)
        for address in left:
            if (machine := await provider.adopt(address["machine_id"], address)) is not None:
                await machine.destroy()
        assert left == ()
        assert list(Path(name).iterdir()) == []


@pytest.fixture
async def small(place: Path) -> AsyncIterator[ProcessMachine]:
    provider = ProcessProvider(folder=place, bounds=Bounds(disk_bytes=MIB, n_processes=20))
    machine = await provider.create("m-1", US)
    yield machine
    await machine.destroy()
    await provider.close()


async def output(machine: ProcessMachine, command: str) -> str:
    done = await machine.computer.execute(command, timeout=20)
    return done.stdout + done.stderr


async def test_it_sees_nothing_of_the_host_but_programs_that_it_cannot_change(small):
    here = str(Path(__file__).parent)
    assert "No such file" in await output(small, f"ls {here}")
    assert "Read-only" in await output(small, "touch /usr/mine /mine /etc/mine")
    assert (await output(small, "cat /proc/net/dev")).count(":") == 1  # the loopback device
    assert await output(small, "id -u") == "1000\n"
    assert str(os.getpid()) not in (await output(small, "ls /proc")).split()
    assert "denied" in await output(small, "echo 1 > /proc/sys/kernel/hostname; cat /proc/1/environ")
    refusal = await output(small, "kill -9 1")
    assert "not permitted" in refusal or os.geteuid() != 0  # made by another user, it is the same user, and in vain
    await small.probe()


async def test_its_disk_is_bounded(small):
    for place in ("~", "/tmp", "/dev/shm"):
        assert "No space left" in await output(small, f"head -c {2 * MIB} /dev/zero > {place}/big; rm {place}/big")


@pytest.mark.skipif(os.geteuid() != 0, reason="else the limit is that of the account")
async def test_its_processes_are_bounded(small):
    assert "fork" in await output(small, "for i in $(seq 100); do sleep 4730 & done")
    async with asyncio.timeout(20):
        with pytest.raises(MachineError):
            await small.probe()
        await small.reset()
        await small.probe()


async def test_a_command_is_killed_when_nobody_waits_for_it_any_more(small):
    asked = asyncio.create_task(small.computer.execute("touch /tmp/begun; sleep 4731"))

    async def begun() -> bool:
        return await small.computer.read_file("/tmp/begun") is not None

    await eventually(begun)
    asked.cancel()

    async def ended() -> bool:
        return (await small.computer.execute("pgrep -f '[s]leep 4731'")).returncode == 1

    await eventually(ended)


async def test_what_a_command_leaves_in_the_background_may_go_on_writing(small):
    loop = "(for i in $(seq 100); do echo more; sleep 0.01; done; touch /tmp/end) & echo done"
    assert "done\n" in (await small.computer.execute(loop)).stdout

    async def ended() -> bool:
        return await small.computer.read_file("/tmp/end") is not None

    await eventually(ended)


async def test_a_command_that_a_hanging_machine_did_not_take_is_not_carried_out_later(small):
    os.kill(small.address["pid"], signal.SIGSTOP)
    try:
        asked = asyncio.create_task(small.computer.execute("touch /tmp/late"))
        await asyncio.wait([asked], timeout=0.2)
        asked.cancel()
        await asyncio.wait([asked])
    finally:
        os.kill(small.address["pid"], signal.SIGCONT)
    await small.probe()
    assert await small.computer.read_file("/tmp/late") is None


async def test_an_id_is_taken_once_and_must_be_a_plain_name(place):
    provider = ProcessProvider(folder=place)
    machine = await provider.create("m-1", US)
    try:
        with pytest.raises(MachineError, match="already"):
            await provider.create("m-1", "others")
        await machine.probe()
        for name in ("", "..", "a/b", "-x", "a\n"):
            with pytest.raises(InvalidInput, match="machine id"):
                await provider.create(name, US)
        with pytest.raises(InvalidInput, match="too long"):
            await provider.create("x" * 100, US)
    finally:
        await machine.destroy()
        await provider.close()


async def test_a_folder_that_others_may_write_to_is_refused(place):
    place.mkdir()
    place.chmod(0o777)
    with pytest.raises(InvalidInput, match="this user alone"):
        await ProcessProvider(folder=place).check(1)
    place.rmdir()


async def test_a_machine_that_was_replaced_is_not_adopted_by_its_old_address(place):
    provider = ProcessProvider(folder=place)
    machine = await provider.create("m-1", US)
    old = dict(machine.address)
    await machine.reset()
    assert machine.address != old
    assert await provider.adopt("m-1", old) is None
    await machine.probe()
    await machine.destroy()
    await provider.close()


async def test_a_missing_or_broken_bubblewrap_is_named_and_leaves_nothing(place, tmp_path, monkeypatch):
    provider = ProcessProvider(folder=place)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InvalidInput, match="install the package `bubblewrap`"):
        await provider.check(1)
    with pytest.raises(MachineError, match="not installed"):
        await provider.create("m-1", US)
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho it is broken >&2\nexit 1\n")
    broken.chmod(0o755)
    with pytest.raises(MachineError, match="it is broken"):
        await provider.create("m-1", US)
    assert walls.bubblewrap() == str(broken)
    await provider.close()
