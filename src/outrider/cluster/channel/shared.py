"""Large items on one node: written once into shared memory by their producer, and read where they lie by their reader.

The channel's process opens the memory when it is told of it, so that the item outlives its producer, and keeps it until
the reader has it. What a reader writes to an item is its own: another who gets the item after it sees nothing of that.
"""

import mmap
import os
import weakref
from collections.abc import Sequence

from outrider.cluster.collective.segments import IS_POSSIBLE, offsets_of
from outrider.cluster.post import Endpoint, Part
from outrider.core.errors import ChannelError

LARGE_BYTES = 1 << 18

Ref = tuple[int, int, int, int, list[int]]
"""Process and file number; device and inode of that file, to tell it from another; the lengths of the parts."""


class UnreadableItem(ChannelError):
    """The memory of an item cannot be opened in this process."""


class Shared:
    """The parts of one item in a file without a name, which goes when the last process has closed it."""

    def __init__(self, fd: int, lengths: list[int]) -> None:
        weakref.finalize(self, os.close, fd)
        self.lengths = lengths
        self._fd = fd

    @classmethod
    def written(cls, parts: Sequence[Part]) -> "Shared":
        """Blocks for as long as the copy takes; other threads go on."""
        lengths = [len(part) for part in parts]
        offsets, n_bytes = offsets_of(lengths)
        shared = cls(os.memfd_create("outrider-item", os.MFD_CLOEXEC), lengths)
        os.ftruncate(shared._fd, n_bytes)
        for offset, part in zip(offsets, parts, strict=True):
            view, at = memoryview(part), 0
            while at < len(view):
                at += os.pwrite(shared._fd, view[at:], offset + at)
        return shared

    @classmethod
    def opened(cls, ref: Ref) -> "Shared":
        """What another process of this node has."""
        pid, number, device, inode, lengths = ref
        try:
            shared = cls(os.open(f"/proc/{pid}/fd/{number}", os.O_RDWR | os.O_CLOEXEC), lengths)
        except OSError as exc:
            raise UnreadableItem(f"the memory of an item cannot be opened: {exc}") from exc
        found = os.fstat(shared._fd)
        if (found.st_dev, found.st_ino) != (device, inode):
            raise UnreadableItem(f"the memory of an item is gone: file {number} of process {pid} is another one")
        return shared

    def ref(self) -> Ref:
        found = os.fstat(self._fd)
        return os.getpid(), self._fd, found.st_dev, found.st_ino, self.lengths

    def parts(self) -> tuple[memoryview, ...]:
        """The content; it may be written to, which nobody else sees. It outlives this object."""
        offsets, n_bytes = offsets_of(self.lengths)
        if not n_bytes:
            return tuple(memoryview(b"") for _ in self.lengths)
        view = memoryview(mmap.mmap(self._fd, n_bytes, flags=mmap.MAP_PRIVATE))
        return tuple(view[offset : offset + length] for offset, length in zip(offsets, self.lengths, strict=True))


def can_share(one: Endpoint, other: Endpoint | None) -> bool:
    """Whether two processes see each other's files."""
    return IS_POSSIBLE and other is not None and one.node == other.node
