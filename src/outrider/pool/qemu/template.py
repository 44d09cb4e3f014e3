"""A snapshot that machines are cloned from: the memory as a file that all share, and the state of the devices.

Invariants:
- A template is complete or not there: it is made beside its place and then renamed.
- It fits one image, one machine, one accelerator and one version of QEMU: its name has a digest of them all.
- Nobody writes to it: what a clone changes is in its own memory.
"""

import asyncio
import shutil
from dataclasses import dataclass
from pathlib import Path

import msgspec
from msgspec import Struct

from outrider.core.decoding import from_json
from outrider.core.errors import InvalidInput, MachineError
from outrider.pool.qemu.hardware import Accelerator, Hardware
from outrider.pool.qemu.image import HOW_TO_BUILD
from outrider.pool.qemu.vm import Vm
from outrider.pool.qemu.workplace import mortal, workplace

CLEAN = "clean"
"""The snapshot that is made by itself, as soon as the guest has started."""

MEMORY, DEVICES, FACTS = "memory", "devices", "template.json"

_DEVICES_MB = 20
_ANSWER_SECONDS = 10.0
_SETTLE_SECONDS = 0.5
_N_SETTLES = 20
_SAVE_SECONDS = 120.0
_SETUP_SECONDS = 600.0


class Facts(Struct, frozen=True, kw_only=True):
    """What is known of a template."""

    screen: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Template:
    """A snapshot that is there."""

    folder: Path
    hardware: Hardware
    facts: Facts

    @property
    def key(self) -> str:
        return self.folder.name

    def arguments(self, program: str) -> list[str]:
        """To start a clone, which waits to be restored from `devices`."""
        memory = self.hardware.memory(self.folder / MEMORY, shared=False)
        return [program, *self.hardware.arguments(), *memory, "-incoming", "defer"]

    @property
    def devices(self) -> Path:
        return self.folder / DEVICES


def find(cache: Path, name: str, hardware: Hardware, version: str) -> Template | None:
    """The snapshot of this name, if it has been made."""
    folder = cache / f"{name}-{hardware.digest(version)}"
    try:
        facts = from_json((folder / FACTS).read_bytes(), Facts)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as exc:
        raise InvalidInput(f"the snapshot in {folder} cannot be read: {exc}; remove it to have it made anew") from exc
    return Template(folder, hardware, facts)


def missing(cache: Path, name: str, hardware: Hardware, version: str) -> InvalidInput:
    """The error for a snapshot that has not been made."""
    ending = f"-{hardware.digest(version)}"
    there = {CLEAN, *(folder.name.removesuffix(ending) for folder in cache.glob(f"*{ending}"))}
    width, height = hardware.screen
    return InvalidInput(
        f"there is no snapshot {name!r} of this image with a screen of {width} by {height} and "
        f"{hardware.memory_mb} MB of memory; there are: {', '.join(sorted(there))}. Make it: "
        f"{HOW_TO_BUILD} --snapshot {name} --setup SCRIPT --width {width} --height {height}"
    )


async def make(cache: Path, name: str, hardware: Hardware, program: str, version: str, *, setup: str = "") -> Template:
    """Start the guest once, run `setup` in it, and keep how it is then."""
    free_mb = shutil.disk_usage(cache).free // 2**20
    if free_mb < hardware.memory_mb + _DEVICES_MB:
        raise InvalidInput(
            f"a snapshot takes {hardware.memory_mb} + {_DEVICES_MB} MB of disk, and {free_mb} MB are free in {cache}; "
            "make room, or set `cache` to another folder"
        )
    with workplace(cache) as folder:
        memory = hardware.memory(folder / MEMORY, shared=True)
        vm = await boot(folder, [program, *hardware.arguments(), *memory], _boot_seconds(hardware))
        try:
            if setup:
                await set_up(vm, setup)
            screen = await _settled_screen(vm)
            await vm.save(folder / DEVICES, seconds=_SAVE_SECONDS)
        finally:
            await asyncio.shield(vm.end())
        if screen != hardware.screen:
            raise MachineError(f"the guest's screen has {screen} pixels, not {hardware.screen}", stage="qemu.boot")
        (folder / FACTS).write_bytes(msgspec.json.encode(Facts(screen=screen)))
        _put_in_place(folder, cache / f"{name}-{hardware.digest(version)}")
    found = find(cache, name, hardware, version)
    assert found is not None, "it was just put there"
    return found


async def boot(folder: Path, arguments: list[str], seconds: float) -> Vm:
    """Start a guest from the beginning, and wait until it answers. It dies with us."""
    vm = await Vm.start(folder, mortal(arguments))
    try:
        await vm.agent.ping(seconds)
    except MachineError as exc:
        await vm.end()
        raise MachineError(
            f"the guest has not started: {vm.ending or exc}{vm.last_words()}", stage="qemu.boot"
        ) from exc
    except BaseException:
        await asyncio.shield(vm.end())
        raise
    return vm


def _boot_seconds(hardware: Hardware) -> float:
    seconds = hardware.image.description.boot_seconds
    return seconds if hardware.accelerator is Accelerator.TCG else seconds / 2


async def set_up(vm: Vm, script: str) -> None:
    """Run a script in the guest. Raises `InvalidInput` if it fails."""
    done = await vm.agent.execute(script.encode(), _SETUP_SECONDS, grace_seconds=_ANSWER_SECONDS)
    if done.status != "0":
        raise InvalidInput(f"the setup ended with {done.status}: {done.errors.decode(errors='replace').strip()}")


async def _settled_screen(vm: Vm) -> tuple[int, int]:
    """The width and height of the screen once nothing moves on it any more; some screens always move."""
    before = b""
    for _ in range(_N_SETTLES):
        picture = await vm.screenshot(seconds=_ANSWER_SECONDS)
        if picture == before:
            break
        before = picture
        await asyncio.sleep(_SETTLE_SECONDS)
    return int.from_bytes(before[16:20], "big"), int.from_bytes(before[20:24], "big")


def _put_in_place(made: Path, folder: Path) -> None:
    """Somebody else may have been faster; then theirs is kept, which is as good, and may be in use."""
    try:
        made.chmod(0o700)
        made.rename(folder)
    except OSError:
        if not (folder / FACTS).exists():
            raise
    else:
        made.mkdir()  # for the one who removes it
