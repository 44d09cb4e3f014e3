"""Which accelerator to use: KVM only where a guest has been seen to start with it, for the device alone proves nothing.

On some hosts the device is there, machines can be made, and yet no guest gets past its firmware.
"""

import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from outrider.core.errors import MachineError
from outrider.pool.qemu.hardware import Accelerator, Hardware
from outrider.pool.qemu.image import Image
from outrider.pool.qemu.template import boot
from outrider.pool.qemu.workplace import workplace

DEVICE = Path("/dev/kvm")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


async def choose(cache: Path, hardware: Hardware, program: str, *, seconds: float) -> Accelerator:
    """Try it once for each boot of the host and each image; the outcome is kept in `cache`."""
    if not os.access(DEVICE, os.R_OK | os.W_OK):
        return Accelerator.TCG
    outcome = _outcome(cache, hardware.image)
    with suppress(OSError, ValueError):
        return Accelerator(outcome.read_text())
    hardware = replace(hardware, accelerator=Accelerator.KVM)
    with workplace(cache) as folder:
        arguments = [program, *hardware.arguments(), *hardware.memory(None, shared=False)]
        chosen = Accelerator.TCG
        with suppress(MachineError):
            vm = await boot(folder, arguments, seconds)
            chosen = Accelerator.KVM
            await vm.end()
    outcome.write_text(chosen.value)
    return chosen


def _outcome(cache: Path, image: Image) -> Path:
    return cache / f"kvm-{_BOOT_ID.read_text().strip()}-{image.description.digest}"
