"""Failures grouped by their cause, and the rule by which a run stops that cannot succeed."""

import re
from typing import Protocol

from msgspec import Struct

MAX_CAUSES = 50
"""Further causes are counted together: a run of a million different messages takes no more memory."""

LINE_CHARACTERS = 300
N_FIRST = 3

_ID = re.compile(
    r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"  # a UUID
    r"|0x[0-9a-fA-F]+"  # an address
    r"|\d+(?:\.\d+)?(?:e[+-]?\d+)?(?![A-Za-z0-9])"
    r"|(?<![A-Za-z0-9])(?=[A-Za-z]*\d)[A-Za-z0-9]{8,}"  # the id of a request, of a container, …
    r"|\d+(?:\.\d+)?"
)
"""What differs between messages with one cause: numbers and ids."""


class Described(Protocol):
    """A failure as a store or a line of results has it."""

    @property
    def boundary(self) -> str: ...

    @property
    def kind(self) -> str: ...

    @property
    def message(self) -> str: ...

    @property
    def permanent(self) -> bool: ...

    @property
    def stops_if_shared(self) -> bool: ...


class Cause(Struct, frozen=True, kw_only=True):
    """How many rollouts failed in the same way, what the first of them said, in a line, and which one that was."""

    boundary: str
    kind: str
    message: str
    n: int
    example: str


class Causes:
    """Counts failures by side, kind and first line, in which numbers and ids do not matter."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str, str], Cause] = {}
        self._others: Cause | None = None

    def add(self, rollout_id: str, failure: Described) -> None:
        key = cause_of(failure)
        found = self._found.get(key)
        if found is None and len(self._found) >= MAX_CAUSES:
            n = 1 if self._others is None else self._others.n + 1
            self._others = Cause(boundary="", kind="", message="other causes", n=n, example=rollout_id)
            return
        first = found or Cause(
            boundary=str(failure.boundary),
            kind=failure.kind,
            message=first_line(failure.message),
            n=0,
            example=rollout_id,
        )
        self._found[key] = Cause(
            boundary=first.boundary, kind=first.kind, message=first.message, n=first.n + 1, example=first.example
        )

    def most_common(self) -> list[Cause]:
        """The most frequent first; in the order they came, where two are as frequent."""
        found = sorted(self._found.values(), key=lambda cause: -cause.n)
        return found if self._others is None else [*found, self._others]


class FailFast:
    """Stops a run whose first rollouts all end by the same failure, one that chance does not explain.

    That is a permanent failure, or one that `stops_if_shared`: the other rollouts would meet it too.

    One rollout that ends in any other way shows that some can, and the rule never stops the run from then on.
    """

    def __init__(self, n_first: int = N_FIRST) -> None:
        self._n_first = n_first
        self._cause: tuple[str, str, str] | None = None
        self._n = 0
        self.is_decided = False
        self.reason: str | None = None
        """Why the run must stop, once it must."""

    def add(self, failure: Described | None) -> str | None:
        """Count a rollout that has ended, with its failure if it failed; why the run must stop, once it must."""
        if self.is_decided:
            return self.reason
        counts = failure is not None and (failure.permanent or failure.stops_if_shared)
        cause = cause_of(failure) if failure is not None and counts else None
        if failure is None or cause is None or self._cause not in (None, cause):
            self.is_decided = True
            return None
        self._cause = cause
        self._n += 1
        if self._n >= self._n_first:
            self.is_decided = True
            self.reason = (
                f"the first {self._n} rollouts failed in the same way, {_why(failure)}: "
                f"{failure.boundary}: {first_line(failure.message)} (--no-fail-fast goes on regardless)"
            )
        return self.reason


def _why(failure: Described) -> str:
    return "which another try does not change" if failure.permanent else "so the others are expected to fail too"


def cause_of(failure: Described) -> tuple[str, str, str]:
    """What failures with the same cause have in common."""
    return str(failure.boundary), failure.kind, _ID.sub("#", first_line(failure.message))


def first_line(message: str) -> str:
    first = message.strip().partition("\n")[0]
    return first if len(first) <= LINE_CHARACTERS else f"{first[:LINE_CHARACTERS]}…"
