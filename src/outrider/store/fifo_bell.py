"""A bell between processes on one machine: a named pipe for every process that waits, in a folder they share.

Invariants:
- A pipe stands in the folder only while its process reads it, so a writer can ring without ever blocking.
- It is opened before it gets its name, so that a pipe nobody reads is known to be stale and is removed.
- A process killed between its commit and its ring rings nobody; `net_seconds` bounds how long that stays unnoticed.
- Where no pipe can be made, nothing fails: those who wait look again after `net_seconds`, and a warning says so once.
"""

import asyncio
import errno
import logging
import os
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from outrider.core.clock import Clock
from outrider.core.files import PRIVATE_FOLDER
from outrider.core.ids import new_id
from outrider.store.bell import Bell, Topic

_log = logging.getLogger(__name__)


class FifoBell(Bell):
    """Rings in every process that listens on the same folder."""

    net_seconds = 1.0

    def __init__(self, clock: Clock, folder: Path) -> None:
        super().__init__(clock)
        self.name = new_id("bell")
        self._folder = folder
        self._pipes: dict[Topic, tuple[Path, int]] = {}
        self._is_said = False

    def on_first_listener(self, topic: Topic) -> None:
        try:
            try:
                path, descriptor = self._new_pipe(topic)
            except FileNotFoundError:  # the last one to leave has just taken the folder away
                path, descriptor = self._new_pipe(topic)
        except OSError as exc:
            if not self._is_said:
                self.say_unheard(exc)
            self._is_said = True
            return
        self._pipes[topic] = path, descriptor
        asyncio.get_running_loop().add_reader(descriptor, self._heard, topic, descriptor)

    def say_unheard(self, error: OSError) -> None:
        """No pipe can be made."""
        _log.warning(
            "other processes cannot wake this one through %s: %s; those who wait look every %g s instead",
            self._folder,
            error,
            self.net_seconds,
        )

    def make_folder(self) -> None:
        self._folder.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)

    def _new_pipe(self, topic: Topic) -> tuple[Path, int]:
        self.make_folder()
        name = f"{topic}-{self.name}"
        unnamed = self._folder / f".{name}"
        os.mkfifo(unnamed, 0o600)
        try:
            # Open for writing too: a pipe whose last writer has gone would be readable for ever.
            descriptor = os.open(unnamed, os.O_RDWR | os.O_NONBLOCK)
            try:
                return unnamed.rename(self._folder / name), descriptor
            except OSError:
                os.close(descriptor)
                raise
        except OSError:
            with suppress(OSError):
                unnamed.unlink()
            raise

    def on_last_listener(self, topic: Topic) -> None:
        if topic not in self._pipes:
            return
        path, descriptor = self._pipes.pop(topic)
        asyncio.get_running_loop().remove_reader(descriptor)
        with suppress(OSError):
            path.unlink()
        os.close(descriptor)

    def _heard(self, topic: Topic, descriptor: int) -> None:
        with suppress(BlockingIOError):
            os.read(descriptor, 4096)
        self.ring_here(topic)

    def ring_others(self, topics: Collection[Topic], *, but: str = "") -> None:
        """Wake the other processes, except the bell named `but`. May be called from any thread.

        It costs a directory listing when nobody waits. A ring that fails, as when this process has no descriptor left,
        must not harm what is already committed.
        """
        with suppress(OSError):
            for pipe in os.listdir(self._folder):  # noqa: PTH208 names alone, on the path of every commit
                topic, _, name = pipe.partition("-")
                if topic in topics and name not in (self.name, but):
                    _ring(self._folder / pipe)


def _ring(pipe: Path) -> None:
    try:
        descriptor = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError as exc:
        if exc.errno == errno.ENXIO:
            pipe.unlink(missing_ok=True)
        return
    try:
        with suppress(BlockingIOError):
            os.write(descriptor, b"!")
    finally:
        os.close(descriptor)
