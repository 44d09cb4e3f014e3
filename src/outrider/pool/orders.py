"""What a fleet wants to be done."""

from dataclasses import dataclass

from outrider.pool.waiting import Ticket


@dataclass(frozen=True, slots=True)
class Create:
    """Make a machine."""

    machine_id: str


@dataclass(frozen=True, slots=True)
class Reset:
    """Bring it to its clean state and prove it; if `is_fresh`, prove only that it is well."""

    machine_id: str
    is_fresh: bool


@dataclass(frozen=True, slots=True)
class Destroy:
    """End it, and whatever else is being done to it."""

    machine_id: str


@dataclass(frozen=True, slots=True)
class Grant:
    """The ticket gets these machines, each with the epoch of its lease."""

    ticket: Ticket
    machines: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Refuse:
    """The ticket gets nothing."""

    ticket: Ticket
    reason: str


@dataclass(frozen=True, slots=True)
class Lose:
    """The lease of this epoch is over, though its holder has not released it."""

    machine_id: str
    epoch: int
    reason: str


Order = Create | Reset | Destroy | Grant | Refuse | Lose
