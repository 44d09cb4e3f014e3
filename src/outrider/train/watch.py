"""What a live member is doing, and since when: read from what the store has recorded of it."""

from collections.abc import Iterable
from datetime import datetime
from enum import StrEnum

from msgspec import Struct

from outrider.core.event import EventKind
from outrider.core.ledger import MemberProgress
from outrider.core.machine import AWAITED, BOARDED, WANTED


class Phase(StrEnum):
    """Where an attempt stands."""

    MACHINE = "machine"
    """It waits for a machine to be free."""

    RESET = "reset"
    """Its environment is being made and reset."""

    HELD = "held"
    """It waits for leave to begin."""

    MODEL = "model"
    """The policy is being asked."""

    ENV = "env"
    """The environment takes a step."""

    SCORE = "score"
    """It is scored and closed."""


class Standing(Struct, frozen=True, kw_only=True):
    """A live member: who it is, in which phase, and since when."""

    group_id: str
    rollout_id: str
    attempt_id: str
    worker_id: str
    tag: str
    phase: Phase
    since: datetime

    def seconds(self, now: datetime) -> float:
        return max((now - self.since).total_seconds(), 0.0)

    def describe(self, now: datetime) -> str:
        return (
            f"{self.rollout_id} ({self.tag}, worker {self.worker_id}): {_WORDS[self.phase]} "
            f"for {self.seconds(now):.0f} s"
        )


_WORDS = {
    Phase.MACHINE: "waiting for a machine",
    Phase.RESET: "resetting its environment",
    Phase.HELD: "held back by the scheduler",
    Phase.MODEL: "waiting for the model",
    Phase.ENV: "in a step of its environment",
    Phase.SCORE: "being scored",
}


_BOOTING = {WANTED: Phase.MACHINE, AWAITED: Phase.MACHINE, BOARDED: Phase.RESET}
"""What begins with an event of an attempt that takes a machine; with the first, once it has leave."""


def phase_of(progress: MemberProgress) -> tuple[Phase, datetime]:
    """The phase of an attempt and since when it is in it, to within the second that records take to arrive."""
    if progress.asked_at is not None and not progress.is_granted:
        return Phase.HELD, progress.asked_at
    if progress.last_at is None or progress.last_kind is None:
        return Phase.RESET, progress.started_at
    if progress.last_kind is EventKind.LOG and progress.last_name in _BOOTING:
        return _BOOTING[progress.last_name], progress.last_at
    if progress.last_kind is EventKind.TURN:
        return Phase.ENV, progress.last_at
    if progress.last_kind in (EventKind.REWARD, EventKind.ARTIFACT):
        return Phase.SCORE, progress.last_at
    return Phase.MODEL, progress.last_at


def standings_of(progress: Iterable[MemberProgress]) -> list[Standing]:
    """All of them, longest without progress first."""
    found = []
    for one in progress:
        phase, since = phase_of(one)
        found.append(
            Standing(
                group_id=one.group_id,
                rollout_id=one.rollout_id,
                attempt_id=one.attempt_id,
                worker_id=one.worker_id,
                tag=one.tag or "",
                phase=phase,
                since=since,
            )
        )
    return sorted(found, key=lambda standing: standing.since)
