"""Time, injected, so that tests can move it."""

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache
from typing import Protocol

OFFSET_LOOKS, OFFSET_SECONDS = 10, 0.001
"""How often at most the two clocks are compared, and how close to each other they should be read."""


class TimerHandle(Protocol):
    """A call that is due later."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """Wall time for people, monotonic time for waiting, and a timer.

    Wall time, in unix seconds, may jump: it is for timestamps. Deadlines and durations are taken on monotonic time.
    """

    def time(self) -> float: ...

    def monotonic(self) -> float: ...

    def call_later(self, delay_seconds: float, callback: Callable[[], object]) -> TimerHandle: ...


class SystemClock:
    """The machine's own time on the running event loop."""

    def time(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    def call_later(self, delay_seconds: float, callback: Callable[[], object]) -> TimerHandle:
        return asyncio.get_running_loop().call_later(delay_seconds, callback)


class SteadyClock:
    """A clock whose wall time never jumps: what it was when first asked for, plus the monotonic time since."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offset: float | None = None

    def time(self) -> float:
        if self._offset is None:
            self._offset = wall_offset(self._clock)
        return self._offset + self._clock.monotonic()

    def monotonic(self) -> float:
        return self._clock.monotonic()

    def call_later(self, delay_seconds: float, callback: Callable[[], object]) -> TimerHandle:
        return self._clock.call_later(delay_seconds, callback)


def wall_offset(clock: Clock) -> float:
    """Wall time minus monotonic time. It changes when the wall clock is set, and while the machine is suspended."""
    looks = []
    for _ in range(OFFSET_LOOKS):
        before, wall, after = clock.monotonic(), clock.time(), clock.monotonic()
        looks.append((after - before, wall - before))
        if after - before < OFFSET_SECONDS:
            break  # else the process was paused between the readings
    return min(looks)[1]


@lru_cache(maxsize=4096)
def utc(seconds: float) -> datetime:
    """Unix seconds as an aware datetime. Remembered, since what happens in one batch has one time."""
    return datetime.fromtimestamp(seconds, UTC)


async def sleep(clock: Clock, seconds: float) -> None:
    """Sleep on `clock`."""
    await wait(clock, asyncio.get_running_loop().create_future(), seconds)


async def wait(clock: Clock, future: asyncio.Future[None], seconds: float) -> bool:
    """Wait for `future` at most `seconds` on `clock`: whether it was done in time. A late future is cancelled."""
    timer = clock.call_later(max(seconds, 0.0), future.cancel)
    try:
        await asyncio.wait([future])
        return not future.cancelled()
    finally:
        timer.cancel()
