"""Time, injected, so that tests can move it."""

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache
from typing import Protocol


class TimerHandle(Protocol):
    """A call that is due later."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """Wall time as unix seconds, and a timer on that time."""

    def time(self) -> float: ...

    def call_later(self, delay_seconds: float, callback: Callable[[], object]) -> TimerHandle: ...


class SystemClock:
    """The machine's own time on the running event loop."""

    def time(self) -> float:
        return time.time()

    def call_later(self, delay_seconds: float, callback: Callable[[], object]) -> TimerHandle:
        return asyncio.get_running_loop().call_later(delay_seconds, callback)


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
