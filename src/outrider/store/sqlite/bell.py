"""A bell between processes on one machine: a named pipe for every process that waits, in a folder beside the database.

Invariants:
- A pipe stands in the folder only while its process reads it, so a writer can ring without ever blocking.
- It is opened before it gets its name, so that a pipe nobody reads is known to be stale and is removed.
- A process killed between its commit and its ring rings nobody; `net_seconds` bounds how long that stays unnoticed.
"""

import asyncio
import errno
import os
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from outrider.core.clock import Clock
from outrider.core.files import PRIVATE_FOLDER
from outrider.core.ids import new_id
from outrider.store.bell import Bell, Topic


class FifoBell(Bell):
    """Rings in every process that listens on the same folder."""

    net_seconds = 1.0

    def __init__(self, clock: Clock, folder: Path) -> None:
        super().__init__(clock)
        self._folder = folder
        self._pipes: dict[Topic, tuple[Path, int]] = {}
        self._own: frozenset[str] = frozenset()

    def on_first_listener(self, topic: Topic) -> None:
        self._folder.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
        name = new_id(topic)
        unnamed = self._folder / f".{name}"
        os.mkfifo(unnamed, 0o600)
        # Open for writing too: a pipe whose last writer has gone would be readable for ever.
        descriptor = os.open(unnamed, os.O_RDWR | os.O_NONBLOCK)
        path = unnamed.rename(self._folder / name)
        self._pipes[topic] = path, descriptor
        self._own |= {name}
        asyncio.get_running_loop().add_reader(descriptor, self._heard, topic, descriptor)

    def on_last_listener(self, topic: Topic) -> None:
        path, descriptor = self._pipes.pop(topic)
        self._own -= {path.name}
        asyncio.get_running_loop().remove_reader(descriptor)
        path.unlink(missing_ok=True)
        os.close(descriptor)

    def _heard(self, topic: Topic, descriptor: int) -> None:
        with suppress(BlockingIOError):
            os.read(descriptor, 4096)
        self.ring_here(topic)

    def ring_others(self, topics: Collection[Topic]) -> None:
        """Wake the other processes. May be called from any thread; costs a directory listing when nobody waits.

        A ring that fails, as when this process has no descriptor left, must not harm what is already committed.
        """
        with suppress(OSError):
            for name in os.listdir(self._folder):  # noqa: PTH208 names alone, on the path of every commit
                if name not in self._own and name.partition("-")[0] in topics:
                    _ring(self._folder / name)


def _ring(pipe: Path) -> None:
    try:
        descriptor = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    except OSError as exc:
        if exc.errno == errno.ENXIO:
            pipe.unlink(missing_ok=True)
        return
    try:
        with suppress(BlockingIOError):
            os.write(descriptor, b"!")
    finally:
        os.close(descriptor)
