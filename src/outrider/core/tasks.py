"""Work that must come to its end."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

R = TypeVar("R")


async def uninterrupted(work: Awaitable[R]) -> R:
    """Await `work` to its end even while being cancelled; the cancellation is raised afterwards.

    What is not interrupted must end by itself: bound it.
    """
    task = asyncio.ensure_future(work)
    interrupted: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as exc:
            interrupted = exc
    if interrupted is not None:
        if not task.cancelled():
            task.exception()
        raise interrupted
    return task.result()
