"""Walls around one program, and how to tear them down with all that is inside."""

import os
import sys
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import NamedTuple, Protocol

from outrider.core.processes import Child, usable_user
from outrider.env.sandbox.inside import launcher
from outrider.env.sandbox.program import Limits

LAUNCHER = Path(launcher.__file__)

PYTHON = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
"""The interpreter that runs us, outside of any virtual environment."""

LAUNCHER_OPTIONS = ("-I", "-S")

SPARE_IDS = 0x10000000
"""Above any account: a program started by root becomes the user with this number plus the number of its process."""

GONE_SECONDS = 10.0
"""How long the kernel may take to end what was killed."""


class Streams(NamedTuple):
    """The ends of pipes that go inside, and the descriptors that are handed over."""

    stdin: int
    stdout: int
    stderr: int
    report: int
    handed: tuple[int, ...]


class Enclosure(Protocol):
    """One launcher behind walls. It waits for orders when its report says so."""

    ancestor: int
    """The process, as the host knows it, below which all others are."""

    folder: str
    """Where the program runs, as it knows it."""

    user: int | None
    """Which user the program shall become, as the launcher knows it."""

    filter: bytes | None
    """The filter of system calls that the launcher shall put on."""

    keeps_orphans: bool
    """Whether the launcher stands in for the first process of a namespace."""

    strays: tuple[int, ...]
    """Descriptors that the launcher has and nobody needs."""

    n_own_processes: int
    """How many processes that are not the program's the kernel counts against its limit; known once settled."""

    def settle(self) -> None:
        """The launcher is ready: see to what can only be done now."""

    def n_files(self) -> int:
        """How many files lie in the program's folder."""
        ...

    def kill(self) -> None:
        """End all inside, now. May be called more than once."""

    async def close(self) -> None:
        """End all inside and give back what the walls held; nothing is left when this returns."""


class Mechanism(Protocol):
    """A way to build walls."""

    name: str

    def enclose(self, streams: Streams, limits: Limits) -> AbstractAsyncContextManager[Enclosure]:
        """Start a launcher. Raises `EnvError` if the walls cannot be built."""
        ...


def spawn(command: Sequence[str], streams: Streams, *more: int) -> Child:
    given = (streams.report, *streams.handed, *more)
    return Child(command, stdin=streams.stdin, stdout=streams.stdout, stderr=streams.stderr, given=given)


def spare_user(pid: int) -> int | None:
    """A user of its own for a process that root has started; None: we are not root, or have no other users."""
    return usable_user(SPARE_IDS + pid)
