"""The monitor of a real QEMU: commands, deadlines, events, and its end."""

import asyncio
import os
import signal

import pytest

from outrider.core.errors import MachineError
from outrider.pool.qemu.qmp import Event, Qmp, QmpRefused
from outrider.pool.qemu.vm import Vm
from qemu_guest import PROGRAM, require_qemu

BARE = [PROGRAM, "-M", "none", "-display", "none", "-nodefaults"]
"""A QEMU without a machine in it, which is up at once."""
N_AT_ONCE = 8


@pytest.fixture
async def bare(tmp_path):
    require_qemu()
    vm = await Vm.start(tmp_path, BARE)
    yield vm
    await vm.end()


async def test_a_command_is_answered_and_one_that_does_not_exist_is_refused(bare):
    assert (await bare.qmp.execute("query-version"))["qemu"]["major"] >= 7
    with pytest.raises(QmpRefused, match="no-such-thing"):
        await bare.qmp.execute("no-such-thing")


async def test_commands_at_once_get_their_own_answers(bare):
    names = ["query-status", "query-name", "query-kvm", "query-version"] * 5
    answers = await asyncio.gather(*(bare.qmp.execute(name) for name in names))
    assert [sorted(answer) for answer in answers[:4]] == [sorted(answer) for answer in answers[4:8]]
    assert "running" in answers[0]
    assert "qemu" in answers[3]


async def test_events_are_heard(bare, tmp_path):
    await bare.qmp.close()
    heard: list[Event] = []
    qmp = await Qmp.open(tmp_path / "qmp", seconds=10, hear=heard.append)
    await qmp.execute("stop")
    await qmp.execute("cont")
    assert [event["event"] for event in heard] == ["STOP", "RESUME"]
    await qmp.close()


async def test_a_qemu_that_does_not_answer_is_given_up_in_time_and_later_answers_are_not_mixed_up(bare):
    os.kill(bare.process.pid, signal.SIGSTOP)
    with pytest.raises(MachineError, match=r"did not answer query-name within 0\.2 s"):
        await bare.qmp.execute("query-name", seconds=0.2)
    os.kill(bare.process.pid, signal.SIGCONT)
    assert "qemu" in await bare.qmp.execute("query-version")


async def test_who_waits_for_a_qemu_that_is_killed_learns_it_at_once(bare):
    os.kill(bare.process.pid, signal.SIGSTOP)
    waiting = asyncio.create_task(bare.qmp.execute("query-name", seconds=60))
    await asyncio.sleep(0)
    os.kill(bare.process.pid, signal.SIGKILL)
    async with asyncio.timeout(30):
        with pytest.raises(MachineError, match=r"gone|broke"):
            await waiting
    with pytest.raises(MachineError, match=r"gone|broke"):
        await bare.qmp.execute("query-name")


async def test_nobody_at_the_socket_is_a_machine_error(tmp_path):
    with pytest.raises(MachineError, match="does not answer"):
        await Qmp.open(tmp_path / "qmp", seconds=1)


async def test_what_qemu_says_before_it_gives_up_is_told(tmp_path):
    require_qemu()
    with pytest.raises(MachineError, match="no-such-device"):
        await Vm.start(tmp_path, [PROGRAM, "-display", "none", "-device", "no-such-device"])


@pytest.mark.parametrize("n_turns", [4, pytest.param(20, marks=pytest.mark.soak)])
async def test_of_many_that_start_at_once_all_can_be_spoken_to(tmp_path, n_turns):
    require_qemu()

    async def start_and_end(number: int) -> None:
        folder = tmp_path / str(number)
        folder.mkdir()
        vm = await Vm.start(folder, BARE)
        await vm.qmp.execute("query-name")
        await vm.end()

    for turn in range(n_turns):
        await asyncio.gather(*(start_and_end(turn * N_AT_ONCE + n) for n in range(N_AT_ONCE)))
