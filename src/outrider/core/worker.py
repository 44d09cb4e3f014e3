"""A worker as the store knows it."""

from datetime import datetime

from msgspec import Struct

from outrider.core.status import WorkerStatus


class Worker(Struct, frozen=True, kw_only=True):
    """One process, task or actor that claims rollouts. `attempt_ids` are the leases it holds."""

    worker_id: str
    status: WorkerStatus
    first_seen_at: datetime
    last_seen_at: datetime
    attempt_ids: tuple[str, ...] = ()
