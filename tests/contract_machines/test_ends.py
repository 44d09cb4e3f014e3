"""How machines of any kind are made, found again and ended; nothing is left of them."""

import asyncio
import json
import os
import signal

import pytest

from contract_machines.kinds import MAKING, US
from outrider.core.errors import MachineError
from outrider.testing import eventually
from processes import line, program

OWNER_PROGRAM = (
    MAKING
    + """
import asyncio, json, sys
from contextlib import suppress
from outrider.core.errors import MachineRefusal

async def main(source):
    provider = made(source)
    machine = await provider.create("m-left", sys.argv[2])
    with suppress(MachineRefusal):
        await machine.computer.write_file("/tmp/mine", b"mine")
    print(json.dumps(dict(machine.address)), flush=True)
    await asyncio.to_thread(sys.stdin.readline)

asyncio.run(main(sys.argv[1]))
"""
)
DESTROY_SECONDS = 30.0


async def test_a_machine_may_be_destroyed_twice_and_serves_nobody_then(provider, machine):
    assert [address["machine_id"] for address in await provider.owned(US)] == ["m-1"]
    assert await provider.owned("others") == ()
    async with asyncio.timeout(DESTROY_SECONDS):
        await machine.destroy()
        await machine.destroy()
    assert await provider.owned(US) == ()
    for attempt in (machine.computer.execute("true"), machine.computer.read_file("/etc/passwd"), machine.probe()):
        with pytest.raises(MachineError):
            await attempt


@pytest.mark.usefixtures("with_commands")
async def test_a_machine_may_be_destroyed_while_a_command_runs(machine):
    running = asyncio.create_task(machine.computer.execute("touch /tmp/begun; sleep 4720", timeout=60))

    async def begun() -> bool:
        return await machine.computer.read_file("/tmp/begun") is not None

    await eventually(begun)
    async with asyncio.timeout(DESTROY_SECONDS):
        await machine.destroy()
        with pytest.raises(MachineError):
            await running


async def test_a_machine_that_hangs_can_be_destroyed(machine, stopped):
    stopped(machine)
    async with asyncio.timeout(DESTROY_SECONDS):
        await machine.destroy()


@pytest.mark.usefixtures("by_each_product")
async def test_a_cancelled_creation_leaves_nothing(provider):
    for delay in (0.0, 0.001, 0.003, 0.01, 0.02, 0.04):
        creating = asyncio.create_task(provider.create("m-cancelled", US))
        await asyncio.wait([creating], timeout=delay)
        creating.cancel()
        try:
            async with asyncio.timeout(DESTROY_SECONDS):
                machine = await creating
        except asyncio.CancelledError:
            pass
        else:
            await machine.destroy()
        assert await provider.owned(US) == ()


@pytest.mark.usefixtures("by_each_product")
async def test_a_machine_is_found_when_its_owner_was_killed(kind, stage, provider):
    with program(OWNER_PROGRAM, stage.source, US) as owner:
        address = json.loads(line(owner))
        assert await provider.owned(US) == (address,)
        owner.kill()
        owner.wait()
    if not kind.outlives_owner:

        async def gone() -> bool:
            for left in await provider.owned(US):
                assert await provider.adopt(left["machine_id"], left) is None
            return await provider.owned(US) == ()

        await eventually(gone)
        return
    (found,) = await provider.owned(US)
    assert found == address
    assert await provider.adopt("m-other", found) is None
    machine = await provider.adopt("m-left", found)
    await machine.probe()
    assert await machine.computer.read_file("/tmp/mine") == b"mine"
    assert machine.address == address
    await machine.reset()
    assert await machine.computer.read_file("/tmp/mine") is None
    await machine.destroy()
    assert await provider.adopt("m-left", address) is None


async def test_a_machine_that_died_is_not_adopted_and_nothing_is_left_of_it(stage, provider):
    with program(OWNER_PROGRAM, stage.source, US) as owner:
        address = json.loads(line(owner))
        owner.kill()
        owner.wait()
    machine = await provider.adopt("m-left", address)
    if machine is not None:
        for pid in stage.parts(machine):
            os.kill(pid, signal.SIGKILL)
        async with asyncio.timeout(DESTROY_SECONDS):
            await machine.wait_until_dead()
            await machine.destroy()
    assert await provider.adopt("m-left", address) is None
    assert await provider.owned(US) == ()
