"""Virtual machines by a spec: image, snapshot, screen and settings; and a disk that is full."""

import os
import subprocess
from pathlib import Path

import pytest

from outrider.core.errors import InvalidInput, MachineError
from outrider.pool.computer import MoveTo
from outrider.pool.provider import Ability
from outrider.pool.providers.qemu import provider_of
from outrider.pool.qemu.image import Image
from outrider.pool.spec import MachineSpec
from qemu_guest import guest_image

OWNER = f"spec-{os.getpid()}"


@pytest.fixture(scope="session")
def image() -> Image:
    return guest_image()


@pytest.fixture
def spec(image, tmp_path):
    def make(**fields: object) -> MachineSpec:
        settings = {"accelerator": "tcg", "folder": str(tmp_path / "machines"), **fields.pop("settings", {})}
        return MachineSpec(provider="qemu", **{"image": str(image.folder), "settings": settings, **fields})

    return make


@pytest.fixture
def small_disk(tmp_path):
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small disk")
    place = tmp_path / "small"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1M", "small", place], check=True, timeout=10)
    yield place
    subprocess.run(["umount", place], check=True, timeout=10)


@pytest.mark.parametrize(("snapshot", "size"), [(None, (1280, 800)), ("init_state", (1920, 1080)), ("clean", None)])
async def test_the_screen_has_the_size_that_was_asked_for_and_the_clean_state_has_three_names(spec, snapshot, size):
    width, height = size or (None, None)
    provider = provider_of(spec(snapshot=snapshot, width=width, height=height, headless=True))
    await provider.check(1)
    machine = await provider.create("m-1", OWNER)
    try:
        computer = machine.computer
        width, height = computer.screen_size
        assert (width, height) == (size or (1280, 800))
        picture = await computer.screenshot()
        assert (int.from_bytes(picture[16:20]), int.from_bytes(picture[20:24])) == (width, height)
        shown = await computer.execute("cat /sys/class/graphics/fb0/virtual_size; stty -F /dev/tty1 size")
        assert shown.stdout == f"{width},{height}\n{height // 16} {width // 8}\n"
        await computer.input([MoveTo(width - 1, height - 1)])
        with pytest.raises(MachineError, match="not on the screen"):
            await computer.input([MoveTo(width, 0)])
    finally:
        await machine.destroy()
        await provider.close()


def test_the_plain_guest_has_a_screen_commands_and_a_terminal(spec):
    assert provider_of(spec()).abilities == {Ability.SCREEN, Ability.COMMANDS, Ability.TERMINAL}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"image": None}, r"needs an image.*python -m outrider\.pool\.qemu\.build FOLDER"),
        ({"image": "/nowhere"}, r"/nowhere holds no image.*python -m outrider\.pool\.qemu\.build FOLDER"),
        ({"headless": False}, "opens no window"),
        ({"width": 1366, "height": 768}, "1366 by 768 pixels: its width is a multiple of 8 between 640 and 2560"),
        ({"height": 200}, "its height is between 480 and 1600"),
        ({"settings": {"memory": 512}}, "settings of qemu.*`memory`.*did you mean memory_mb"),
        ({"settings": {"reset": "reboot"}}, "settings of qemu.*reset"),
        ({"settings": {"probe_seconds": 0}}, "settings of qemu.*probe_seconds"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_started(spec, fields, message):
    with pytest.raises(InvalidInput, match=message):
        provider_of(spec(**fields))


async def test_an_unknown_snapshot_is_refused_with_those_there_are(spec):
    with pytest.raises(InvalidInput, match=r"no snapshot 'tidy'.*there are: clean\. Make it: .*--snapshot tidy"):
        await provider_of(spec(snapshot="tidy")).check(1)


async def test_a_full_disk_is_found_out_after_the_reset_and_with_room_the_machine_works_again(spec, small_disk):
    provider = provider_of(spec(settings={"folder": str(small_disk / "machines")}))
    machine = await provider.create("m-1", OWNER)
    try:
        filler = small_disk / "filler"
        with pytest.raises(OSError, match="No space"):
            filler.write_bytes(bytes(2**21))
        await machine.reset()
        with pytest.raises(MachineError):
            await machine.probe()  # QEMU cannot write the picture
        filler.unlink()
        await machine.reset()
        await machine.probe()
    finally:
        await machine.destroy()
    assert await provider.owned(OWNER) == ()
    await provider.close()


async def test_a_snapshot_that_the_disk_cannot_hold_is_refused_with_the_arithmetic(spec, small_disk):
    provider = provider_of(spec(settings={"cache": str(small_disk)}))
    with pytest.raises(InvalidInput, match=r"takes 160 \+ 20 MB of disk, and [01] MB are free in .*small; make room"):
        await provider.create("m-1", OWNER)
    assert list(Path(small_disk).iterdir()) == []
