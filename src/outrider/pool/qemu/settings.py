"""What virtual machines to make, and where."""

from enum import StrEnum
from pathlib import Path

from msgspec import Struct

from outrider.core.bounds import PositiveCount, PositiveSeconds, check_bounds
from outrider.core.errors import InvalidInput
from outrider.pool.qemu.hardware import Accelerator
from outrider.pool.qemu.template import CLEAN

WIDTHS, HEIGHTS = range(640, 2561, 8), range(480, 1601)
"""The screens that the firmware can make, in pixels."""


class Reset(StrEnum):
    """How a machine is brought back."""

    CLONE = "clone"
    """QEMU is started anew on the snapshot. Machines share the memory that they have not changed."""
    LOADVM = "loadvm"
    """QEMU restores a snapshot of its own: quicker, but each machine has all its memory, and once more on disk."""


class QemuOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a user may set besides the fields that specs of all kinds of machines have."""

    reset: Reset = Reset.CLONE
    accelerator: Accelerator = Accelerator.AUTO
    memory_mb: PositiveCount | None = None
    """None: as the image says."""
    program: str = "qemu-system-x86_64"
    folder: str | None = None
    """For sockets and logs. None: a folder of this user under the system's folder for temporary files."""
    cache: str | None = None
    """For snapshots, which are as large as the memory. None: in the image's folder."""
    probe_seconds: PositiveSeconds = 10.0
    start_seconds: PositiveSeconds = 60.0
    """How long a clone may take until it answers."""
    kvm_seconds: PositiveSeconds = 20.0
    """How long a guest may take to start with KVM before it counts as not working here."""

    def __post_init__(self) -> None:
        check_bounds(self)


class QemuSettings(QemuOptions, frozen=True, kw_only=True):
    """All of it."""

    image: Path
    snapshot: str = CLEAN
    width: PositiveCount = 1280
    height: PositiveCount = 800

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.width not in WIDTHS or self.height not in HEIGHTS:
            raise InvalidInput(
                f"a virtual machine's screen cannot have {self.width} by {self.height} pixels: its width is a multiple "
                f"of {WIDTHS.step} between {WIDTHS[0]} and {WIDTHS[-1]}, its height is between {HEIGHTS[0]} and "
                f"{HEIGHTS[-1]}"
            )
