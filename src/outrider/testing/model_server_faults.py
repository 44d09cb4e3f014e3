"""What can go wrong with a model server, as data: which call, which fault."""

import random
from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct


class FaultKind(StrEnum):
    """What happens to a call."""

    STATUS = "status"
    """An answer with an error status: `status`, `body`, `headers`."""

    BODY = "body"
    """Status 200 and `body`, whatever it holds."""

    RESET = "reset"
    """The connection is reset before anything is answered."""

    CUT = "cut"
    """The connection ends after `after_chunks` pieces of a stream, or in the middle of a whole answer."""

    HANG = "hang"
    """Nothing more comes, after `after_chunks` pieces of a stream, until the server is told to `release`."""

    SLOW = "slow"
    """The answer takes `seconds` longer."""

    INVALID_UTF8 = "invalid_utf8"
    """The text of the answer begins with a byte that is no UTF-8."""

    EMPTY = "empty"
    """The answer has neither text nor tool calls."""


class Fault(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One fault; the functions below make the usual ones."""

    kind: FaultKind
    status: int = 500
    body: str = ""
    headers: Mapping[str, str] = {}
    after_chunks: int = 0
    seconds: float = 0.0


RESET = Fault(kind=FaultKind.RESET)
HANG = Fault(kind=FaultKind.HANG)
INVALID_UTF8 = Fault(kind=FaultKind.INVALID_UTF8)
EMPTY = Fault(kind=FaultKind.EMPTY)
GARBAGE = Fault(kind=FaultKind.BODY, body='{"choices": [{"mess')


def status(code: int, body: str = "", **headers: str) -> Fault:
    """An error answer; `status(429, retry_after="2")` sends the header `retry-after`."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Fault(kind=FaultKind.STATUS, status=code, body=body, headers=named)


def cut(after_chunks: int) -> Fault:
    return Fault(kind=FaultKind.CUT, after_chunks=after_chunks)


def slow(seconds: float) -> Fault:
    return Fault(kind=FaultKind.SLOW, seconds=seconds)


class FaultPlan(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which calls go wrong. Calls are counted from 1, in the order in which they arrive.

    `at` goes before `always`, that before `rates`: pairs of a fault and its probability, drawn by `seed` and the
    number of the call. `latency_seconds` delays every answer. More than `max_characters` in a conversation is a
    context overflow, more than `max_in_flight` calls at once get a 429.
    """

    at: Mapping[int, Fault] = {}
    always: Fault | None = None
    rates: tuple[tuple[Fault, float], ...] = ()
    seed: int = 0
    latency_seconds: float = 0.0
    max_characters: int | None = None
    max_in_flight: int | None = None

    def fault_of(self, number: int) -> Fault | None:
        found = self.at.get(number, self.always)
        if found is not None or not self.rates:
            return found
        drawn = random.Random(f"{self.seed}:{number}").random()
        for fault, rate in self.rates:
            drawn -= rate
            if drawn < 0:
                return fault
        return None
