"""Calls of a group that are under way, and the handle to wait for one.

Invariants:
- A handle completes when each rank it called has an outcome: its answer, its failure, its death, or the cancellation.
- A rank has one outcome, the first that comes.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Generator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, Generic, TypeVar
from weakref import WeakSet

from outrider.cluster.engines.protocol import Caller, Seat, Token
from outrider.cluster.failure import Failure
from outrider.core.errors import CallLate

_log = logging.getLogger(__name__)

T = TypeVar("T")

QUICK_SECONDS = 1.0
"""So long the engine's own way of waiting is used; longer waits also hear of deaths that only the directory knows."""
_NOTHING = object()


class Member:
    """One start of one worker, as its group sees it. `death` is why it is gone."""

    def __init__(self, address: str, rank: int, seat: Any) -> None:
        self.address = address
        self.rank = rank
        self.seat: Seat = seat
        self.death: str | None = None


class Call(Generic[T]):
    """One method called on some workers of a group: wait for it in a thread, or await it in any event loop.

    The results are a list by rank. A worker's exception is raised as itself, with a note that names the worker and
    holds its traceback; if several failed, the lowest rank's is raised and a note counts the others.
    """

    def __init__(self, flight: "Flight", method: str, members: Sequence[Member], tokens: Sequence[Token]) -> None:
        self._flight = flight
        self._method = method
        self._members = members
        self._tokens = tokens
        self._outcomes: list[Any] = [_NOTHING] * len(members)
        self._lock = threading.Lock()
        self._all: Future[None] | None = None  # made by those who need it: it costs as much as the rest
        self._n_left = len(members)
        self._errors: dict[int, Exception] | None = None
        self._is_listening = False
        self.began_at = time.monotonic()
        self.half_at: float | None = None

    def wait(self, timeout: float | None = None, *, return_exceptions: bool = False) -> list[Any]:
        """The results. At the deadline `CallLate` names the ranks that have not answered; the call goes on.

        Without a `timeout` the deadline is the cluster's `timeout_seconds`.
        """
        seconds = self._flight.timeout_seconds if timeout is None else timeout
        deadline = time.monotonic() + seconds
        if not self._is_listening and self._take_quickly(seconds):
            return self._results(return_exceptions)
        try:
            self._listen().result(max(0.0, deadline - time.monotonic()))
        except TimeoutError:
            raise CallLate(f"{self.late()} within {seconds:g} s") from None
        return self._results(return_exceptions)

    async def async_wait(self, *, return_exceptions: bool = False) -> list[Any]:
        """The results, without blocking the event loop. Cancelling the wait lets the call go on."""
        await asyncio.shield(asyncio.wrap_future(self._listen()))
        return self._results(return_exceptions)

    def __await__(self) -> Generator[Any, None, list[Any]]:
        return self.async_wait().__await__()

    def done(self) -> bool:
        return self._listen().done()

    def cancel(self) -> bool:
        """Give the call up where it has not ended; whether it had not.

        Coroutine methods are cancelled, plain ones that have not begun are dropped. A plain method that runs goes on,
        and what it returns is dropped.
        """
        self._listen()
        left = [i for i, outcome in enumerate(self._outcomes) if outcome is _NOTHING]
        for i in left:
            self._flight.caller.cancel(self._tokens[i])
            self._fill(i, Failure.cancelled(self._members[i].address))
        return bool(left)

    def lose(self, member: Member) -> None:
        """The member has died: nothing more will come from it."""
        for i, called in enumerate(self._members):
            if called is member and member.death is not None:
                self._fill(i, Failure.died(member.address, member.death))

    def missing(self) -> list[int]:
        return [m.rank for m, outcome in zip(self._members, self._outcomes, strict=True) if outcome is _NOTHING]

    def __repr__(self) -> str:
        return f"<call of {self._method}() on {self._flight.name}, {len(self.missing())} of {len(self._members)} left>"

    def _take_quickly(self, seconds: float) -> bool:
        """Have the engine wait for all at once; False if they have not all ended well in that time."""
        if self._n_left == 0:
            return True
        is_hopeless = any(member.death is not None for member in self._members)
        outcomes = self._flight.caller.gather(self._tokens, 0.0 if is_hopeless else min(seconds, QUICK_SECONDS))
        if outcomes is None:
            return False
        with self._lock:
            if not self._is_listening:
                self._outcomes, self._n_left = outcomes, 0
                return True
        for i, outcome in enumerate(outcomes):
            self._fill(i, outcome)
        return True

    def _listen(self) -> "Future[None]":
        """Take each outcome as it comes, and deaths. What it returns is done when all are there."""
        with self._lock:
            if self._all is not None:
                return self._all
            self._all = Future()
            if self._n_left == 0:
                self._all.set_result(None)
                return self._all
            self._is_listening = True
        self._flight.add(self)
        for i, token in enumerate(self._tokens):
            self._flight.caller.future(token).add_done_callback(partial(self._hear, i))
        for member in self._members:
            self.lose(member)  # after the answers that are there: one that came before the death counts
        return self._all

    def _hear(self, i: int, answer: "Future[Any]") -> None:
        if answer.cancelled():
            self._fill(i, Failure.cancelled(self._members[i].address))
        elif (error := answer.exception()) is not None:
            self._fill(i, Failure.of(self._members[i].address, error))
        else:
            self._fill(i, answer.result())

    def _fill(self, i: int, outcome: Any) -> None:
        with self._lock:
            if self._outcomes[i] is not _NOTHING:
                return
            self._outcomes[i] = outcome
            self._n_left -= 1
            is_last = self._n_left == 0
            if self.half_at is None and 2 * self._n_left <= len(self._members):
                self.half_at = time.monotonic()
        if is_last and self._all is not None:
            self._flight.remove(self)
            self._all.set_result(None)

    def _results(self, return_exceptions: bool) -> list[Any]:
        with self._lock:
            if self._errors is None:
                self._errors = {i: o.exception() for i, o in enumerate(self._outcomes) if isinstance(o, Failure)}
                self._note_others(self._errors)
        if self._errors and not return_exceptions:
            raise self._errors[min(self._errors)]
        return [self._errors.get(i, outcome) for i, outcome in enumerate(self._outcomes)]

    def _note_others(self, errors: dict[int, Exception]) -> None:
        """Say with the error that will be raised that it is not the only one."""
        first, *others = sorted(errors) or [0]
        if others:
            named = "; ".join(f"{self._members[i].address}: {self._outcomes[i].summary}" for i in others[:3])
            more = f" and {len(others) - 3} more" if len(others) > 3 else ""  # noqa: PLR2004 a few will do
            errors[first].add_note(f"{self._method}() failed in other workers too: {named}{more}")

    def is_straggling(self, seconds: float) -> bool:
        """Whether half of the ranks had answered so long ago, and so much quicker than the rest."""
        if self.half_at is None or self._n_left == 0:
            return False
        return time.monotonic() - self.half_at >= max(seconds, 2 * (self.half_at - self.began_at))

    def late(self) -> str:
        ranks = ", ".join(map(str, self.missing()))
        return f"{self._method}() of {self._flight.name}: rank {ranks} has not answered"


class Flight:
    """The calls of one group that somebody listens to: they hear of deaths, and their stragglers are named."""

    def __init__(
        self,
        name: str,
        caller: Caller,
        loop: asyncio.AbstractEventLoop,
        straggler_seconds: float,
        timeout_seconds: float,
    ) -> None:
        self.name = name
        self.timeout_seconds = timeout_seconds
        self.caller = caller
        self._loop = loop
        self._straggler_seconds = straggler_seconds
        self._calls: set[Call[Any]] = set()
        self._named: WeakSet[Call[Any]] = WeakSet()
        self._lock = threading.Lock()
        self._is_watched = False

    def add(self, call: "Call[Any]") -> None:
        with self._lock:
            self._calls.add(call)
            arms, self._is_watched = not self._is_watched, True
        if arms:
            with suppress(RuntimeError):  # the loop is closed, and no more answers come
                self._loop.call_soon_threadsafe(self._rest)

    def remove(self, call: "Call[Any]") -> None:
        with self._lock:
            self._calls.discard(call)

    def lose(self, member: Member, cause: str) -> None:
        """The member has died: so have the calls of it."""
        member.death = cause
        for call in self._listening():
            call.lose(member)

    def _listening(self) -> "list[Call[Any]]":
        with self._lock:
            return list(self._calls)

    def _rest(self) -> None:
        self._loop.call_later(self._straggler_seconds / 2, self._look)

    def _look(self) -> None:
        """Name the stragglers of each call that most ranks have answered long ago; look again while there are calls."""
        for call in self._listening():
            if call not in self._named and call.is_straggling(self._straggler_seconds):
                self._named.add(call)
                _log.warning("%s, though the others have long since", call.late())
        with self._lock:
            self._is_watched = bool(self._calls)
        if self._is_watched:
            self._rest()
