"""How long the turns of an attempt may take, and the watch that is kept on it."""

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from outrider.core.bounds import SecondsLimit, check_bounds
from outrider.core.clock import Clock
from outrider.core.errors import LimitError

R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnLimits:
    """`turn_seconds` bounds each model call and each step of the environment, `trajectory_seconds` their sum."""

    turn_seconds: SecondsLimit = math.inf
    trajectory_seconds: SecondsLimit = math.inf

    def __post_init__(self) -> None:
        check_bounds(self)


class Stopwatch:
    """Times the calls of one attempt. Only calls count, not what the attempt waits for between them."""

    def __init__(self, limits: TurnLimits, clock: Clock) -> None:
        self._limits = limits
        self._clock = clock
        self._spent_seconds = 0.0

    async def time(self, stage: str, call: Callable[[], Awaitable[R]]) -> tuple[R, float]:
        """What the call returns, and the seconds it took. Raises `LimitError` if it takes too long."""
        left = self._limits.trajectory_seconds - self._spent_seconds
        seconds = min(self._limits.turn_seconds, left)
        if seconds <= 0:
            raise self._exceeded(stage, left)
        began = self._clock.monotonic()
        try:
            answer = await (call() if seconds == math.inf else self._bounded(stage, call, seconds, left))
        finally:
            took = self._clock.monotonic() - began
            self._spent_seconds += took
        return answer, took

    async def _bounded(self, stage: str, call: Callable[[], Awaitable[R]], seconds: float, left: float) -> R:
        scope = asyncio.timeout(None)
        timer = self._clock.call_later(seconds, lambda: scope.reschedule(asyncio.get_running_loop().time()))
        try:
            async with scope:
                return await call()
        except TimeoutError as exc:
            if scope.expired():
                raise self._exceeded(stage, left) from exc
            raise
        finally:
            timer.cancel()

    def _exceeded(self, stage: str, left: float) -> LimitError:
        limits = self._limits
        if left <= limits.turn_seconds:
            text = f"turns took longer than the trajectory_seconds of {limits.trajectory_seconds:g} s in all"
        else:
            text = f"it took longer than the turn_seconds of {limits.turn_seconds:g} s"
        return LimitError(f"{stage}: {text}", stage=stage)
