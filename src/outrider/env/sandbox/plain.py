"""No walls, for those who ask for it: a subprocess with limits, a session, a folder and a seccomp filter.

The program can read what its user can read, and if it is of our own user, harm our other processes. Started by root it
becomes a user of its own; where it cannot, because there are no other users or they cannot read Python, it is refused.
"""

import asyncio
import os
import signal
import tempfile
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from outrider.core.errors import EnvError
from outrider.core.processes import Child, gone
from outrider.core.tasks import uninterrupted
from outrider.env.sandbox.census import family, tasks_of
from outrider.env.sandbox.enclosure import (
    GONE_SECONDS,
    LAUNCHER,
    LAUNCHER_OPTIONS,
    PYTHON,
    Enclosure,
    Mechanism,
    Streams,
    spare_user,
    spawn,
)
from outrider.env.sandbox.pipes import Descriptors
from outrider.env.sandbox.program import Limits
from outrider.isolation import seccomp

REMOVAL_SECONDS = 60.0


class PlainSubprocess(Mechanism):
    """Its name says what is missing."""

    def __init__(self, *, filters: bool) -> None:
        self._filter = seccomp.filter_program(seccomp.Profile.PROGRAM) if filters else None
        self.name = "subprocess (no walls)" if self._filter else "subprocess (no walls, no seccomp filter)"

    @asynccontextmanager
    async def enclose(self, streams: Streams, limits: Limits) -> AsyncIterator[Enclosure]:  # noqa: ARG002 the launcher's
        if os.geteuid() == 0 and spare_user(0) is None:
            raise EnvError("root finds no other user here to run the program as", stage="sandbox")
        folder = tempfile.mkdtemp(prefix="outrider-sandbox-")
        try:
            command = (PYTHON, *LAUNCHER_OPTIONS, str(LAUNCHER), str(streams.report))
            process = spawn(command, streams)
            user = spare_user(process.pid)
            enclosure = PlainEnclosure(process, folder, user, self._filter)
            try:
                if user is not None:
                    os.chown(folder, user, user)
                yield enclosure
            finally:
                await uninterrupted(enclosure.close())
        finally:
            await uninterrupted(_remove(folder))


class PlainEnclosure(Enclosure):
    """A process group, and whatever has left it and is still below the launcher."""

    keeps_orphans = True
    strays = ()

    def __init__(self, process: Child, folder: str, user: int | None, filter: bytes | None) -> None:
        self.ancestor = process.pid
        self.folder = folder
        self.user = user
        self.filter = filter
        self.n_own_processes = 0
        self._process = process
        self._owned = Descriptors()
        self._dying: list[int] = []

    def settle(self) -> None:
        if self.user is None:  # the kernel's limit is on all that our user runs
            self.n_own_processes = tasks_of(os.geteuid())

    def n_files(self) -> int:
        """Not known: it would take a walk through the folder."""
        return 0

    def kill(self) -> None:
        killed: set[int] = set()
        while new := [pid for pid in self._descendants() if pid not in killed]:
            for pid in new:
                killed.add(pid)
                with suppress(ProcessLookupError, PermissionError):
                    held = self._owned.add(os.pidfd_open(pid))
                    self._dying.append(held)
                    signal.pidfd_send_signal(held, signal.SIGKILL)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.ancestor, signal.SIGKILL)

    def _descendants(self) -> list[int]:
        """None if the launcher has ended: its orphans are out of sight, but most are still of its group."""
        return family(self.ancestor)[1:] if self._process.returncode is None else []

    async def close(self) -> None:
        self.kill()
        try:
            async with asyncio.timeout(GONE_SECONDS):
                for process in self._dying:
                    await gone(process)
                await self._process.wait()
        except TimeoutError as exc:
            raise EnvError("the program does not end though it was killed", stage="sandbox") from exc
        finally:
            self._owned.close_all()


async def _remove(folder: str) -> None:
    """By `rm`, which is not troubled by folders a thousand deep; what its owner has locked is unlocked first."""
    with suppress(TimeoutError):
        async with asyncio.timeout(REMOVAL_SECONDS):
            for command in (("rm", "-rf"), ("chmod", "-R", "u+rwx"), ("rm", "-rf")):
                process = await asyncio.create_subprocess_exec(*command, folder, stderr=DEVNULL)
                if await process.wait() == 0 and command[0] == "rm":
                    return
