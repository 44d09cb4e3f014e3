"""How processes that wait for the lock of one database learn that it is free: a named pipe with a byte in it.

Invariants:
- It is only a signal: SQLite's lock decides. A lost byte costs those who wait a pause, one too many costs a try.
- It holds at most a few bytes, and nobody blocks on it: who frees the lock writes only into an empty pipe.
- One byte wakes one of those who wait, so that they do not all run for the same lock.
- The first that has to wait makes the pipe, and it stays. Where none can be made, those who wait sleep.
"""

import fcntl
import os
import select
import stat
import struct
import termios
import time
from contextlib import suppress
from pathlib import Path

from outrider.core.files import PRIVATE_FOLDER

_EMPTY = struct.pack("i", 0)


class LockSignal:
    """The pipe, as one process sees it. Its methods are called by one thread at a time."""

    def __init__(self, pipe: Path) -> None:
        self._pipe = pipe
        self._descriptor: int | None = None
        self._epoll: select.epoll | None = None

    def wait(self, seconds: float) -> None:
        """Return when the lock may be free, or after this time."""
        if self._epoll is None:
            self._make()
        if self._epoll is None:
            time.sleep(seconds)
        elif self._epoll.poll(seconds) and self._descriptor is not None:
            with suppress(BlockingIOError):
                os.read(self._descriptor, 1)

    def send(self) -> None:
        """The lock is free."""
        if self._descriptor is None:
            if not os.access(self._pipe, os.F_OK):
                return
            self._open()
        if self._descriptor is not None and fcntl.ioctl(self._descriptor, termios.FIONREAD, _EMPTY) == _EMPTY:
            with suppress(OSError):
                os.write(self._descriptor, b"!")

    def close(self) -> None:
        if self._epoll is not None:
            self._epoll.close()
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._epoll = self._descriptor = None

    def _make(self) -> None:
        with suppress(OSError):
            self._pipe.parent.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
            with suppress(FileExistsError):
                os.mkfifo(self._pipe, 0o600)
        self._open()
        if self._descriptor is not None:
            self._epoll = select.epoll()
            self._epoll.register(self._descriptor, select.EPOLLIN | select.EPOLLEXCLUSIVE)

    def _open(self) -> None:
        """For reading and writing: so it never blocks, and is never at its end."""
        if self._descriptor is None:
            with suppress(OSError):
                descriptor = os.open(self._pipe, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
                if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
                    self._descriptor = descriptor
                else:
                    os.close(descriptor)
