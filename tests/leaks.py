"""Nothing may be left behind: tasks, threads and file descriptors before and after."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from outrider.testing import eventually


@asynccontextmanager
async def no_leaks() -> AsyncIterator[None]:
    """Fail if the block leaves a task, a thread or a file descriptor; what is about to end gets a moment to do so."""
    before = _belongings()
    yield

    async def nothing_new() -> bool:
        return not any(after - kept for kept, after in zip(before, _belongings(), strict=True))

    try:
        await eventually(nothing_new, within_seconds=20)
    except TimeoutError:
        left = [after - kept for kept, after in zip(before, _belongings(), strict=True)]
        raise AssertionError(f"left behind: {left}") from None


def _belongings() -> tuple[frozenset[object], frozenset[object], frozenset[object]]:
    tasks = frozenset(asyncio.all_tasks() - {asyncio.current_task()})
    return tasks, frozenset(threading.enumerate()), _descriptors()


def _descriptors() -> frozenset[object]:
    found = set()
    for descriptor in list(Path("/proc/self/fd").iterdir()):
        with suppress(FileNotFoundError):  # the descriptor of the listing itself
            found.add((descriptor.name, descriptor.readlink()))
    return frozenset(found)
