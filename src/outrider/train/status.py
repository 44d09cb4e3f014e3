"""Where a scheduler stands, for people and programs that watch it."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from msgspec import Struct

from outrider.core.account import Fate
from outrider.train.watch import Phase, Standing

N_NAMED = 5
"""How many of those that block are named in a message."""


class SchedulerStatus(Struct, frozen=True, kw_only=True):
    """A moment of a scheduler. `blocking` are the members that a batch waits for, longest without progress first."""

    version: int
    is_training: bool
    is_paused: bool
    n_batches: int
    n_opened: int
    """Groups that are open and not complete."""
    n_complete: int
    n_wanted: int
    """Groups in a batch."""
    n_held: int
    """Members that wait for leave to begin."""
    phases: Mapping[Phase, int]
    n_slots: int
    n_bytes: int
    """What finished trajectories that are not delivered take up in the store."""
    tokens: Mapping[Fate, int]
    """Those of closed groups, since this scheduler was opened."""
    dropped: Mapping[str, int]
    """Groups that were dropped since then, by fate."""
    last_failure: str = ""
    """Which of them failed last, and why."""
    blocking: Sequence[Standing]


def what_blocks(status: SchedulerStatus, now: datetime) -> str:
    """A sentence or two on what a batch waits for, and what to do."""
    have = f"{status.n_complete} of the {status.n_wanted} groups of a batch are complete"
    if status.n_complete >= status.n_wanted:
        have = (
            f"{status.n_complete} groups are complete, enough for a batch of {status.n_wanted}, but older ones come "
            "first, which must not become too stale"
        )
    if status.is_paused:
        return f"{have}; the scheduler is paused: call resume()"
    if n_failed := status.dropped.get(Fate.FAILED, 0):
        have += f"; {n_failed} groups failed, last {status.last_failure}"
    if not status.blocking:
        if n_failed:
            return have
        if not any(status.phases.values()):
            return f"{have} and no worker runs any member: are workers running on this store, with these tags?"
        return f"{have}; no single member blocks it"
    named = "; ".join(standing.describe(now) for standing in status.blocking[:N_NAMED])
    more = len(status.blocking) - N_NAMED
    return f"{have}; it waits for {named}" + (f"; and {more} more" if more > 0 else "")
