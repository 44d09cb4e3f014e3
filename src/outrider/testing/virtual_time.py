"""Event loops on a time of their own: one that jumps to whatever is due next, one that runs faster than the clock.

On virtual time a program that sleeps for hours ends in milliseconds, and the same program always does the same in the
same order: deadlines, retries and races can be replayed. Nothing outside the loop may be waited for: no thread, no
socket, no process. When nothing is ready and no timer runs, nothing will ever happen again: that raises `Deadlock`.
"""

import asyncio
import selectors
import time
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

from outrider.core.clock import TimerHandle
from outrider.core.errors import OutriderError
from outrider.testing.clock import START

T = TypeVar("T")

RESOLUTION = 1e-6
"""Below this, in seconds, virtual times are the same: a loop's own resolution is lost in the floats of a long run."""

NAMED_TASKS = 8
"""How many of the tasks that wait a `Deadlock` names in its message."""


class Deadlock(OutriderError):
    """All tasks wait for something that will not come. `waiting` names them, `at` is the loop's time in seconds."""

    def __init__(self, at: float, reason: str, waiting: Iterable[str]) -> None:
        self.at = at
        self.waiting = tuple(sorted(waiting))
        more = len(self.waiting) - NAMED_TASKS
        names = ", ".join(self.waiting[:NAMED_TASKS]) + (f" and {more} more" if more > 0 else "")
        super().__init__(f"after {at:g} s {reason}; waiting: {names or 'no task'}")


class LoopClock:
    """The time of the running event loop as a `Clock`: `START` plus what has passed on the loop."""

    def __init__(self, start: float = START) -> None:
        self._start = start

    def time(self) -> float:
        return self._start + self.monotonic()

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def jump(self, seconds: float) -> None:
        """Set the wall clock forward, or backward if negative, while no time passes."""
        self._start += seconds

    def call_later(self, delay_seconds: float, callback: Callable[[], object]) -> TimerHandle:
        return asyncio.get_running_loop().call_later(delay_seconds, callback)


class _Jump(selectors.SelectSelector):
    """Waits by moving the loop's time to the next timer."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.limit: float | None = None

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise self._deadlock("nothing is ready and no timer runs")
        if timeout > 0:
            if self.limit is not None and self.now + timeout > self.limit:
                raise self._deadlock(f"more than the limit of {self.limit:g} s would pass")
            self.now += timeout
        return []

    def _deadlock(self, reason: str) -> Deadlock:
        waiting = [_named(task) for task in asyncio.all_tasks(asyncio.get_running_loop())]
        return Deadlock(self.now, reason, waiting)


class VirtualLoop(asyncio.SelectorEventLoop):
    """Time stands still while anything is ready, then jumps to the next timer. It begins at 0.

    With `limit_seconds`, a jump past that time raises `Deadlock` too: where something always has a timer, such as the
    sweeper of a store, that is how a program that hangs is found.
    """

    def __init__(self, *, limit_seconds: float | None = None) -> None:
        self._jump = _Jump()
        super().__init__(self._jump)
        self._jump.limit = limit_seconds
        self._clock_resolution = RESOLUTION  # a timer is due when less than this is left

    def time(self) -> float:
        return self._jump.now

    def lift_limit(self) -> None:
        """Let what is left clean up after itself, however long that takes."""
        self._jump.limit = None


class _Hurry(selectors.DefaultSelector):
    """Waits a `speed`th of what it is told."""

    def __init__(self, speed: float) -> None:
        super().__init__()
        self._speed = speed

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found: list[tuple[selectors.SelectorKey, int]] = super().select(
            timeout if timeout is None else timeout / self._speed
        )
        return found


class ScaledLoop(asyncio.SelectorEventLoop):
    """Real time, `speed` times as fast, from 0: a sleep of 100 s takes 1 s at a speed of 100."""

    def __init__(self, speed: float) -> None:
        self._began = time.monotonic()
        self._speed = speed
        super().__init__(_Hurry(speed))

    def time(self) -> float:
        return (time.monotonic() - self._began) * self._speed


def run_virtual(coroutine: Coroutine[Any, Any, T], *, limit_seconds: float | None = None) -> T:
    """Run it on virtual time, as `asyncio.run` does on real time; see `VirtualLoop` for the limit."""
    loop = VirtualLoop(limit_seconds=limit_seconds)
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        try:
            return runner.run(coroutine)
        finally:
            loop.lift_limit()


def run_scaled(coroutine: Coroutine[Any, Any, T], *, speed: float = 100.0) -> T:
    """Run it on real time made `speed` times as fast."""
    with asyncio.Runner(loop_factory=lambda: ScaledLoop(speed)) as runner:
        return runner.run(coroutine)


def _named(task: "asyncio.Task[Any]") -> str:
    """The task's name, and its coroutine's where the name is only a number."""
    name, coroutine = task.get_name(), task.get_coro()
    return f"{name} ({getattr(coroutine, '__qualname__', coroutine)})" if name.startswith("Task-") else name
