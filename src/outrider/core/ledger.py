"""The ledger of groups: which were opened and what became of them, so that none is lost or trained on twice.

```
opened → complete → delivered → acknowledged
   └─────────┴─→ dropped (and why)
```

Invariants, the same for every store engine:
- Every write to a ledger names its epoch. Whoever opens the ledger begins a new one, and the writes of whoever had it
  before raise `LedgerLost` and change nothing.
- A write is carried out whole or not at all; repeating it changes nothing.
- A group moves along the table only. Its members are enqueued in the same step that opens it.
- A first turn that was granted keeps its version, whoever asks again.
"""

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any

from msgspec import Struct

from outrider.core.account import Fate
from outrider.core.event import EventKind
from outrider.core.rollout import RolloutRequest

LEDGER_KEY = "ledger"
"""Where a rollout's metadata names its ledger: such a rollout asks before its first turn, and leaves an account."""

PIN_KEY = "policy_version"
"""Where a rollout's metadata names the only policy version that it may be run with."""

SAMPLING_KEY = "sampling"
"""Where a rollout's metadata holds what its sampling has of its own: `temperature`, `max_tokens`, …"""


class GroupState(StrEnum):
    """Where a group stands."""

    OPENED = "opened"
    COMPLETE = "complete"
    DELIVERED = "delivered"
    ACKNOWLEDGED = "acknowledged"
    DROPPED = "dropped"

    @property
    def is_closed(self) -> bool:
        """Whether nothing more is run for it."""
        return self in _CLOSED


_CLOSED = frozenset({GroupState.DELIVERED, GroupState.ACKNOWLEDGED, GroupState.DROPPED})

BEFORE: Mapping[GroupState, frozenset[GroupState]] = {
    GroupState.COMPLETE: frozenset({GroupState.OPENED}),
    GroupState.DELIVERED: frozenset({GroupState.COMPLETE}),
    GroupState.ACKNOWLEDGED: frozenset({GroupState.DELIVERED}),
    GroupState.DROPPED: frozenset({GroupState.OPENED, GroupState.COMPLETE}),
}
"""From which states a group may move to each; a move to the state it is in already is a repetition."""


class Ledger(Struct, frozen=True, kw_only=True):
    """A ledger as its present owner holds it. `settings` are those it was first opened with."""

    name: str
    epoch: int
    version: int
    """The policy version last published."""
    n_opened: int
    """How many groups have been opened: the number of the next one."""
    n_batches: int
    """How many batches have been delivered: the number of the next one."""
    settings: Mapping[str, Any]
    opened_at: datetime


class GroupEntry(Struct, frozen=True, kw_only=True):
    """A group in a ledger. Groups are numbered in the order they were opened, from 0."""

    group_id: str
    ledger: str
    number: int
    state: GroupState
    tag: str
    seed: int
    size: int
    """How many members it needs to be complete."""
    clock: int | None = None
    """The least version at which one of its members was granted its first turn."""
    batch: int | None = None
    """The number of the batch that it was delivered in."""
    members: tuple[str, ...] = ()
    """The rollouts that make it complete, once it is."""
    reason: str | None = None
    """Why it was dropped: a fate, then a colon and the details."""
    opened_at: datetime
    moved_at: datetime


class NewGroup(Struct, frozen=True, kw_only=True):
    """A group to open, with its members, whose `group_id` is the group's."""

    group_id: str
    number: int
    tag: str
    seed: int
    size: int
    members: tuple[RolloutRequest, ...]


class GroupMove(Struct, frozen=True, kw_only=True):
    """A group's move to another state, with what that state has beside it."""

    group_id: str
    state: GroupState
    batch: int | None = None
    members: tuple[str, ...] = ()
    reason: str | None = None


class Ask(Struct, frozen=True, kw_only=True):
    """An attempt that is ready for its first turn and asks to begin."""

    group_id: str
    rollout_id: str
    attempt_id: str
    asked_at: datetime


class Asks(Struct, frozen=True, kw_only=True):
    """A stretch of the asks of a ledger that are not granted, in the order they came; `cursor` reads on from here."""

    items: tuple[Ask, ...]
    cursor: int


class Grant(Struct, frozen=True, kw_only=True):
    """Leave to begin with this version of the policy or a newer one. The clock of the group becomes no higher."""

    group_id: str
    attempt_id: str
    version: int


class LedgerWrite(Struct, frozen=True, kw_only=True):
    """One step of a ledger: all of it or nothing. Carried out in the order of the fields.

    `members` are further members of groups that are open. A group that is closed by it forgets the asks of its members.
    """

    opened: tuple[NewGroup, ...] = ()
    members: tuple[RolloutRequest, ...] = ()
    granted: tuple[Grant, ...] = ()
    moved: tuple[GroupMove, ...] = ()
    fates: Mapping[str, Fate] = {}
    """What became of attempts, by attempt id; one that has left no account is passed over."""
    version: int | None = None

    @property
    def is_empty(self) -> bool:
        return self == LedgerWrite()


class MemberProgress(Struct, frozen=True, kw_only=True):
    """A member that is live: its attempt, the last thing recorded of it, and since when it waits for leave to begin."""

    group_id: str
    rollout_id: str
    attempt_id: str
    worker_id: str
    tag: str | None
    started_at: datetime
    n_events: int
    last_kind: EventKind | None = None
    last_name: str = ""
    last_at: datetime | None = None
    asked_at: datetime | None = None
    """When it asked to begin, while that is not granted."""
    is_granted: bool = False
