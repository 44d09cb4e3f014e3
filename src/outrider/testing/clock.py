"""A clock that a test moves, and waiting for what follows from it."""

import asyncio
import heapq
import itertools
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from outrider.core.clock import TimerHandle

START = 1_750_000_000.0
"""Where a fake clock begins: a plain moment in 2025, in unix seconds."""

_SETTLING_ROUNDS = 20


@dataclass(slots=True, order=True)
class _Timer:
    due: float
    number: int
    callback: Callable[[], object] | None = field(compare=False)

    def cancel(self) -> None:
        self.callback = None

    def fire(self) -> None:
        callback, self.callback = self.callback, None
        if callback is not None:
            callback()


class FakeClock:
    """Time that stands still until it is moved. It may be read from any thread; move it on the event loop."""

    def __init__(self, start: float = START) -> None:
        self._now = 0.0
        self._wall_start = start
        self._timers: list[_Timer] = []
        self._numbers = itertools.count()

    def time(self) -> float:
        return self._wall_start + self._now

    def monotonic(self) -> float:
        return self._now

    def jump(self, seconds: float) -> None:
        """Set the wall clock forward, or backward if negative, while no time passes: no call comes due by it."""
        self._wall_start += seconds

    def call_later(self, delay_seconds: float, callback: Callable[[], object]) -> TimerHandle:
        timer = _Timer(self._now + delay_seconds, next(self._numbers), callback)
        if delay_seconds <= 0:
            asyncio.get_running_loop().call_soon(timer.fire)
        else:
            heapq.heappush(self._timers, timer)
        return timer

    @property
    def n_timers(self) -> int:
        """How many calls are due later."""
        return sum(timer.callback is not None for timer in self._timers)

    async def advance(self, seconds: float) -> None:
        """Move time forward in one jump, and make the calls that have come due, in their order.

        What they wake has run as far as it can on the event loop when this returns. What must come from another
        thread, process or database may still be on its way: wait for it with `eventually`.
        """
        await _settle()
        self._now += seconds
        while self._timers and self._timers[0].due <= self._now:
            heapq.heappop(self._timers).fire()
        await _settle()


async def eventually(condition: Callable[[], Awaitable[object]], *, within_seconds: float = 30.0) -> None:
    """Wait until `condition` holds; fail after so many seconds of real time.

    It is looked at less often the longer that takes: a look may cost as much as what is waited for.
    """
    began = time.monotonic()
    async with asyncio.timeout(within_seconds):
        while not await condition():  # noqa: ASYNC110 the condition may lie in another process
            await asyncio.sleep(min(max(0.002, 0.05 * (time.monotonic() - began)), 0.025))


async def _settle() -> None:
    for _ in range(_SETTLING_ROUNDS):
        await asyncio.sleep(0)
