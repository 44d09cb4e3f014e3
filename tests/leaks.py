"""Nothing may be left behind: tasks, threads and file descriptors before and after."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from outrider.testing import eventually


@asynccontextmanager
async def no_leaks() -> AsyncIterator[None]:
    """Fail if the block leaves a task, a thread or a file descriptor; what is about to end gets a moment to do so."""
    # Made on first use and kept by Python itself: not ours.
    os.urandom(1)
    before = _belongings()
    yield

    async def nothing_new() -> bool:
        return not any(after - kept for kept, after in zip(before, _belongings(), strict=True))

    try:
        await eventually(nothing_new, within_seconds=2.0)
    except TimeoutError:
        left = [after - kept for kept, after in zip(before, _belongings(), strict=True)]
        raise AssertionError(f"left behind: {left}") from None


def _belongings() -> tuple[frozenset[object], frozenset[object], frozenset[object]]:
    tasks = frozenset(asyncio.all_tasks() - {asyncio.current_task()})
    return tasks, frozenset(threading.enumerate()), _descriptors()


def _descriptors() -> frozenset[object]:
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            found.add((name, os.readlink(f"/proc/self/fd/{name}")))
        except FileNotFoundError:  # the descriptor of the listing itself
            continue
    return frozenset(found)
