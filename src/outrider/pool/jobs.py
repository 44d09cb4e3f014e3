"""Tasks that run beside each other and have one owner, who stops them."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class Jobs:
    """Unlike a task group it can be left while a job ignores its cancellation, and the jobs of one do not end others.

    `on_crash` is told of what a job raised: jobs handle what may happen to them, so that is a mistake in the program.
    """

    def __init__(self, on_crash: Callable[[BaseException], None]) -> None:
        self._on_crash = on_crash
        self._tasks: dict[asyncio.Task[None], None] = {}  # in order, so that what happens can be replayed

    def start(self, work: Coroutine[Any, Any, None], name: str) -> "asyncio.Task[None]":
        task = asyncio.create_task(work, name=name)
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        return task

    async def stop(self, seconds: float) -> tuple[str, ...]:
        """Cancel all and wait for them so long; the names of those that have not ended."""
        if not self._tasks:
            return ()
        for task in self._tasks:
            task.cancel()
        _, left = await asyncio.wait(set(self._tasks), timeout=seconds)
        return tuple(sorted(task.get_name() for task in left))

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (exc := task.exception()) is not None:
            self._on_crash(exc)
