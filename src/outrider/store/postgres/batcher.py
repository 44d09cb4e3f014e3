"""Many calls, one round trip: calls of one kind that come while another is under way are carried out together.

Invariants:
- Nothing is delayed on purpose: a call that finds its kind idle is carried out at once, with those made in the same
  turn of the event loop.
- A call that is refused harms no other: if a batch as a whole is refused, each call is carried out by itself.
- A call is carried out even if its caller no longer waits, unless the batcher is told to drop those not yet begun.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Generic, TypeVar

from outrider.core.errors import StoreUnavailable

A = TypeVar("A")
R = TypeVar("R")


class Batcher(Generic[A, R]):
    """Carries out calls with `carry_out`, which takes a batch and gives each call's result or error, in order.

    Calls with the same `key` share batches. A batch holds calls of at most `limit` by `weight`, but at least one, and
    no two calls with the same `subject`, where calls have one. `orphaned` gets the result of a call whose caller was
    cancelled while it was under way; with it, calls that were cancelled before they were begun are dropped.
    """

    def __init__(
        self,
        carry_out: Callable[[Sequence[A]], Awaitable[Sequence[R | Exception]]],
        *,
        limit: int,
        weight: Callable[[A], int] = lambda _: 1,
        key: Callable[[A], Hashable] = lambda _: None,
        subject: Callable[[A], Hashable] | None = None,
        orphaned: Callable[[R], None] | None = None,
    ) -> None:
        self._carry_out = carry_out
        self._limit = limit
        self._weight = weight
        self._key = key
        self._subject = subject
        self._orphaned = orphaned
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[Hashable, deque[tuple[A, asyncio.Future[R]]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def submit(self, call: A) -> "asyncio.Future[R]":
        """Ask for a call."""
        future: asyncio.Future[R] = self._loop.create_future()
        key = self._key(call)
        waiting = self._waiting.get(key)
        if waiting is None:
            waiting = self._waiting[key] = deque()
            task = self._loop.create_task(self._work(key, waiting))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        waiting.append((call, future))
        return future

    async def drain(self, seconds: float) -> None:
        """Wait until nothing is under way; what takes longer is given up."""
        deadline = self._loop.time() + seconds
        while self._tasks and (left := deadline - self._loop.time()) > 0:
            await asyncio.wait(self._tasks, timeout=left)
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _work(self, key: Hashable, waiting: deque[tuple[A, asyncio.Future[R]]]) -> None:
        batch: list[tuple[A, asyncio.Future[R]]] = []
        try:
            while batch := self._next_batch(waiting):
                self._deliver(batch, await self._outcomes([call for call, _ in batch]))
        finally:
            del self._waiting[key]
            for _, future in (*batch, *waiting):
                future.cancel()

    def _next_batch(self, waiting: deque[tuple[A, asyncio.Future[R]]]) -> list[tuple[A, asyncio.Future[R]]]:
        batch: list[tuple[A, asyncio.Future[R]]] = []
        subjects: set[Hashable] = set()
        total, drops, weight, subject_of = 0, self._orphaned is not None, self._weight, self._subject
        while waiting:
            call, future = waiting[0]
            if drops and future.cancelled():
                waiting.popleft()
                continue
            total += weight(call)
            if batch and total > self._limit:
                break
            if subject_of is not None:
                subject = subject_of(call)
                if subject in subjects:
                    break
                subjects.add(subject)
            batch.append(waiting.popleft())
        return batch

    async def _outcomes(self, calls: Sequence[A]) -> Sequence[R | Exception]:
        try:
            return await self._carry_out(calls)
        except Exception as exc:  # noqa: BLE001 raised again in the callers of `submit`
            if len(calls) > 1 and not isinstance(exc, StoreUnavailable):
                return [(await self._outcomes([call]))[0] for call in calls]
            return [exc] * len(calls)

    def _deliver(self, batch: list[tuple[A, asyncio.Future[R]]], outcomes: Sequence[R | Exception]) -> None:
        for (_, future), outcome in zip(batch, outcomes, strict=True):
            if future.cancelled():
                if self._orphaned is not None and not isinstance(outcome, Exception):
                    self._orphaned(outcome)
            elif isinstance(outcome, Exception):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)
