"""An event: one thing that happened in an attempt."""

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any

from msgspec import Struct


class EventKind(StrEnum):
    """What kind of thing happened."""

    TURN = "turn"
    STEP = "step"
    REWARD = "reward"
    LOG = "log"
    ARTIFACT = "artifact"


class Event(Struct, frozen=True, kw_only=True):
    """One thing that happened, as its author wrote it. `data` holds what msgpack can carry, packed arrays as bytes."""

    kind: EventKind
    at: datetime
    name: str = ""
    data: Mapping[str, Any] = {}


class RecordedEvent(Event, frozen=True, kw_only=True):
    """An event as the store keeps it: `index` counts the events of one attempt from 0."""

    rollout_id: str
    attempt_id: str
    index: int
