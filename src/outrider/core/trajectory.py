"""A trajectory: the events of the attempt that ended a rollout, folded into one value."""

from dataclasses import dataclass

from outrider.core.attempt import Attempt
from outrider.core.event import RecordedEvent
from outrider.core.rollout import Rollout


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """A finished rollout and what happened in it. `attempt` is None for a rollout cancelled before any attempt."""

    rollout: Rollout
    attempt: Attempt | None
    events: tuple[RecordedEvent, ...]
