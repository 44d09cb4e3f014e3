"""Real virtual machines, run by software: QEMU with the small guest that is built from the host's kernel."""

import asyncio
import json
import os
import shutil
import signal
import struct
import sys
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest
from msgspec.structs import replace

from outrider.core.errors import InvalidInput, MachineError
from outrider.pool.computer import Key, MoveTo, Press, Text
from outrider.pool.processes import Process, named, start_time
from outrider.pool.providers.qemu import Accelerator, QemuProvider, QemuSettings, Reset
from outrider.pool.qemu.image import Image
from promptly import within
from qemu_guest import CREATE_AND_STAY, guest_image, until

OWNER = f"tests-{os.getpid()}"
"""Other tests may run beside these."""

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="session")
def image() -> Image:
    return guest_image()


@pytest.fixture
def settings(image, tmp_path) -> QemuSettings:
    return QemuSettings(image=image.folder, accelerator=Accelerator.TCG, folder=str(tmp_path / "machines"))


@pytest.fixture
async def provider(settings) -> AsyncIterator[QemuProvider]:
    """Whatever a test makes, nothing of it may be left."""
    yield QemuProvider(settings)
    left = [pid for pid, arguments in named("outrider:") if any(settings.folder in one for one in arguments)]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left == []
    assert list(Path(settings.folder).glob("*/*")) == []


@pytest.fixture
async def machine(provider):
    made = await provider.create("m-1", OWNER)
    yield made
    await made.destroy()


# The holder's view


async def test_commands_files_and_programs(machine):
    computer = machine.computer
    done = await computer.execute("echo out; echo err >&2; exit 3")
    assert (done.returncode, done.stdout, done.stderr) == (3, "out\n", "err\n")
    assert (await computer.execute(["echo", "a  b", "$HOME", "it's"])).stdout == "a  b $HOME it's\n"
    assert (await computer.execute("echo begun; sleep 60", timeout=0.5)).returncode is None
    assert (await computer.execute("pidof sleep")).stdout == ""
    data = bytes(range(256)) * 1000 + b"\n"
    await computer.write_file("/home/user/new folder/ü.bin", data)
    assert await computer.read_file("/home/user/new folder/ü.bin") == data
    assert await computer.read_file("/home/user/none") is None
    with pytest.raises(MachineError, match="/home/user cannot be read"):
        await computer.read_file("/home/user")
    with pytest.raises(MachineError, match="cannot be written"):
        await computer.write_file("/home/user", b"a folder already")
    await computer.launch("sleep 0.1; echo late > /tmp/launched; sleep 60")
    await until(lambda: computer.read_file("/tmp/launched"))


async def test_requests_at_once_are_answered_as_they_end(machine):
    computer = machine.computer
    slow = asyncio.create_task(computer.execute("while [ ! -e /tmp/go ]; do sleep 0.05; done; echo went"))
    quick = await asyncio.gather(*(computer.execute(f"echo {number}") for number in range(5)))
    assert [one.stdout for one in quick] == [f"{number}\n" for number in range(5)]
    assert not slow.done()
    await computer.write_file("/tmp/go", b"")
    assert (await slow).stdout == "went\n"


async def test_a_screenshot_is_a_png_of_the_size_that_was_told(machine):
    picture = await machine.computer.screenshot()
    assert picture.startswith(PNG)
    assert struct.unpack(">II", picture[16:24]) == machine.computer.screen_size != (0, 0)


async def test_typed_text_reaches_the_guest_however_long_it_is(machine):
    computer = machine.computer
    text = "The quick brown Fox; 'jumps' over {13} \"lazy\" dogs & <cats>: 100%! " * 4
    await computer.input(
        [Text("cat > /tmp/typed\n"), Text(f"{text}\n"), Key("ctrl"), Text("d"), Key("ctrl", down=False)]
    )
    await until(lambda: computer.execute("! pidof cat"))
    await until(lambda: computer.read_file("/tmp/typed"))
    assert await computer.read_file("/tmp/typed") == f"{text}\n".encode()
    assert "lazy" in (await computer.terminal_text() or "")


async def test_the_pointer_goes_where_it_is_sent(machine):
    computer = machine.computer
    await computer.launch("cat /dev/input/event1 > /tmp/events")
    await until(lambda: computer.execute("pidof cat"))
    await computer.input([MoveTo(360, 100), Press(), Press(down=False)])

    async def events() -> list[tuple[int, int, int]]:
        data = await computer.read_file("/tmp/events") or b""
        return [fields[2:] for fields in struct.iter_unpack("qqHHi", data[: len(data) // 24 * 24])]

    async def all_came() -> bool:
        return (1, 0x110, 0) in await events()

    await until(all_came)
    moved = {code: value for kind, code, value in await events() if kind == 3}
    width, height = computer.screen_size
    assert (moved[0] * width // 0x8000, moved[1] * height // 0x8000) == (360, 100)
    assert (1, 0x110, 1) in await events()


async def test_what_cannot_be_typed_is_refused_before_anything_is(machine):
    before = await machine.computer.terminal_text()
    with pytest.raises(MachineError, match="'é'"):
        await machine.computer.input([Text("caf"), Text("é")])
    assert await machine.computer.terminal_text() == before
    with pytest.raises(MachineError, match="no accessibility tree"):
        await machine.computer.accessibility_tree()


# Reset


@pytest.mark.parametrize("reset", list(Reset))
async def test_a_reset_leaves_no_trace(provider, settings, reset):
    machine = await QemuProvider(replace(settings, reset=reset)).create("m-1", OWNER)
    watch = asyncio.create_task(machine.wait_until_dead())
    chances = set()
    try:
        clean = await machine.computer.screenshot()
        for number in range(2):
            computer = machine.computer
            await machine.plant("a/b c")
            assert await machine.has("a/b c")
            await computer.launch("while :; do echo spam > /dev/tty1; sleep 0.1; done")
            await computer.input([Text("rm -rf /bin/ls; echo half a li"), Key("shift")])
            half = asyncio.create_task(computer.execute("sleep 300", timeout=300))
            await asyncio.sleep(0)
            await machine.reset()
            with pytest.raises(MachineError):
                await half
            assert not await machine.has("a/b c")
            assert await machine.computer.screenshot() == clean, number
            assert "sleep" not in (await machine.computer.execute("ps; ls /tmp /home/user")).stdout
            assert abs(int((await machine.computer.execute("date +%s")).stdout) - time.time()) < 10
            assert (await machine.computer.execute("hostname")).stdout == "m-1\n"
            chances.add((await machine.computer.execute("head -c 16 /dev/urandom | base64")).stdout)
            await machine.probe()
        assert len(chances) == 2
        assert not watch.done(), "a reset is no death"
        os.kill(machine.address["pid"], signal.SIGKILL)
        async with asyncio.timeout(30):
            assert "has ended" in await watch
    finally:
        watch.cancel()
        await machine.destroy()


async def test_clones_made_at_once_have_nothing_in_common_but_their_beginning(provider):
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(provider.create(f"m-{number}", OWNER)) for number in range(3)]
    machines = [task.result() for task in tasks]
    try:
        await machines[0].plant("mine")
        assert [await machine.has("mine") for machine in machines] == [True, False, False]
        chances = [(await one.computer.execute("head -c 16 /dev/urandom | base64")).stdout for one in machines]
        assert len(set(chances)) == 3
        assert {address["machine_id"] for address in await provider.owned(OWNER)} == {"m-0", "m-1", "m-2"}
    finally:
        await asyncio.gather(*(machine.destroy() for machine in machines))


# Death


async def test_a_killed_machine_is_noticed_at_once(machine):
    watch = asyncio.create_task(machine.wait_until_dead())
    await asyncio.sleep(0)
    with within(2):
        os.kill(machine.address["pid"], signal.SIGKILL)
        assert "has ended" in await watch
    with pytest.raises(MachineError):
        await machine.probe()
    with pytest.raises(MachineError):
        await machine.computer.screenshot()


@pytest.mark.parametrize(
    ("command", "reason"),
    [("echo c > /proc/sysrq-trigger", "panicked"), ("reboot -f", "guest-reset"), ("poweroff -f", "guest-shutdown")],
)
async def test_a_guest_that_panics_or_goes_down_is_noticed_with_the_reason(machine, command, reason):
    watch = asyncio.create_task(machine.wait_until_dead())
    await machine.computer.launch(command)
    async with asyncio.timeout(20):
        assert reason in await watch


async def test_a_frozen_guest_fails_the_probe_in_time_and_can_be_reset(provider, settings):
    machine = await QemuProvider(replace(settings, probe_seconds=1.0)).create("m-1", OWNER)
    try:
        await machine._running.qmp.execute("stop")
        with within(5), pytest.raises(MachineError, match="within 1 s"):
            await machine.probe()
        await machine.reset()
        await until(lambda: _probed(machine))
    finally:
        await machine.destroy()


async def _probed(machine) -> bool:
    with suppress(MachineError):
        await machine.probe()
        return True
    return False


async def test_a_guest_that_never_starts_is_an_error_that_says_so(provider, settings, image, tmp_path):
    broken = tmp_path / "broken"
    shutil.copytree(image.folder, broken, ignore=shutil.ignore_patterns("snapshots"))
    (broken / "initrd").write_bytes(b"")
    with pytest.raises(MachineError, match="has not started: the guest"):
        await QemuProvider(replace(settings, image=broken)).create("m-1", OWNER)
    assert list((broken / "snapshots").iterdir()) == []


# The end, and finding again


async def test_destroy_leaves_nothing_and_once_more_changes_nothing(provider, settings):
    machine = await provider.create("m-1", OWNER)
    pid = machine.address["pid"]
    folder = Path(machine.address["folder"])
    assert start_time(pid) is not None
    assert folder.is_dir()
    await machine.destroy()
    assert start_time(pid) is None
    assert not folder.exists()
    await machine.destroy()
    assert await provider.owned(OWNER) == ()
    await provider.close()
    assert not Path(settings.folder).exists()


async def test_a_creation_that_is_cancelled_leaves_nothing_however_far_it_has_come(provider, machine):
    for milliseconds in (0, 1, 10, 30, 100, 200, 400):
        making = asyncio.create_task(provider.create("m-2", OWNER))
        await asyncio.wait([making], timeout=milliseconds / 1000)
        if making.done():
            await making.result().destroy()
            break
        making.cancel()
        with pytest.raises(asyncio.CancelledError):
            await making
        assert [address["machine_id"] for address in await provider.owned(OWNER)] == ["m-1"]


async def test_a_machine_outlives_its_owner_and_is_adopted(provider, settings):
    await (await provider.create("m-0", OWNER)).destroy()  # the snapshot is there
    owner = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", CREATE_AND_STAY, str(settings.image), str(settings.folder), OWNER),
        stdout=asyncio.subprocess.PIPE,
    )
    assert owner.stdout is not None
    async with asyncio.timeout(60):
        address = json.loads(await owner.stdout.readline())
    owner.kill()
    await owner.wait()
    assert await provider.owned(OWNER) == (address,)
    machine = await provider.adopt("m-1", address)
    assert machine is not None
    try:
        assert machine.address == address
        assert await machine.has("mine")
        await machine.probe()
        await machine.reset()
        assert not await machine.has("mine")
    finally:
        await machine.destroy()
    assert await provider.owned(OWNER) == ()


async def test_what_is_dead_or_another_process_is_not_adopted(provider, machine):
    stranger = {**machine.address, "started": machine.address["started"] - 1}
    folder = Path(machine.address["folder"])
    assert await provider.adopt("m-1", {**stranger, "folder": "/nonexistent"}) is None
    await machine.probe()
    os.kill(machine.address["pid"], signal.SIGKILL)
    await machine.wait_until_dead()
    (left,) = await provider.owned(OWNER)
    assert (left["machine_id"], left["pid"]) == ("m-1", 0)
    assert folder.is_dir()
    assert await provider.adopt("m-1", left) is None
    assert not folder.exists()


async def test_a_machine_of_another_snapshot_is_ended_instead_of_adopted(provider, machine):
    assert await provider.adopt("m-1", {**machine.address, "template": "clean-0"}) is None
    async with asyncio.timeout(30):
        await machine.wait_until_dead()


async def test_machines_of_others_are_not_ours(provider, machine):
    assert await provider.owned(OWNER[:-1]) == ()
    assert [address["machine_id"] for address in await provider.owned(OWNER)] == ["m-1"]
    assert Process.find(machine.address["pid"], machine.address["started"] + 1) is None


# What cannot be


async def test_a_missing_program_or_image_says_what_to_do(settings, tmp_path):
    with pytest.raises(InvalidInput, match="no-such-qemu is not installed; apt-get install qemu-system-x86"):
        await QemuProvider(replace(settings, program="no-such-qemu")).check(1)
    with pytest.raises(InvalidInput, match=r"build one: python -m outrider.pool.qemu.build"):
        await QemuProvider(replace(settings, image=tmp_path)).check(1)
    with pytest.raises(InvalidInput, match=r"QEMU 7\.1 or newer is needed"):
        await QemuProvider(replace(settings, program="true")).check(1)


async def test_more_machines_than_fit_are_refused_with_the_arithmetic(settings):
    await QemuProvider(settings).check(1)
    with pytest.raises(InvalidInput, match=r"1000000 \* \(160 \+ 96\) MB = 256000000 MB .* are free: at most \d+ fit"):
        await QemuProvider(settings).check(1_000_000)
