"""Pipes on the event loop, one end each: read as far as one wants to, closed when one likes."""

import os
from collections.abc import Callable
from contextlib import suppress
from typing import Self

from outrider.core.descriptors import readable, writable

CHUNK_BYTES = 65536


class Descriptors:
    """Owns open descriptors until they are closed."""

    def __init__(self) -> None:
        self._open: set[int] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close_all()

    def pipe(self) -> tuple[int, int]:
        """A new pipe: the end to read from, which does not block, and the end to hand on."""
        reading, writing = self.open_pipe()
        os.set_blocking(reading, False)
        return reading, writing

    def feeding_pipe(self) -> tuple[int, int]:
        """A new pipe the other way round: the end to hand on, and the end to write to, which does not block."""
        reading, writing = self.open_pipe()
        os.set_blocking(writing, False)
        return reading, writing

    def open_pipe(self) -> tuple[int, int]:
        """A new pipe of which both ends are handed on."""
        reading, writing = os.pipe()
        self._open |= {reading, writing}
        return reading, writing

    def add(self, descriptor: int) -> int:
        self._open.add(descriptor)
        return descriptor

    def close(self, *descriptors: int) -> None:
        for descriptor in descriptors:
            if descriptor in self._open:
                self._open.remove(descriptor)
                os.close(descriptor)

    def close_all(self) -> None:
        self.close(*self._open)


class Gathered:
    """What has been read of a stream so far: never more than the bound."""

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self._content = bytearray()
        self.truncated = False

    def __bytes__(self) -> bytes:
        return bytes(self._content)

    async def read(self, descriptor: int, overflow: Callable[[], None]) -> None:
        """Read to the end of the stream. What is beyond the bound is dropped, and reading ends with `overflow`."""
        while chunk := await read(descriptor):
            room = self._bound - len(self._content)
            self._content += chunk[:room]
            if len(chunk) > room:
                self.truncated = True
                overflow()
                return


async def read(descriptor: int) -> bytes:
    """The next bytes; none at the end of the stream."""
    while True:
        with suppress(BlockingIOError):
            return os.read(descriptor, CHUNK_BYTES)
        await readable(descriptor)


async def write(descriptor: int, content: bytes) -> None:
    """Write all of it, or as much as the other side reads."""
    left = memoryview(content)
    while left:
        try:
            left = left[os.write(descriptor, left) :]
        except BlockingIOError:
            await writable(descriptor)
        except BrokenPipeError:
            return
