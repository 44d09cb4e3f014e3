"""Real desktops for tests, and what is left of them."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from leaks import no_leaks
from outrider.pool.providers.desktop import DesktopMachine, DesktopProvider

OWNER = f"the desktop tests of {os.getpid()}"


def family(pid: int) -> list[int]:
    """The process and all below it."""
    found = [pid]
    for one in found:
        with suppress(OSError):
            for thread in Path(f"/proc/{one}/task").iterdir():
                found.extend(map(int, (thread / "children").read_text().split()))
    return found


def n_left() -> int:
    """Processes that were started for desktops of these tests and still run."""
    found = 0
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = path.read_bytes()
            found += b"OUTRIDER_DESKTOP" in words and OWNER.encode() in words
    return found


@asynccontextmanager
async def made(provider: DesktopProvider, machine_id: str = "m1") -> AsyncIterator[DesktopMachine]:
    machine = await provider.create(machine_id, OWNER)
    try:
        yield machine
    finally:
        await machine.destroy()


@asynccontextmanager
async def nothing_left(provider: DesktopProvider) -> AsyncIterator[None]:
    async with no_leaks():
        yield
    assert await provider.owned(OWNER) == ()
    assert n_left() == 0
