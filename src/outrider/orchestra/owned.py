"""Tasks that have an owner: whatever becomes of them, it is the owner who learns of it, and none outlives the owner.

What runs at once is looked at in the same order as what runs one after the other, so that the result is the same.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Generic, Self, TypeVar

from outrider.core.tasks import uninterrupted

T = TypeVar("T")
Work = Callable[[], Coroutine[Any, Any, T]]


class Tasks(Generic[T]):
    """Runs each of `work`, all at once or one after the other; iterate over it for the tasks as they end.

    They come in the order given, or, with `ordered=False`, in that in which they end. Tasks that were not come to when
    the block ends are cancelled and awaited, and stand in `left` with their places. `needs_all`: one that fails makes
    those after it useless, so they are cancelled at once; those before it go on, since they may fail too, and the first
    failure by order is the one that counts.
    """

    def __init__(
        self, work: Sequence[Work[T]], *, at_once: bool, ordered: bool = True, needs_all: bool = False
    ) -> None:
        self._work = work
        self._at_once = at_once
        self._ordered = ordered
        self._needs_all = needs_all
        self._tasks: list[asyncio.Task[T]] = []
        self._n_seen = 0
        self.left: dict[int, asyncio.Task[T]] = {}

    async def __aenter__(self) -> Self:
        if self._at_once:
            for each in self._work:
                self._start(each)
        return self

    async def __aexit__(self, *raised: object) -> None:
        await ended(list(self.left.values()))

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> "asyncio.Task[T]":
        if self._n_seen == len(self._work):
            raise StopAsyncIteration
        if not self._at_once:
            self._start(self._work[self._n_seen])
        awaited = list(self.left.values())
        if self._ordered:
            del awaited[1:]
        await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
        self._n_seen += 1
        return self.left.pop(next(place for place, task in self.left.items() if task.done()))

    def _start(self, work: Work[T]) -> "asyncio.Task[T]":
        task = asyncio.ensure_future(work())
        self.left[len(self._tasks)] = task
        self._tasks.append(task)
        if self._needs_all:
            task.add_done_callback(self._cut_off)
        return task

    def _cut_off(self, task: "asyncio.Task[T]") -> None:
        if failed(task):
            for later in self._tasks[self._tasks.index(task) + 1 :]:
                later.cancel()


async def all_of(work: Sequence[Work[T]]) -> list[T]:
    """All results in order. As soon as one fails, the others are cancelled and awaited, and its error is raised."""
    tasks = [asyncio.ensure_future(each()) for each in work]
    try:
        if tasks:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in tasks:
            if task.done() and failed(task):
                task.result()
        return [task.result() for task in tasks]
    finally:
        await ended(tasks)


async def ended(tasks: "Sequence[asyncio.Task[Any]]") -> None:
    """Cancel tasks and wait for their end, even while being cancelled oneself."""
    for task in tasks:
        task.cancel()
    if tasks:
        await uninterrupted(asyncio.wait(tasks))


def failed(task: "asyncio.Task[Any]") -> bool:
    return task.cancelled() or task.exception() is not None
