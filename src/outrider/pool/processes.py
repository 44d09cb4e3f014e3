"""A process that machines consist of: started, found again after we died, watched and ended by its pidfd."""

import asyncio
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

from outrider.core.errors import MachineError

KILL_SECONDS = 10.0

_START_TIME = 19
"""Which word of /proc/PID/stat it is, counted behind the name in parentheses."""


class Process:
    """Owns a pidfd until `close`. The process is not tied to ours and may outlive it."""

    def __init__(self, pid: int, started: int, pidfd: int, *, is_child: bool) -> None:
        self.pid = pid
        self.started = started
        self._pidfd = pidfd
        self._is_child = is_child
        self._gone = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().add_reader(pidfd, self._end)

    @classmethod
    def start(cls, arguments: Sequence[str], *, log: Path, handed: Sequence[int]) -> Self:
        """Start a program in a session of its own. It gets the descriptors under their numbers, and no other."""
        pid = os.posix_spawnp(
            arguments[0],
            tuple(arguments),
            {name: value for name, value in os.environ.items() if name in {"PATH", "TMPDIR"}},
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, os.fspath(log), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600),
                (os.POSIX_SPAWN_DUP2, 1, 2),
                *((os.POSIX_SPAWN_DUP2, one, one) for one in handed),
            ],
            setsid=True,
        )
        return cls(pid, start_time(pid) or 0, os.pidfd_open(pid), is_child=True)

    @classmethod
    def find(cls, pid: int, started: int) -> Self | None:
        """The process with this id, if it is the one that was started at this time, and it lives."""
        try:
            pidfd = os.pidfd_open(pid)
        except (OSError, ValueError):
            return None
        if start_time(pid) != started:
            os.close(pidfd)
            return None
        return cls(pid, started, pidfd, is_child=False)

    @property
    def is_gone(self) -> bool:
        return self._gone.done()

    async def wait(self) -> None:
        """Return as soon as it has ended."""
        await asyncio.wait([self._gone])

    async def kill(self) -> None:
        """End it and wait for that; more than once changes nothing."""
        if not self.is_gone:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            done, _ = await asyncio.wait([self._gone], timeout=KILL_SECONDS)
            if not done:
                raise MachineError(f"process {self.pid} does not end", stage="machine.kill")

    def close(self) -> None:
        """Stop watching; a process that lives goes on living."""
        if not self.is_gone:
            self._ignore()
            self._gone.set_result(None)

    def _end(self) -> None:
        if self._is_child:
            with suppress(ChildProcessError):
                os.waitpid(self.pid, os.WNOHANG)
        self._ignore()
        self._gone.set_result(None)

    def _ignore(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)


def start_time(pid: int) -> int | None:
    """When a process was started, in ticks since the boot of the host; None if there is no such process alive."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if words[0] in {"Z", "X"} else int(words[_START_TIME])


def named(prefix: str) -> Iterator[tuple[int, list[str]]]:
    """All processes of this host with an argument that begins so: their ids and their arguments."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with suppress(OSError):
                arguments = (folder / "cmdline").read_text(errors="replace").split("\0")
                if any(argument.startswith(prefix) for argument in arguments):
                    yield int(folder.name), arguments
