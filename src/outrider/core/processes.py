"""Processes of the operating system: whose they may become, and seeing them to their end."""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import Process
from contextlib import suppress
from pathlib import Path


def usable_user(number: int) -> int | None:
    """The user with this number, if a process of ours may become it; None: we are not root, or have no such user."""
    if os.geteuid() != 0:
        return None
    for line in Path("/proc/self/uid_map").read_text().splitlines() if sys.platform == "linux" else ():
        first, _, count = map(int, line.split())
        if first <= number < first + count:
            return number
    return None


async def ended(process: Process, seconds: float) -> None:
    """Until a process has ended that is about to; after so many seconds, make it."""
    try:
        async with asyncio.timeout(seconds):
            await process.wait()
    except TimeoutError:
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)  # `process.kill` may take its exit code from under asyncio
        await process.wait()
