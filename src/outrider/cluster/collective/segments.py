"""Large payloads between processes of one node: written once into shared memory, and read where they lie.

The sender writes into a memfd of its own, the receiver opens it through `/proc` and maps it. Both keep their maps of a
segment that is used again: fresh pages cost several times as much as the copy itself.

Invariants:
- A segment is written by one sender at a time, and not before the last reader of its former content is gone.
- The content outlives its sender: the receiver's map keeps it.
- A segment is closed when nobody refers to it any more, so no copy meets a file number that means another file.
"""

import asyncio
import ctypes
import mmap
import os
import weakref
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import msgspec

from outrider.cluster.collective.memory import copy
from outrider.cluster.post import Link

ALIGNMENT = 64
STEP_BYTES = 2 << 20
"""A tensor is copied in steps of this size, so that the receiver copies while the sender does."""

_SEMAPHORE_BYTES = 64
GRAIN_BYTES = 1 << 18
WARM_BYTES = 512 << 20
"""So much memory a sender keeps for its next large payloads."""

KEEP_SECONDS = 20.0
"""So long it keeps the last one beyond that: who sends the weights of a model will send them again."""

IS_POSSIBLE = hasattr(os, "memfd_create")
_libc = ctypes.CDLL(None)


class SegmentRef(msgspec.Struct, frozen=True, array_like=True):
    """Where another process of this node finds a segment; the last two tell it from another file of that number."""

    number: int
    pid: int
    fd: int
    n_bytes: int
    device: int
    inode: int


def offsets_of(lengths: Sequence[int]) -> tuple[list[int], int]:
    """Where parts of these lengths begin when they lie behind each other, and how much room they take."""
    offsets, at = [], 0
    for length in lengths:
        offsets.append(at)
        at += -(-length // ALIGNMENT) * ALIGNMENT
    return offsets, at


class Steps:
    """How far a copy in a segment is, told from one thread that copies to another, in another process.

    A semaphore in shared memory: where all cores copy, a message would wait until the event loops get one. It orders
    memory as a message does.
    """

    def __init__(self, memory: mmap.mmap, offset: int) -> None:
        self._held = (ctypes.c_char * _SEMAPHORE_BYTES).from_buffer(memory, offset)
        self._at = ctypes.c_void_p(ctypes.addressof(self._held))
        self._n_taken = 0

    def reset(self) -> None:
        """Nobody follows any more: count from 0."""
        _libc.sem_init(self._at, 1, 0)

    def add(self) -> None:
        _libc.sem_post(self._at)

    def n_taken(self) -> int:
        """How many there were so far; only who follows asks."""
        while _libc.sem_trywait(self._at) == 0:
            self._n_taken += 1
        return self._n_taken


class Segment:
    """Shared memory that this process writes. Behind its `n_bytes` lies a page for the steps."""

    def __init__(self, number: int, n_bytes: int) -> None:
        fd = os.memfd_create(f"outrider-mail-{number}", os.MFD_CLOEXEC)
        weakref.finalize(self, os.close, fd)
        os.ftruncate(fd, n_bytes + mmap.PAGESIZE)
        found = os.fstat(fd)
        self.steps = Steps(mmap.mmap(fd, mmap.PAGESIZE, offset=n_bytes), 0)
        self.ref = SegmentRef(number, os.getpid(), fd, n_bytes, found.st_dev, found.st_ino)
        self.readers: weakref.WeakSet[Link] = weakref.WeakSet()
        self.is_warm = False
        self._map: memoryview | None = None

    def write(self, offset: int, source: memoryview) -> None:
        """Blocks for as long as the copy takes. Fresh pages are filled by the kernel, known ones through a map."""
        if not self.is_warm:
            at, n_bytes = 0, source.nbytes
            while at < n_bytes:
                at += os.pwrite(self.ref.fd, source[at:], offset + at)
            return
        if self._map is None:
            flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
            self._map = memoryview(mmap.mmap(self.ref.fd, self.ref.n_bytes, flags=flags))
        copy(self._map[offset : offset + source.nbytes], source)


class SegmentPool:
    """The segments of one sender: lent to receivers, or warm and free. Lives on the post's event loop."""

    def __init__(self, warm_bytes: int = WARM_BYTES, keep_seconds: float = KEEP_SECONDS) -> None:
        self._warm_bytes = warm_bytes
        self._keep_seconds = keep_seconds
        self._trimming: asyncio.TimerHandle | None = None
        self._numbers = count(1)
        self._free: list[Segment] = []
        self._lent: dict[int, tuple[Segment, Link]] = {}
        self._watched: weakref.WeakSet[Link] = weakref.WeakSet()

    def take(self, n_bytes: int) -> Segment:
        """The smallest that is free and not much too large, or a new one."""
        fitting = [one for one in self._free if n_bytes <= one.ref.n_bytes <= 2 * n_bytes]
        if not fitting:
            grain = max(GRAIN_BYTES, 1 << max(0, n_bytes.bit_length() - 4))
            return Segment(next(self._numbers), -(-n_bytes // grain) * grain)
        best = min(fitting, key=lambda one: one.ref.n_bytes)
        self._free.remove(best)
        return best

    def lend(self, segment: Segment, link: Link) -> None:
        """The process behind the link reads it until it gives it back; if it is lost, the segment is too."""
        segment.readers.add(link)
        if link not in self._watched:
            self._watched.add(link)
            link.on_lost.append(lambda: self.forget(link))
        self._lent[segment.ref.number] = (segment, link)

    def take_back(self, number: int) -> None:
        """Its reader is done. What has been free for longest makes room; the last one stays for a while in any case."""
        segment, _ = self._lent.pop(number, (None, None))
        if segment is None:
            return
        segment.is_warm = True
        self._free.append(segment)
        self._trim(1)
        if self.n_free_bytes > self._warm_bytes:
            self._stop_trimming()
            self._trimming = asyncio.get_running_loop().call_later(self._keep_seconds, self._trim, 0)

    def _trim(self, n_kept: int) -> None:
        while self.n_free_bytes > self._warm_bytes and len(self._free) > n_kept:
            dropped = self._free.pop(0)
            for reader in dropped.readers:
                reader.tell("mail.forget", dropped.ref.number)

    def _stop_trimming(self) -> None:
        if self._trimming is not None:
            self._trimming.cancel()

    def drop(self, segment: Segment) -> None:
        """Its content is of no use, and it may still be written or read: it is not used again."""
        self._lent.pop(segment.ref.number, None)

    def forget(self, link: Link) -> None:
        """Nobody knows whether what was lent over this link is still read: it is not used again."""
        for number in [number for number, (_, reader) in self._lent.items() if reader is link]:
            del self._lent[number]

    def close(self) -> None:
        self._stop_trimming()
        self._free.clear()
        self._lent.clear()

    @property
    def n_free_bytes(self) -> int:
        return sum(segment.ref.n_bytes for segment in self._free)

    @property
    def n_lent(self) -> int:
        return len(self._lent)


class Maps:
    """The segments of others as this process sees them; kept until their owner drops them or is lost."""

    def __init__(self) -> None:
        self._maps: dict[Link, dict[int, mmap.mmap]] = {}

    def open(self, link: Link, ref: SegmentRef) -> mmap.mmap | None:
        """The memory of a segment; None if this process cannot get at it."""
        known = self._maps.setdefault(link, {})
        if ref.number not in known:
            try:
                known[ref.number] = _mapped(ref)
            except (OSError, ValueError):
                return None
        return known[ref.number]

    def forget(self, link: Link, number: int) -> None:
        self._maps.get(link, {}).pop(number, None)

    def drop(self, link: Link) -> None:
        """Their owner is lost. What is still used stays until it is not."""
        self._maps.pop(link, None)


def _mapped(ref: SegmentRef) -> mmap.mmap:
    fd = os.open(f"/proc/{ref.pid}/fd/{ref.fd}", os.O_RDWR | os.O_CLOEXEC)
    try:
        found = os.fstat(fd)
        if (found.st_dev, found.st_ino) != (ref.device, ref.inode):
            raise OSError(f"file {ref.fd} of process {ref.pid} is another one by now")
        return mmap.mmap(fd, ref.n_bytes + mmap.PAGESIZE)
    finally:
        os.close(fd)


def watched(memory: mmap.mmap, n_bytes: int, when_unused: Callable[[], Any]) -> memoryview:
    """A view of the first bytes. When it and all made of it are gone, `when_unused` is called, on any thread."""
    window = (ctypes.c_ubyte * n_bytes).from_buffer(memory)
    weakref.finalize(window, when_unused).atexit = False
    return memoryview(window).cast("B")
