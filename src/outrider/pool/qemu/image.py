"""A guest's image: a folder with firmware, a kernel, an initial file system and, if it has one, a disk to be read."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import msgspec
from msgspec import Struct

from outrider.core.decoding import from_json
from outrider.core.errors import InvalidInput

DESCRIPTION = "image.json"
HOW_TO_BUILD = "python -m outrider.pool.qemu.build FOLDER (--desktop: with windows)"


class Description(Struct, frozen=True, kw_only=True):
    """What stands in `image.json`. Unknown fields are ignored."""

    schema: int = 2
    firmware: str
    kernel: str
    initrd: str
    disk: str | None = None
    options: str = ""
    """What the kernel is told."""
    memory_mb: int = 160
    """With less, the firmware does not start."""
    boot_seconds: float = 120.0
    """How long the first boot may take, where nothing but software runs the guest."""
    terminal: str = ""
    """A command that prints what stands in the terminal in front, or ends with 1: none is. Empty: it cannot be told."""
    tree: str = ""
    """A command that prints the accessibility tree. Empty: there is none."""
    digest: str
    """Of all the files together: a snapshot fits one image only."""


@dataclass(frozen=True, slots=True)
class Image:
    """An image that was found complete."""

    folder: Path
    description: Description

    @property
    def disk(self) -> Path | None:
        return self.folder / self.description.disk if self.description.disk else None

    @classmethod
    def open(cls, folder: Path) -> "Image":
        """Raise `InvalidInput` if there is no usable image, and say how to get one."""
        path = folder / DESCRIPTION
        try:
            described = from_json(path.read_bytes(), Description)
        except FileNotFoundError as exc:
            raise InvalidInput(f"{folder} holds no image for QEMU; build one: {HOW_TO_BUILD}") from exc
        except (OSError, msgspec.MsgspecError) as exc:
            raise InvalidInput(f"{path} cannot be read: {exc}; build the image anew: {HOW_TO_BUILD}") from exc
        image = cls(folder, described)
        for name in filter(None, (described.firmware, described.kernel, described.initrd, described.disk)):
            if not (folder / name).is_file():
                raise InvalidInput(f"{folder} lacks {name}; build the image anew: {HOW_TO_BUILD}")
        return image


def digest_of(*files: Path) -> str:
    """Of the content of the files, in this order."""
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as content:
            digest.update(hashlib.file_digest(content, "sha256").digest())
    return digest.hexdigest()[:32]
