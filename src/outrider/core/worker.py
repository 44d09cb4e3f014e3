"""A worker as the store knows it."""

from dataclasses import dataclass
from datetime import datetime

from outrider.core.status import WorkerStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """One process, task or actor that claims rollouts. `attempt_ids` are the leases it holds."""

    worker_id: str
    status: WorkerStatus
    first_seen_at: datetime
    last_seen_at: datetime
    attempt_ids: tuple[str, ...] = ()
