"""A row of the memory engine."""

from dataclasses import dataclass
from typing import Any

from outrider.core.attempt import Attempt
from outrider.core.status import RolloutStatus
from outrider.store import rows
from outrider.store.rows import Current
from outrider.store.steps import NewRollout


@dataclass(slots=True)
class Row:
    """A rollout with its attempts.

    `queues` names those it waits in, while it waits; `expires_at` is set while it is live, `finish_seq` once it has
    ended. `metadata` is noted on the current attempt.
    """

    seq: int
    new: NewRollout
    enqueued_at: float
    status: RolloutStatus = RolloutStatus.QUEUING
    queues: tuple[str, ...] = ()
    n_attempts: int = 0
    n_failures: int = 0
    attempt_id: str | None = None
    worker_id: str | None = None
    request_id: str | None = None
    started_at: float | None = None
    heartbeat_at: float | None = None
    expires_at: float | None = None
    ended_at: float | None = None
    finish_seq: int | None = None
    reward: float | None = None
    failure: bytes | None = None
    resources_version: int | None = None
    metadata: bytes | None = None
    ended_attempts: tuple[Attempt, ...] = ()

    def move_times(self, seconds: float) -> None:
        """The times of its live attempt go along with the wall clock."""
        current = self.current
        self.started_at, self.heartbeat_at = current.started_at + seconds, current.heartbeat_at + seconds
        self.expires_at = None if current.expires_at is None else current.expires_at + seconds

    @property
    def columns(self) -> tuple[Any, ...]:
        """The columns of `rows.ROLLOUT`."""
        new, request = self.new, self.new.request
        return (
            *(new.rollout_id, new.input, request.mode, request.tag, request.seed, request.group_id, request.priority),
            *(new.config, new.metadata, self.enqueued_at, self.n_failures, self.status, self.ended_at, self.reward),
            *(self.failure, self.n_attempts, self.attempt_id, self.worker_id, self.resources_version),
            self.queues[0] if self.queues else None,
        )

    @property
    def current(self) -> Current:
        """The columns of `rows.CURRENT`."""
        new, request = self.new, self.new.request
        columns: tuple[Any, ...] = (
            *(self.seq, new.rollout_id, self.status, request.mode, request.tag, new.config, self.n_attempts),
            *(
                self.n_failures,
                self.attempt_id,
                self.worker_id,
                self.started_at,
                self.heartbeat_at,
                self.expires_at,
                self.resources_version,
                self.metadata,
            ),
        )
        return Current(*columns)

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        live = () if self.expires_at is None else (rows.live_attempt(self.current),)
        return self.ended_attempts + live
