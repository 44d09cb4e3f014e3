"""A machine: a VM, desktop, container, sandbox or browser that rollouts borrow one after the other.

```
creating ─► resetting ─► ready ─► leased ─► resetting ─► …
    │           │          │         │
    └───────────┴──────────┴─────────┴─► quarantined ─► destroying ─► gone
```

Invariants:
- A machine moves along the table only, and every move is journalled: with its reason, and how long it was where it was.
- Its epoch grows by one with every lease, and with every lease that is revoked: whoever holds an older one is refused.
- It is ready only after a reset that was verified; so nobody is ever handed what another has left.
"""

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any

from msgspec import Struct

WANTED = "machine.wanted"
"""The name of the event by which an attempt says that it will take a machine once it has leave to begin."""

AWAITED = "machine.awaited"
"""The name of the event by which it begins to wait for its machine."""

BOARDED = "machine.boarded"
"""The name of the event by which it has got it."""


class MachineState(StrEnum):
    """Where a machine stands."""

    CREATING = "creating"
    RESETTING = "resetting"
    """It is brought back to its clean state, and that is verified."""

    READY = "ready"
    LEASED = "leased"
    QUARANTINED = "quarantined"
    """Something was wrong with it. It is kept for a while to be looked at, and never handed out again."""

    DESTROYING = "destroying"
    GONE = "gone"

    @property
    def exists(self) -> bool:
        """Whether it takes up a place in its pool."""
        return self is not MachineState.GONE


_ENDS = frozenset({MachineState.QUARANTINED, MachineState.DESTROYING, MachineState.GONE})

AFTER: Mapping[MachineState, frozenset[MachineState]] = {
    MachineState.CREATING: frozenset({MachineState.RESETTING}) | _ENDS,
    MachineState.RESETTING: frozenset({MachineState.READY}) | _ENDS,
    MachineState.READY: frozenset({MachineState.LEASED, MachineState.RESETTING}) | _ENDS,
    MachineState.LEASED: frozenset({MachineState.RESETTING}) | _ENDS,
    MachineState.QUARANTINED: frozenset({MachineState.DESTROYING, MachineState.GONE}),
    MachineState.DESTROYING: frozenset({MachineState.GONE}),
    MachineState.GONE: frozenset(),
}
"""Where a machine may go from each state."""


class MachineRecord(Struct, frozen=True, kw_only=True):
    """A machine as the journal knows it: enough to find it again after the process that owned it has died."""

    machine_id: str
    pool: str
    provider: str
    state: MachineState
    epoch: int = 0
    n_uses: int = 0
    holder: str | None = None
    """Which rollout has it, or had it last."""
    address: Mapping[str, Any] = {}
    """How its provider finds it again: processes, ports, folders."""
    reason: str = ""
    """Why it came into this state."""
    created_at: datetime
    moved_at: datetime


class MachineMove(Struct, frozen=True, kw_only=True):
    """One move of a machine, as it was journalled. `before` is None when it was made."""

    machine_id: str
    pool: str
    before: MachineState | None
    state: MachineState
    epoch: int
    holder: str | None
    reason: str
    seconds: float
    """How long it was in the state before."""
    at: datetime


class PoolRecord(Struct, frozen=True, kw_only=True):
    """A pool as the journal knows it. Its epoch grows by one with every process that opens it."""

    name: str
    epoch: int
    opened_at: datetime
