"""Frames on a connection: what one side asks, answers, refuses, tells or gives up, with raw buffers behind it.

A frame is a fixed header, the length of each part, a head in MessagePack and the parts as they are. A large frame is
read straight into memory of its own, which its parts then share; small ones are copied out of the buffer they came in.
"""

import asyncio
import mmap
import struct
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from enum import IntEnum
from typing import Any, NamedTuple

import msgspec

from outrider.core.decoding import msgpack_decoder

Part = bytes | bytearray | memoryview

HEADER = struct.Struct("<BIIQ")
"""Kind, number of parts, length of the head, number of the request."""

MAX_PARTS = 1_000_000
MAX_FRAME_BYTES = 1 << 40
SCRATCH_BYTES = 1 << 18
JOINED_BYTES = 1 << 16
"""Parts up to this size are joined before they are written: one system call instead of many."""

HUGE_BYTES = 8 << 20

_encode = msgspec.msgpack.Encoder().encode
_decode = msgpack_decoder().decode


class Kind(IntEnum):
    """What a frame is."""

    ASK = 1
    ANSWER = 2
    REFUSAL = 3
    TELL = 4
    GIVE_UP = 5


class Frame(NamedTuple):
    """A frame that came."""

    kind: int
    number: int
    head: Any
    parts: tuple[memoryview, ...]


def encode(kind: Kind, number: int, head: Any, parts: Sequence[Part]) -> list[Part]:
    """The pieces to write, one after the other; large parts are not copied."""
    packed = _encode(head)
    start = b"".join(
        [
            HEADER.pack(kind, len(parts), len(packed), number),
            struct.pack(f"<{len(parts)}Q", *map(_n_bytes, parts)),
            packed,
        ]
    )
    pieces: list[Part] = []
    small: list[Part] = [start]
    for part in parts:
        if _n_bytes(part) <= JOINED_BYTES:
            small.append(part)
            continue
        pieces += [b"".join(small), part]
        small = []
    if small:
        pieces.append(b"".join(small))
    return pieces


def fresh_memory(n_bytes: int) -> memoryview:
    """Memory to be filled, of large pages where the system has them: fewer faults while it is filled."""
    if n_bytes < HUGE_BYTES or not hasattr(mmap, "MADV_HUGEPAGE"):
        return memoryview(bytearray(n_bytes))
    memory = mmap.mmap(-1, n_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel may be without them
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(memory)


def _n_bytes(part: Part) -> int:
    return part.nbytes if isinstance(part, memoryview) else len(part)


class FrameReader(asyncio.BufferedProtocol, ABC):
    """Cuts what comes into frames. A subclass takes `frame_received` and may pause the transport."""

    def __init__(self, max_frame_bytes: int | None = None) -> None:
        self.max_frame_bytes = max_frame_bytes
        """None: any size. It may be set to None later, and only then does a reader take much memory."""
        self._scratch = bytearray(SCRATCH_BYTES if max_frame_bytes is None else HEADER.size + max_frame_bytes)
        self._view = memoryview(self._scratch)
        self._n_read = 0
        self._large: memoryview | None = None
        self._lengths: tuple[int, ...] = ()
        self._header = (0, 0, 0, 0)

    @abstractmethod
    def frame_received(self, frame: Frame) -> None:
        """A frame is whole."""

    @abstractmethod
    def garbage_received(self, why: str) -> None:
        """What came is no frame; the connection is of no more use."""

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 asyncio's signature
        if self._large is not None:
            return self._large[self._n_read :]
        if self.max_frame_bytes is None and len(self._scratch) < SCRATCH_BYTES:
            self._scratch = self._scratch.ljust(SCRATCH_BYTES)
            self._view = memoryview(self._scratch)
        return self._view[self._n_read :]

    def buffer_updated(self, nbytes: int) -> None:
        self._n_read += nbytes
        if self._large is not None:
            if self._n_read == self._large.nbytes:
                body, self._large, self._n_read = self._large, None, 0
                self._deliver(body)
            return
        begin = 0
        while (end := self._take(begin)) > begin:
            begin = end
        if self._large is None and begin:
            left = self._n_read - begin
            self._view[:left] = self._view[begin : self._n_read]
            self._n_read = left

    def _take(self, begin: int) -> int:
        """Deliver the frame that begins here, if it is whole, or make room for it; where the next one begins."""
        if self._large is not None or self._n_read - begin < HEADER.size:
            return begin
        self._header = header = HEADER.unpack_from(self._scratch, begin)
        kind, n_parts, n_head, _ = header
        start = begin + HEADER.size
        if not 1 <= kind <= len(Kind) or n_parts > MAX_PARTS:
            self.garbage_received("what came is not of this protocol")
            return begin
        n_lengths = 8 * n_parts
        if n_lengths > (self.max_frame_bytes or SCRATCH_BYTES - HEADER.size):
            self.garbage_received(f"a frame of {n_parts} parts is more than fits")
            return begin
        if self._n_read - start < n_lengths:
            return begin
        return self._take_body(begin, start, n_lengths, n_head)

    def _take_body(self, begin: int, start: int, n_lengths: int, n_head: int) -> int:
        lengths: tuple[int, ...] = struct.unpack_from(f"<{n_lengths // 8}Q", self._scratch, start)
        body = start + n_lengths
        size = n_head + sum(lengths)
        if size > (MAX_FRAME_BYTES if self.max_frame_bytes is None else self.max_frame_bytes - n_lengths):
            self.garbage_received(f"a frame of {size} bytes is more than fits")
            return begin
        self._lengths = lengths
        if self._n_read - body >= size:
            self._deliver(memoryview(bytearray(self._view[body : body + size])))
            return body + size
        if n_lengths + HEADER.size + size > SCRATCH_BYTES:
            try:
                large = fresh_memory(size)
            except (MemoryError, OSError):
                self.garbage_received(f"there is no memory for a frame of {size} bytes")
                return begin
            n_here = self._n_read - body
            large[:n_here] = self._view[body : self._n_read]
            self._large, self._n_read = large, n_here
        return begin

    def _deliver(self, body: memoryview) -> None:
        kind, _, n_head, number = self._header
        at = n_head
        parts = []
        for length in self._lengths:
            parts.append(body[at : at + length])
            at += length
        try:
            head = _decode(body[:n_head])
        except msgspec.DecodeError as exc:
            self.garbage_received(f"a head that cannot be read: {exc}")
            return
        self.frame_received(Frame(kind, number, head, tuple(parts)))
