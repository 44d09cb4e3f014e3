"""A rollout: one sample of a task, the row that everything reads and writes."""

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import Any

from msgspec import Struct
from msgspec.structs import force_setattr

from outrider.core.attempt import Attempt, Failure
from outrider.core.bounds import PositiveCount, PositiveSeconds, check_bounds
from outrider.core.errors import InvalidInput
from outrider.core.status import AttemptStatus, Mode, RolloutStatus

RETRYABLE = frozenset({AttemptStatus.FAILED, AttemptStatus.TIMEOUT, AttemptStatus.UNRESPONSIVE})


TASK_KEY, SAMPLE_KEY = "task_id", "sample"
"""Where a rollout's metadata says which sample of which task it is, so that seeds do not depend on ids."""


def _retryable(condition: Iterable[str]) -> frozenset[AttemptStatus]:
    known = ", ".join(sorted(RETRYABLE))
    if isinstance(condition, str) or not isinstance(condition, Collection):
        raise InvalidInput(f"retry_condition is {condition!r}; give several of {known}, or none")
    wrong = sorted(str(status) for status in condition if status not in RETRYABLE)
    if wrong:
        raise InvalidInput(f"retry_condition names {', '.join(wrong)}; it may hold {known}")
    return frozenset(AttemptStatus(status) for status in condition)


class RolloutConfig(Struct, frozen=True, kw_only=True):
    """How long an attempt may take and be silent, and what is tried again. `max_attempts` counts the first one.

    With `resources_version`, attempts run with that version of the store's resources, not with the newest.
    """

    timeout_seconds: PositiveSeconds | None = None
    unresponsive_seconds: PositiveSeconds = 30.0
    max_attempts: PositiveCount = 3
    retry_condition: frozenset[AttemptStatus] = RETRYABLE
    resources_version: PositiveCount | None = None

    def __post_init__(self) -> None:
        check_bounds(self)
        force_setattr(self, "retry_condition", _retryable(self.retry_condition))


class RolloutRequest(Struct, frozen=True, kw_only=True):
    """What to enqueue. A caller-given `rollout_id` makes the enqueue repeatable without a duplicate."""

    input: Any
    rollout_id: str | None = None
    mode: Mode = Mode.TRAIN
    tag: str | None = None
    seed: int | None = None
    group_id: str | None = None
    priority: int = 0
    config: RolloutConfig = RolloutConfig()
    metadata: Mapping[str, Any] = {}


class Rollout(Struct, frozen=True, kw_only=True):
    """One sample of a task. `reward` and `failure` are those of the attempt that ended it.

    `resources_version` is the version of the resources that its latest attempt was claimed with, if there were any.
    `is_set_aside`: it may have killed the worker that it ran in, and waits to run alone.
    """

    rollout_id: str
    input: Any
    status: RolloutStatus
    mode: Mode
    tag: str | None
    seed: int | None
    group_id: str | None
    priority: int
    config: RolloutConfig
    metadata: Mapping[str, Any]
    enqueued_at: datetime
    ended_at: datetime | None = None
    reward: float | None = None
    failure: Failure | None = None
    n_attempts: int = 0
    n_failures: int = 0
    attempt_id: str | None = None
    worker_id: str | None = None
    resources_version: int | None = None
    is_set_aside: bool = False


class AttemptedRollout(Rollout, frozen=True, kw_only=True):
    """A claimed rollout together with the attempt that holds its lease."""

    attempt: Attempt
