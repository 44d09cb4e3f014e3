"""A time limit for a block, on an injected clock."""

import asyncio
from types import TracebackType
from typing import Self

from outrider.core.clock import Clock, TimerHandle


class Deadline:
    """`async with Deadline(clock) as limit:` ends the block with TimeoutError once a limit that was set has passed.

    `start` sets the limit, or moves it later: cheap enough to call for every piece of a stream, since the timer is
    only moved when it fires.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._due = float("inf")
        self._timer: TimerHandle | None = None
        self._task: asyncio.Task[object] | None = None
        self._n_cancels = 0
        self._has_expired = False

    @property
    def is_set(self) -> bool:
        return self._timer is not None

    @property
    def left_seconds(self) -> float:
        """Infinite until `start`."""
        return self._due - self._clock.monotonic()

    def start(self, seconds: float) -> None:
        self._due = self._clock.monotonic() + seconds
        if self._timer is None:
            self._timer = self._clock.call_later(seconds, self._fire)

    def _fire(self) -> None:
        left = self.left_seconds
        if left > 0:
            self._timer = self._clock.call_later(left, self._fire)
        elif self._task is not None:
            self._has_expired = True
            self._task.cancel()

    async def __aenter__(self) -> Self:
        self._task = asyncio.current_task()
        assert self._task is not None
        self._n_cancels = self._task.cancelling()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        task, self._task = self._task, None
        if self._timer is not None:
            self._timer.cancel()
        if not self._has_expired or task is None:
            return
        # Who else has asked the task to stop goes before our time limit.
        if task.uncancel() <= self._n_cancels and isinstance(error, asyncio.CancelledError):
            raise TimeoutError from error
