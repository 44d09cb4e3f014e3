"""The states of rollouts, attempts and workers, and the modes of a rollout."""

from enum import StrEnum


class RolloutStatus(StrEnum):
    """Where a rollout stands. `requeuing` is `queuing` after a failed attempt; the last three are final."""

    QUEUING = "queuing"
    REQUEUING = "requeuing"
    PREPARING = "preparing"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_queued(self) -> bool:
        return self in QUEUED

    @property
    def is_live(self) -> bool:
        return self in LIVE

    @property
    def is_final(self) -> bool:
        return self in FINAL


QUEUED = frozenset({RolloutStatus.QUEUING, RolloutStatus.REQUEUING})
LIVE = frozenset({RolloutStatus.PREPARING, RolloutStatus.RUNNING})
FINAL = frozenset({RolloutStatus.SUCCEEDED, RolloutStatus.FAILED, RolloutStatus.CANCELLED})


class AttemptStatus(StrEnum):
    """Where an attempt stands. While it holds the lease its rollout has the same status."""

    PREPARING = "preparing"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMEOUT = "timeout"
    UNRESPONSIVE = "unresponsive"
    CANCELLED = "cancelled"

    @property
    def is_live(self) -> bool:
        return self in {AttemptStatus.PREPARING, AttemptStatus.RUNNING}


class WorkerStatus(StrEnum):
    """`busy` holds a lease, `idle` was heard of lately, `unknown` was not."""

    IDLE = "idle"
    BUSY = "busy"
    UNKNOWN = "unknown"


class Mode(StrEnum):
    """What a rollout is for."""

    TRAIN = "train"
    VAL = "val"
    TEST = "test"
