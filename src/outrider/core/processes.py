"""Processes of the operating system: what they are told, whose they may become, and seeing them to their end."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from outrider.core.descriptors import readable

_PLAIN_NAMES = frozenset(
    {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "TZ", "LANG", "LANGUAGE", "LD_LIBRARY_PATH"}
    | {"DISPLAY", "WAYLAND_DISPLAY", "XAUTHORITY"}
)
_PLAIN_PREFIXES = ("LC_", "XDG_")


def plain_variables(*more: str) -> dict[str, str]:
    """Our environment variables that tell where things are and hold no keys, and those in `more` that are set."""
    return {
        name: value
        for name, value in os.environ.items()
        if name in _PLAIN_NAMES or name in more or name.startswith(_PLAIN_PREFIXES)
    }


def usable_user(number: int) -> int | None:
    """The user with this number, if a process of ours may become it; None: we are not root, or have no such user."""
    if os.geteuid() != 0:
        return None
    for line in Path("/proc/self/uid_map").read_text().splitlines() if sys.platform == "linux" else ():
        first, _, count = map(int, line.split())
        if first <= number < first + count:
            return number
    return None


WORKER_MARK = "OUTRIDER_WORKER"
"""The environment variable that marks a worker process and all that the agents in it start, which end with it."""


def unmarked_environment() -> dict[str, str]:
    """Our variables, for a program that may outlive the worker which starts it, such as a virtual machine."""
    return {name: value for name, value in os.environ.items() if name != WORKER_MARK}


class Child:
    """A program in a session of its own that gets the descriptors it is given, and no others.

    It is not started by the event loop: which descriptors a program inherits from there is the loop's affair, and with
    uvloop it is all that are not marked otherwise. And who is cancelled while the loop starts a program has no hold of
    what that has started in turn. Unless it `inherits`, it knows nothing of our variables and our folder; in no case is
    it marked as a worker's own.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        stdin: int,
        stdout: int,
        stderr: int,
        given: Sequence[int] = (),
        inherits: bool = False,
    ) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            pass_fds=given,
            env=unmarked_environment() if inherits else {},
            cwd=None if inherits else "/",
            start_new_session=True,
        )
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.poll()

    async def wait(self) -> int:
        while (code := self._process.poll()) is None:
            descriptor = os.pidfd_open(self.pid)
            try:
                await gone(descriptor)
            finally:
                os.close(descriptor)
        return code

    async def ended(self, seconds: float) -> None:
        """Until it has ended, as it is about to; after so many seconds, make it."""
        try:
            async with asyncio.timeout(seconds):
                await self.wait()
        except TimeoutError:
            self._process.kill()
            await self.wait()


async def gone(pidfd: int) -> None:
    """Until the process has ended; for the first of a namespace, until all in it have."""
    await readable(pidfd)
