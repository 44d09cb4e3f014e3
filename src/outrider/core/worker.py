"""A worker as the store knows it."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from msgspec import Struct

from outrider.core.status import WorkerStatus


class Worker(Struct, frozen=True, kw_only=True):
    """One process, task or actor that claims rollouts.

    `attempt_ids` are the leases it holds, `rollout_ids` their rollouts in the same order, and `busy_since` is when the
    oldest of them was claimed. `n_succeeded` and `n_failed` count the attempts whose end it has reported, the latter
    time-outs too, and `last_ended_at` is when the last of them ended; they may lack what it reported since its last
    heartbeat. `stats` is what it said of itself then.
    """

    worker_id: str
    status: WorkerStatus
    first_seen_at: datetime
    last_seen_at: datetime
    attempt_ids: tuple[str, ...] = ()
    rollout_ids: tuple[str, ...] = ()
    busy_since: datetime | None = None
    n_succeeded: int = 0
    n_failed: int = 0
    last_ended_at: datetime | None = None
    stats: Mapping[str, Any] = {}
