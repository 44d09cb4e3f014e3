"""Snapshots of a real guest: made, named, looked for, and given up half way; and the trial of KVM."""

import asyncio
import os
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from outrider.core.errors import InvalidInput
from outrider.pool.processes import named, start_time
from outrider.pool.providers.qemu import Accelerator, QemuProvider, QemuSettings
from outrider.pool.qemu import template, trial
from outrider.pool.qemu.hardware import Hardware
from outrider.pool.qemu.image import Image
from outrider.pool.qemu.snapshots import Snapshots
from outrider.pool.qemu.workplace import workplace
from qemu_guest import CREATE_AND_STAY, guest_image, until


@pytest.fixture(scope="session")
def image() -> Image:
    return guest_image()


@pytest.fixture
def settings(image, tmp_path) -> QemuSettings:
    """With a cache of its own: nothing has been made yet."""
    return QemuSettings(
        image=image.folder,
        accelerator=Accelerator.TCG,
        folder=str(tmp_path / "machines"),
        cache=str(tmp_path / "cache"),
    )


async def test_a_snapshot_of_ones_own_is_made_once_and_cloned_by_its_name(settings):
    named_one = replace(settings, snapshot="prepared")
    with pytest.raises(
        InvalidInput, match=r"no snapshot 'prepared'.*there are: clean\..*--snapshot prepared .*--width 1280"
    ):
        await QemuProvider(named_one).check(1)
    await Snapshots(named_one).make("echo ready > /home/user/prepared")
    with pytest.raises(InvalidInput, match="already"):
        await Snapshots(named_one).make("true")
    await QemuProvider(named_one).check(1)
    machine = await QemuProvider(named_one).create("m-1", "tests")
    try:
        assert await machine.computer.read_file("/home/user/prepared") == b"ready\n"
        with pytest.raises(InvalidInput, match="ended with 7: it broke"):
            await template.set_up(machine._running, "echo it broke >&2; exit 7")
    finally:
        await machine.destroy()


async def test_who_is_killed_while_making_a_snapshot_leaves_no_guest_and_a_folder_that_the_next_removes(
    settings,
):
    cache = Path(settings.cache)
    maker = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CREATE_AND_STAY, str(settings.image), str(settings.folder), "tests", str(cache)
    )

    async def guests() -> list[int]:
        found = [pid for pid, _ in named(f"memory-backend-file,id=ram,size=160M,mem-path={cache}")]
        return [pid for pid in found if start_time(pid) is not None]

    async def no_guests() -> bool:
        return not await guests()

    await until(guests)
    maker.kill()
    await maker.wait()
    await until(no_guests, 5.0)
    (left,) = cache.glob(".making-*")
    with workplace(cache):
        assert left.exists(), "it may be in use: it is new"
    os.utime(left, (0, 0))
    with workplace(cache) as mine:
        assert list(cache.glob(".making-*")) == [mine]
        os.utime(mine, (0, 0))
        with workplace(cache):
            assert mine.exists(), "it is in use: it is locked"


async def test_kvm_is_chosen_only_if_a_guest_starts_with_it_and_tried_once(image, tmp_path):
    hardware = Hardware(image, 160, Accelerator.AUTO, (640, 480))
    chosen = await trial.choose(tmp_path, hardware, "qemu-system-x86_64", seconds=3.0)
    assert chosen in {Accelerator.KVM, Accelerator.TCG}
    tried = [path.read_text() for path in tmp_path.iterdir()]
    assert tried == ([chosen.value] if os.access(trial.DEVICE, os.R_OK | os.W_OK) else [])
    assert await trial.choose(tmp_path, hardware, "no-such-qemu", seconds=3.0) is chosen, "it is known by now"
