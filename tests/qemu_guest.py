"""The guests that tests of virtual machines share: built once for each version of their parts."""

import asyncio
import fcntl
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from outrider.core.errors import InvalidInput
from outrider.pool.qemu.build import FIRMWARE, build, find_busybox, find_kernel
from outrider.pool.qemu.desktop import PACKAGES as DESKTOP_PACKAGES
from outrider.pool.qemu.hardware import Accelerator
from outrider.pool.qemu.image import Image
from outrider.pool.qemu.settings import QemuSettings
from outrider.pool.qemu.snapshots import Snapshots

PROGRAM = "qemu-system-x86_64"
PACKAGES = ("qemu-system-x86", "qemu-utils", "linux-image-cloud-amd64", "busybox-static", "ovmf")
DESKTOP_TOOLS = ("squashfs-tools", *DESKTOP_PACKAGES)
UNUSED_SECONDS = 24 * 3600.0
CACHE = Path(tempfile.gettempdir()) / f"outrider-test-guests-{os.geteuid()}"

CREATE_AND_STAY = """
import asyncio, json, sys
from pathlib import Path
from outrider.pool.providers.qemu import Accelerator, QemuProvider, QemuSettings

async def main(image, folder, owner, cache=None):
    settings = QemuSettings(
        image=Path(image), folder=folder, cache=cache, accelerator=Accelerator.TCG
    )
    machine = await QemuProvider(settings).create("m-1", owner)
    await machine.plant("mine")
    print(json.dumps(dict(machine.address)), flush=True)
    await asyncio.Event().wait()

asyncio.run(main(*sys.argv[1:]))
"""
"""A program that makes a machine, prints its address, and waits to be killed: image, folder, owner, cache."""


async def until(condition: Callable[[], Awaitable[object]], seconds: float = 20.0) -> None:
    """Until the condition holds: for what a guest does without telling."""
    async with asyncio.timeout(seconds):
        while not await condition():
            await asyncio.sleep(0.05)


def require_qemu() -> None:
    """Skip the test where QEMU is missing, or what its guest is built from."""
    try:
        find_kernel()
        find_busybox()
        is_missing = shutil.which(PROGRAM) is None or shutil.which("qemu-img") is None or not FIRMWARE.exists()
    except InvalidInput:
        is_missing = True
    if is_missing:
        pytest.skip(f"QEMU or a kernel for its guest is missing; apt-get install {' '.join(PACKAGES)}")


def guest_image(*, desktop: bool = False) -> Image:
    """The image and, in time, its snapshot, kept among the temporary files until nobody has used them for a day."""
    require_qemu()
    CACHE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".building-", dir=CACHE) as folder:
        built = build(Path(folder) / "image", desktop=desktop)
        kept = CACHE / built.description.digest
        with suppress(OSError):  # it is there
            built.folder.rename(kept)
    os.utime(kept)
    for other in CACHE.glob("[!.]*"):
        if other.stat().st_mtime < time.time() - UNUSED_SECONDS:
            shutil.rmtree(other, ignore_errors=True)
    return Image.open(kept)


def desktop_image(width: int = 1280, height: int = 800) -> Image:
    """The desktop guest with its snapshot for a screen of this size, both made by one process for all."""
    require_qemu()
    CACHE.mkdir(exist_ok=True)
    with _alone():
        try:
            image = guest_image(desktop=True)
        except InvalidInput as exc:
            pytest.skip(f"{exc}; all that is needed: apt-get install {' '.join(DESKTOP_TOOLS)}")
        settings = QemuSettings(image=image.folder, accelerator=Accelerator.TCG, width=width, height=height)
        ready = threading.Thread(target=lambda: asyncio.run(Snapshots(settings).ready()))
        ready.start()
        ready.join()
    return image


@contextmanager
def _alone() -> Iterator[None]:
    with (CACHE / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
