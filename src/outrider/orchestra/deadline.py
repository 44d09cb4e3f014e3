"""How long one attempt at a sample may take, not counting what it is held up by.

A sample is held up by others while it stands in line for a step of the batch, and by calls that are made for nothing:
neither makes it late. Found by context variable, as the attempt is.
"""

import asyncio
import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Self

_current: ContextVar["Deadline | None"] = ContextVar("outrider_deadline", default=None)


class Deadline:
    """`async with` it: raises `TimeoutError` in the block once `seconds` have passed; `expired` tells that it did."""

    def __init__(self, seconds: float = math.inf) -> None:
        self.seconds = seconds
        self._scope = asyncio.timeout(None if seconds == math.inf else seconds)
        self._left: float | None = None
        """Seconds that were left when it was stopped."""
        self._is_open = False
        self._n_held_up = 0

    @staticmethod
    def current() -> "Deadline":
        """That of the sample at hand; one that never comes where there is none."""
        return _current.get() or Deadline()

    async def __aenter__(self) -> Self:
        await self._scope.__aenter__()
        self._is_open = True
        _current.set(self)
        return self

    async def __aexit__(self, *raised: object) -> None:
        self._is_open = False
        await self._scope.__aexit__(*raised)  # type: ignore[arg-type]

    @property
    def expired(self) -> bool:
        return self._scope.expired()

    @contextmanager
    def held_up(self) -> Iterator[None]:
        """The time in this block does not count."""
        self._n_held_up += 1
        self._look()
        try:
            yield
        finally:
            self._n_held_up -= 1
            self._look()

    def _look(self) -> None:
        if not self._is_open or self._scope.expired():
            return
        now, when = asyncio.get_running_loop().time(), self._scope.when()
        if self._n_held_up and when is not None:
            self._left = when - now
            self._scope.reschedule(None)
        elif not self._n_held_up and self._left is not None:
            self._scope.reschedule(now + self._left)
            self._left = None
