"""Virtual machines with the small guest, all cloned from one snapshot."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from contract_machines.kinds import PROVIDERS, Stage
from qemu_guest import guest_image

_image = cache(guest_image)


@contextmanager
def qemu(folder: Path, _: object) -> Iterator[Stage]:
    fields = f"image=Path({str(_image().folder)!r}), folder={str(folder / 'machines')!r}, probe_seconds=3.0"
    settings = f"QemuSettings({fields}, accelerator=Accelerator.TCG)"
    yield Stage(f"{PROVIDERS}.qemu:QemuProvider({settings})", lambda machine: [machine.address["pid"]])
