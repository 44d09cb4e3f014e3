"""What virtual machines to make, and where."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from outrider.pool.qemu.hardware import Accelerator
from outrider.pool.qemu.template import CLEAN


class Reset(StrEnum):
    """How a machine is brought back."""

    CLONE = "clone"
    """QEMU is started anew on the snapshot. Machines share the memory that they have not changed."""
    LOADVM = "loadvm"
    """QEMU restores a snapshot of its own: quicker, but each machine has all its memory, and once more on disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QemuSettings:
    """Given by the user."""

    image: Path
    snapshot: str = CLEAN
    reset: Reset = Reset.CLONE
    accelerator: Accelerator = Accelerator.AUTO
    memory_mb: int | None = None
    """None: as the image says."""
    program: str = "qemu-system-x86_64"
    folder: Path | None = None
    """For sockets and logs. None: a folder of this user under the system's folder for temporary files."""
    cache: Path | None = None
    """For snapshots, which are as large as the memory. None: in the image's folder."""
    probe_seconds: float = 10.0
    start_seconds: float = 60.0
    """How long a clone may take until it answers."""
    kvm_seconds: float = 20.0
    """How long a guest may take to start with KVM before it counts as not working here."""
