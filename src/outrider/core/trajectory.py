"""A trajectory: the events of the attempt that ended a rollout, folded into one value."""

from msgspec import Struct

from outrider.core.attempt import Attempt
from outrider.core.event import RecordedEvent
from outrider.core.rollout import Rollout


class Trajectory(Struct, frozen=True, kw_only=True):
    """A finished rollout and what happened in it. `attempt` is None for a rollout cancelled before any attempt."""

    rollout: Rollout
    attempt: Attempt | None
    events: tuple[RecordedEvent, ...]
