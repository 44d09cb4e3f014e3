"""The machine that a guest sees, as arguments of QEMU. A snapshot fits only the machine it was taken of."""

import hashlib
import json
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from outrider.pool.qemu.image import Image

AGENT_PORT = "outrider"


class Accelerator(StrEnum):
    """What carries out the guest's instructions."""

    AUTO = "auto"
    """KVM if a guest has been seen to start with it on this host, else TCG."""
    KVM = "kvm"
    TCG = "tcg"


@dataclass(frozen=True, slots=True)
class Hardware:
    """One kind of machine."""

    image: Image
    memory_mb: int
    accelerator: Accelerator
    screen: tuple[int, int]
    """Width and height in pixels: what the monitor that the guest finds attached can show."""

    def arguments(self) -> list[str]:
        """All but the memory, the name and the sockets."""
        tcg = self.accelerator is Accelerator.TCG
        described = self.image.description
        disk = self.image.disk
        attached = f"file={quoted(disk)},format=raw,if=none,id=disk,readonly=on" if disk else ""
        width, height = self.screen
        return [
            *("-nodefaults", "-no-user-config", "-display", "none"),
            *("-device", f"VGA,edid=on,xres={width},yres={height}"),
            *("-bios", str(self.image.folder / described.firmware)),
            *("-machine", "pc,i8042=off,memory-backend=ram"),
            *("-accel", "tcg,tb-size=64" if tcg else "kvm"),
            *("-cpu", "max" if tcg else "host"),
            *("-device", "virtio-keyboard-pci", "-device", "virtio-tablet-pci"),
            *("-device", "virtio-serial-pci", "-device", f"virtserialport,chardev=agent,name={AGENT_PORT}"),
            *(("-drive", attached, "-device", "virtio-blk-pci,drive=disk") if disk else ()),
            *("-device", "pvpanic", "-action", "panic=shutdown", "-no-reboot"),
            *("-kernel", str(self.image.folder / described.kernel)),
            *("-initrd", str(self.image.folder / described.initrd)),
            *("-append", described.options),
        ]

    def memory(self, file: Path | None, *, shared: bool) -> list[str]:
        """The guest's memory: of its own, or a file. Changes go into the file if it is shared, else to memory."""
        size = f"size={self.memory_mb}M"
        if file is None:
            backend = f"memory-backend-ram,id=ram,{size}"
        else:
            backend = f"memory-backend-file,id=ram,{size},mem-path={quoted(file)},share={'on' if shared else 'off'}"
        return ["-m", f"{self.memory_mb}M", "-object", backend]

    def digest(self, version: str) -> str:
        """Of all that a snapshot depends on, this version of QEMU included."""
        arguments = [argument.replace(str(self.image.folder), "") for argument in self.arguments()]
        facts = [version, self.image.description.digest, self.memory_mb, arguments]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def quoted(path: Path) -> str:
    """A path as a value in one of QEMU's lists."""
    return str(path).replace(",", ",,")
