"""A database that is away: whoever needs it waits for it, and it is said once, and once more when it is back.

Invariants:
- It is back when one of the calls that failed succeeds: on a full disk reads succeed all the time, and say nothing.
- However many calls of a process fail meanwhile, it is said once.
"""

import logging
import time
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import TypeVar
from weakref import WeakSet

from outrider.core.clock import Clock, sleep
from outrider.core.errors import StoreUnavailable, message_of

R = TypeVar("R")

_log = logging.getLogger(__name__)

PAUSE_SECONDS = 1.0
"""The pause before a store is asked again that could not be reached."""


class Outage:
    """What the calls on one open store have met."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: WeakSet[RepeatedCall] = WeakSet()
        self._since = 0.0

    @property
    def seconds(self) -> float:
        """How long the store has been away; 0 if it is there."""
        return max(self._clock.monotonic() - self._since, 0.001) if self._waiting else 0.0

    def met(self, call: "RepeatedCall", error: BaseException, since: float) -> None:
        """A call has failed that began at `since`."""
        if not self._waiting:
            self._since = since
            began = time.strftime("%H:%M:%S", time.localtime(self._clock.time() - self._clock.monotonic() + since))
            _log.warning("the store is away since %s; waiting for it: %s", began, message_of(error) or "no answer")
        self._waiting.add(call)

    def over(self, call: "RepeatedCall") -> None:
        """A call has succeeded."""
        if call in self._waiting:
            _log.warning("the store is back after %.0f s", self.seconds)
            self._waiting.clear()

    def now(self) -> float:
        return self._clock.monotonic()


class RepeatedCall:
    """One call that is made until it succeeds: each time in a `with` block, from which what it raises still comes."""

    def __init__(self, outage: Outage) -> None:
        self._outage = outage
        self._began = 0.0

    def __enter__(self) -> None:
        self._began = self._outage.now()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self._outage.over(self)
        elif isinstance(error, (StoreUnavailable, TimeoutError)):
            self._outage.met(self, error, self._began)


async def insist(outage: Outage, clock: Clock, call: Callable[[], Awaitable[R]]) -> R:
    """Make a call to the store, which may be repeated, until it is reached."""
    repeated = RepeatedCall(outage)
    while True:
        try:
            with repeated:
                return await call()
        except StoreUnavailable:
            await sleep(clock, PAUSE_SECONDS)
