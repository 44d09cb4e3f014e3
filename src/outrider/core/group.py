"""A group: rollouts that share task, configuration and seed, and how far a trainer is with it.

```
 opened ──► complete ──► delivered ──► acknowledged
    └───────────┴────────────┴───────► dropped (why)
```
"""

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any

from msgspec import Struct


class GroupStatus(StrEnum):
    """How far a group is."""

    OPENED = "opened"
    """Its members are being run."""

    COMPLETE = "complete"
    """Enough members have ended; nobody has taken it yet."""

    DELIVERED = "delivered"
    """It is part of a batch that a trainer was given and has not confirmed."""

    ACKNOWLEDGED = "acknowledged"
    """The trainer has used it. Final."""

    DROPPED = "dropped"
    """It will not be used, and its reason says why. Final."""

    @property
    def is_final(self) -> bool:
        return self in {GroupStatus.ACKNOWLEDGED, GroupStatus.DROPPED}


MOVES: Mapping[GroupStatus, frozenset[GroupStatus]] = {
    GroupStatus.OPENED: frozenset({GroupStatus.COMPLETE, GroupStatus.DROPPED}),
    GroupStatus.COMPLETE: frozenset({GroupStatus.DELIVERED, GroupStatus.DROPPED}),
    GroupStatus.DELIVERED: frozenset({GroupStatus.ACKNOWLEDGED, GroupStatus.DROPPED}),
    GroupStatus.ACKNOWLEDGED: frozenset(),
    GroupStatus.DROPPED: frozenset(),
}
"""Where a group may go from where it is."""


class Group(Struct, frozen=True, kw_only=True):
    """One group of a ledger. `index` counts the groups of a ledger from 0, in the order of their opening.

    `opened_at_version` is the policy's version then. `members` are the rollouts that a complete group is made of;
    `batch` is the number of the batch it was delivered in.
    """

    ledger: str
    index: int
    group_id: str
    status: GroupStatus
    tag: str | None
    seed: int
    opened_at: datetime
    opened_at_version: int
    members: tuple[str, ...] = ()
    batch: int | None = None
    reason: str | None = None
    metadata: Mapping[str, Any] = {}


class GroupMove(Struct, frozen=True, kw_only=True):
    """One step of a group. A repeated step changes nothing; one that is not allowed from where it is, is refused."""

    group_id: str
    to: GroupStatus
    members: tuple[str, ...] | None = None
    batch: int | None = None
    reason: str | None = None
