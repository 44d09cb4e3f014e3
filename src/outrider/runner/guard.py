"""Ends whatever worker processes leave behind, also when their supervisor was killed. Needs the standard library alone.

Every worker process has a mark in its environment, which all that it starts inherits: a new session, a double fork or
the death of a parent does not hide a process. The worker itself, and what it forks, is undumpable: nobody but root can
read its environment, so it has the mark in its command line too.

As a program, `guard.py NAME=VALUE SECONDS` waits until its standard input ends, as it does with the supervisor; lets
workers drain for so long; then kills all whose mark begins so.
"""

import os
import signal
import sys
import time
from contextlib import suppress

PROGRAM = "outrider.runner.process"
"""The program of a worker process, as it stands in its command line."""

KILL_SECONDS = 2.0
LOOK_SECONDS = 0.2


def marked(mark: str) -> list[int]:
    """The processes with a variable or an argument that begins so, this one left out; none where there is no /proc."""
    needle = b"\0" + mark.encode()
    try:
        names = os.listdir("/proc")  # noqa: PTH208 these are no paths
    except OSError:
        return []
    pids = [name for name in names if name.isdecimal() and int(name) != os.getpid()]
    return [int(pid) for pid in pids if any(needle in b"\0" + _read(pid, file) for file in ("environ", "cmdline"))]


def kill_marked(mark: str) -> None:
    """Kill them, and those that they start meanwhile; returns when all are gone, or after a while."""
    deadline = time.monotonic() + KILL_SECONDS
    while (pids := marked(mark)) and time.monotonic() < deadline:
        for pid in pids:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def _read(pid: str, name: str) -> bytes:
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:  # noqa: PTH123
            return file.read()
    except OSError:  # it is gone, or another user's
        return b""


def _has_workers(mark: str) -> bool:
    return any(PROGRAM.encode() in _read(str(pid), "cmdline") for pid in marked(mark))


def main() -> None:
    """Guard until the end of standard input, as a process that is nobody's child."""
    mark, seconds = sys.argv[1], float(sys.argv[2])
    if os.fork() > 0:
        return
    while os.read(0, 4096):
        continue
    deadline = time.monotonic() + seconds
    while _has_workers(mark) and time.monotonic() < deadline:
        time.sleep(LOOK_SECONDS)
    kill_marked(mark)


if __name__ == "__main__":
    main()
