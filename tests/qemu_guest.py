"""The small guest that tests of virtual machines share: built once for each version of its parts."""

import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from outrider.core.errors import InvalidInput
from outrider.pool.qemu.build import build, find_busybox, find_kernel
from outrider.pool.qemu.image import Image

PROGRAM = "qemu-system-x86_64"
PACKAGES = ("qemu-system-x86", "qemu-utils", "linux-image-cloud-amd64", "busybox-static")
UNUSED_SECONDS = 24 * 3600.0


CREATE_AND_STAY = """
import asyncio, json, sys
from pathlib import Path
from outrider.pool.providers.qemu import Accelerator, QemuProvider, QemuSettings

async def main(image, folder, owner, cache=None):
    settings = QemuSettings(
        image=Path(image), folder=Path(folder), cache=cache and Path(cache), accelerator=Accelerator.TCG
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
        is_missing = shutil.which(PROGRAM) is None or shutil.which("qemu-img") is None
    except InvalidInput:
        is_missing = True
    if is_missing:
        pytest.skip(f"QEMU or a kernel for its guest is missing; apt-get install {' '.join(PACKAGES)}")


def guest_image() -> Image:
    """The image and, in time, its snapshot, kept among the temporary files until nobody has used them for a day."""
    require_qemu()
    cache = Path(tempfile.gettempdir()) / f"outrider-test-guests-{os.geteuid()}"
    cache.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".building-", dir=cache) as folder:
        built = build(Path(folder) / "image")
        kept = cache / built.description.digest
        with suppress(OSError):  # it is there
            built.folder.rename(kept)
    os.utime(kept)
    for other in cache.iterdir():
        if other.stat().st_mtime < time.time() - UNUSED_SECONDS:
            shutil.rmtree(other, ignore_errors=True)
    return Image.open(kept)
