"""The tries of one call that are under way: one, or several where an endpoint has fallen silent."""

import asyncio
import math
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self

from outrider.core.clock import Clock
from outrider.core.tasks import uninterrupted
from outrider.policy.openai.endpoints import Endpoint
from outrider.policy.protocol import Completion


class Try:
    """A call on its way to one endpoint. `number` counts from 1."""

    def __init__(self, endpoint: Endpoint, number: int, clock: Clock) -> None:
        self.endpoint = endpoint
        self.number = number
        self.sent_at: float | None = None
        """None while it waits in our own queue."""
        self._clock = clock
        self._heard_at = float("inf")

    def sent(self) -> None:
        self.sent_at = self._heard_at = self._clock.monotonic()
        self.endpoint.sent()

    def heard(self) -> None:
        """A piece of the answer has come."""
        self._heard_at = self._clock.monotonic()
        self.endpoint.heard()

    def patience(self, *, endpoint_seconds: float, own_seconds: float) -> float:
        """How long to go on waiting for it alone: the endpoint may be silent to all calls, or to this one, so long."""
        own_silence = self._clock.monotonic() - self._heard_at
        return min(endpoint_seconds - self.endpoint.silent_seconds, own_seconds - own_silence)


class Tries:
    """Those that are left when the block ends are cancelled, and have ended after it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._tasks: dict[asyncio.Task[Completion], Try] = {}
        self._news: asyncio.Future[None] | None = None

    def __len__(self) -> int:
        return len(self._tasks)

    @property
    def under_way(self) -> tuple[Try, ...]:
        return tuple(self._tasks.values())

    def begin(self, one: Try, work: Coroutine[Any, Any, Completion]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(self._wake)
        self._tasks[task] = one

    async def ended(self, seconds: float) -> "tuple[Try, asyncio.Task[Completion]] | None":
        """One that has ended; None if none does within `seconds`, which may be infinite. Without any it is a pause."""
        if (found := self._found()) is not None:
            return found
        self._news = asyncio.get_running_loop().create_future()
        timer = None if math.isinf(seconds) else self._clock.call_later(max(seconds, 0.0), self._wake)
        try:
            await self._news
        finally:
            if timer is not None:
                timer.cancel()
        return self._found()

    def _found(self) -> "tuple[Try, asyncio.Task[Completion]] | None":
        task = next((task for task in self._tasks if task.done()), None)
        return None if task is None else (self._tasks.pop(task), task)

    def _wake(self, _: object = None) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if not self._tasks:
            return
        for task in self._tasks:
            task.cancel()
        await uninterrupted(asyncio.wait(self._tasks))
        for task in self._tasks:
            if not task.cancelled():
                task.exception()  # it came too late to matter
        self._tasks.clear()
