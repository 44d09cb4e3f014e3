"""The way into an endpoint: permits up to its limit, first come, first served.

Invariants: no more permits are out than the limit allowed when each was given; a permit that was given is given back,
also when its taker is cancelled in the same moment; a waiter that is cancelled leaves at once.
"""

import asyncio
from collections import OrderedDict
from types import TracebackType
from typing import Self

from outrider.core.clock import Clock, TimerHandle
from outrider.policy.openai.limit import ConcurrencyLimit

LONGEST_HOLD_SECONDS = 60.0


class Gate:
    """Belongs to one event loop."""

    def __init__(self, limit: ConcurrencyLimit, clock: Clock) -> None:
        self._limit = limit
        self._clock = clock
        self._waiters: OrderedDict[asyncio.Future[None], None] = OrderedDict()
        self._n_in_flight = 0
        self._held_until = float("-inf")
        self._hold_timer: TimerHandle | None = None

    @property
    def limit(self) -> int:
        return self._limit.limit

    @property
    def n_in_flight(self) -> int:
        return self._n_in_flight

    @property
    def load(self) -> int:
        """Calls that are under way or wait here."""
        return self._n_in_flight + len(self._waiters)

    def permit(self, *, again: bool = False) -> "Permit":
        """For `async with`. `again`: the call has waited here before, so it goes first."""
        return Permit(self, self._clock, again)

    def hold(self, seconds: float) -> None:
        """Give out no permit for a while: the endpoint asked for a pause."""
        until = self._clock.monotonic() + min(seconds, LONGEST_HOLD_SECONDS)
        if until <= self._held_until:
            return
        self._held_until = until
        if self._hold_timer is not None:
            self._hold_timer.cancel()
        self._hold_timer = self._clock.call_later(until - self._clock.monotonic(), self._resume)

    def close(self) -> None:
        """Stop holding; who waits is let in."""
        if self._hold_timer is not None:
            self._hold_timer.cancel()
        self._resume()

    async def acquire(self, *, again: bool) -> None:
        if self._is_open and not self._waiters:
            self._n_in_flight += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters[turn] = None
        if again:
            self._waiters.move_to_end(turn, last=False)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._waiters.pop(turn, None)
            else:  # the permit was given while the cancellation was on its way
                self.release()
            raise

    def release(self) -> None:
        self._n_in_flight -= 1
        self._admit()

    def succeeded(self, began_at: float) -> None:
        """Tell the limit how a call went, while its permit is still out."""
        is_saturated = bool(self._waiters) or self._n_in_flight >= self._limit.limit
        self._limit.succeeded(began_at=began_at, ended_at=self._clock.monotonic(), is_saturated=is_saturated)

    def refused(self, began_at: float) -> None:
        self._limit.refused(began_at=began_at, ended_at=self._clock.monotonic())

    @property
    def _is_open(self) -> bool:
        return self._n_in_flight < self._limit.limit and self._hold_timer is None

    def _resume(self) -> None:
        self._hold_timer = None
        self._held_until = float("-inf")
        self._admit()

    def _admit(self) -> None:
        while self._waiters and self._is_open:
            turn, _ = self._waiters.popitem(last=False)
            if not turn.cancelled():
                self._n_in_flight += 1
                turn.set_result(None)


class Permit:
    """One call's way in and out."""

    __slots__ = ("_again", "_began_at", "_clock", "_gate")

    def __init__(self, gate: Gate, clock: Clock, again: bool) -> None:
        self._gate = gate
        self._clock = clock
        self._again = again
        self._began_at = 0.0

    def succeeded(self) -> None:
        self._gate.succeeded(self._began_at)

    def refused(self) -> None:
        self._gate.refused(self._began_at)

    async def __aenter__(self) -> Self:
        await self._gate.acquire(again=self._again)
        self._began_at = self._clock.monotonic()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._gate.release()
