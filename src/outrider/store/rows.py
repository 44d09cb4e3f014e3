"""Database rows as values, the same for both SQL engines: times are unix seconds, payloads msgpack."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from outrider.core import wire
from outrider.core.attempt import Attempt, Failure
from outrider.core.clock import utc
from outrider.core.errors import Boundary, RolloutTaken, StoreError, UnknownId
from outrider.core.event import Event, EventKind, RecordedEvent
from outrider.core.lifecycle import Signal, advance
from outrider.core.rollout import AttemptedRollout, Rollout
from outrider.core.status import AttemptStatus, Mode, RolloutStatus, WorkerStatus
from outrider.core.worker import Worker
from outrider.store.protocol import Resources
from outrider.store.steps import (
    NO_RETRY,
    UNREADABLE,
    Change,
    EventQuery,
    NewRollout,
    config_of,
    config_or_no_retry,
    failure_of,
    is_isolated,
    metadata_of,
)

GIVEN = (
    "r.rollout_id, i.input, r.mode, r.tag, r.seed, r.group_id, r.priority, r.config, i.metadata, r.enqueued_at, "
    "r.n_failures"
)
"""The columns of `attempted_of`, what does not change while a rollout is live: `r` is the rollout, `i` its payloads."""

ROLLOUT = (
    f"{GIVEN}, r.status, r.ended_at, r.reward, r.failure, r.n_attempts, r.attempt_id, r.worker_id, "
    "r.resources_version, r.lane"
)
"""The columns of `rollout_of`."""

ATTEMPT = (
    "a.attempt_id, a.sequence_id, a.worker_id, a.status, a.started_at, a.heartbeat_at, a.ended_at, a.reward, "
    "a.failure, a.resources_version, a.metadata"
)
"""The columns of `attempt_of`."""

LAST_ATTEMPT = (
    "r.attempt_id, r.n_attempts, r.worker_id, r.attempt_status, r.started_at, r.heartbeat_at, r.ended_at, r.reward, "
    "r.failure, r.resources_version, r.attempt_metadata"
)
"""The same, of the attempt that ended the rollout `r`."""

CURRENT = (
    "seq, rollout_id, status, mode, tag, config, n_attempts, n_failures, attempt_id, worker_id, started_at, "
    "heartbeat_at, expires_at, resources_version, attempt_metadata"
)
"""The columns of `Current`."""

WORKER = "worker_id, first_seen_at, last_seen_at, n_succeeded, n_failed, last_ended_at, stats"
"""The columns of `worker_of`."""

RESOURCES = "version, resources_id, data, created_at"
"""The columns of `resources_of`."""

WORKER_SILENT_SECONDS = 30.0
"""A worker that holds no lease and was not heard of for so long is `unknown`."""

WORKER_SEEN_EVERY = 1.0
"""A claim notes that its worker was heard of no more often than this, in seconds."""


ROLLOUT_STATUS: Mapping[str, RolloutStatus] = {status.value: status for status in RolloutStatus}
ATTEMPT_STATUS: Mapping[str, AttemptStatus] = {status.value: status for status in AttemptStatus}
MODE: Mapping[str, Mode] = {mode.value: mode for mode in Mode}
"""By name; ten times quicker than calling the enum, on every row."""


class Current(Struct, frozen=True):
    """A rollout's row as far as a fenced write must know it."""

    seq: int
    rollout_id: str
    status: str
    mode: str
    tag: str | None
    config: bytes
    n_attempts: int
    n_failures: int
    attempt_id: str
    worker_id: str
    started_at: float
    heartbeat_at: float
    expires_at: float | None
    resources_version: int | None = None
    metadata: bytes | None = None

    @property
    def is_live(self) -> bool:
        return self.expires_at is not None

    def held_by(self, attempt_id: str) -> bool:
        return self.expires_at is not None and self.attempt_id == attempt_id


class Outcome(Struct, frozen=True):
    """How an attempt ended, as far as its status does not tell.

    `isolates`: its rollout, if it waits again, is set aside.
    """

    worker_id: str
    reward: float | None = None
    failure: Failure | None = None
    isolates: bool = False


class Landing(Struct, frozen=True):
    """Where a signal takes a rollout; states by the names that stand in a row, which drivers take as they are."""

    status: str
    attempt_status: str
    n_failures: int
    requeues: bool


@lru_cache(maxsize=1024)
def landing(status: str, signal: Signal, n_failures: int, config: bytes) -> Landing:
    """`advance` for a row. Remembered, since nearly all rollouts go the same few ways."""
    move = advance(ROLLOUT_STATUS[status], signal, n_failures=n_failures, config=config_or_no_retry(config))
    return Landing(move.rollout.value, move.attempt.value, move.n_failures, move.requeues)


def fresh_rollout(new: NewRollout, now: float) -> Rollout:
    """The rollout that `new` makes, as another process would read it."""
    request = new.request
    return Rollout(
        rollout_id=new.rollout_id,
        input=wire.decode(new.input),
        status=RolloutStatus.QUEUING,
        mode=request.mode,
        tag=request.tag,
        seed=request.seed,
        group_id=request.group_id,
        priority=request.priority,
        config=request.config,
        metadata=metadata_of(new.metadata),
        enqueued_at=utc(now),
    )


UNREADABLE_KIND = "UnreadableRollout"


def unreadable(what: str, error: Exception) -> Failure:
    """The failure of a rollout whose row cannot be read."""
    reason = " ".join(str(error).split()) or type(error).__name__
    return Failure(
        boundary=Boundary.WORKER,
        kind=UNREADABLE_KIND,
        message=f"{what} cannot be read ({reason}): another version of Outrider wrote it, or it is damaged; "
        "enqueue it again under a new id",
    )


def set_aside(current: Current) -> Current:
    """The row of a rollout that cannot be read, such that a failure ends it whatever its configuration says."""
    return replace(current, config=_NO_RETRY_RECORD)


_NO_RETRY_RECORD = wire.to_record(NO_RETRY)


def rollout_of(row: Sequence[Any]) -> Rollout:
    """A rollout; of one that cannot be read, what can be, and a failure that says so."""
    try:
        return _rollout_of(row)
    except UNREADABLE as exc:
        return _rest_of(row, exc)


def _rest_of(row: Sequence[Any], error: Exception) -> Rollout:
    return Rollout(
        rollout_id=row[0],
        input=_or(None, wire.decode, row[1]),
        status=ROLLOUT_STATUS.get(row[11], RolloutStatus.FAILED),
        mode=MODE.get(row[2], Mode.TRAIN),
        tag=row[3],
        seed=row[4],
        group_id=row[5],
        priority=row[6],
        config=config_or_no_retry(row[7]),
        metadata=_or({}, wire.decode, row[8]),
        enqueued_at=_or(utc(0.0), utc, row[9]),
        ended_at=None if row[12] is None else _or(utc(0.0), utc, row[12]),
        reward=row[13],
        failure=_or(None, failure_of, row[14]) or unreadable(f"rollout {row[0]!r}", error),
        n_attempts=row[15],
        n_failures=row[10],
        attempt_id=row[16],
        worker_id=row[17],
        resources_version=row[18],
        is_set_aside=is_isolated(row[19]),
    )


def _or(fallback: Any, read: Callable[[Any], Any], data: Any) -> Any:
    try:
        return read(data)
    except UNREADABLE:
        return fallback


def _rollout_of(row: Sequence[Any]) -> Rollout:
    return Rollout(
        rollout_id=row[0],
        input=wire.decode(row[1]),
        status=ROLLOUT_STATUS[row[11]],
        mode=MODE[row[2]],
        tag=row[3],
        seed=row[4],
        group_id=row[5],
        priority=row[6],
        config=config_of(row[7]),
        metadata=wire.decode(row[8]),
        enqueued_at=utc(row[9]),
        ended_at=None if row[12] is None else utc(row[12]),
        reward=row[13],
        failure=failure_of(row[14]),
        n_attempts=row[15],
        n_failures=row[10],
        attempt_id=row[16],
        worker_id=row[17],
        resources_version=row[18],
        is_set_aside=is_isolated(row[19]),
    )


def changed_of(row: Sequence[Any], change: Change) -> tuple[NewRollout, Rollout]:
    """What a waiting rollout, given by the columns `ROLLOUT`, becomes: as it is written, and as it is read then."""
    if not ROLLOUT_STATUS[row[11]].is_queued:
        raise RolloutTaken(row[0], row[11])
    try:
        existing = _rollout_of(row)
    except UNREADABLE as exc:
        raise StoreError(unreadable(f"rollout {row[0]!r}", exc).message) from exc
    new = change.applied(existing)
    columns = list(row)
    columns[1:9] = (
        *(new.input, new.request.mode, new.request.tag, new.request.seed, new.request.group_id, new.request.priority),
        *(new.config, new.metadata),
    )
    return new, _rollout_of(columns)


def attempted_of(row: Sequence[Any], attempt: Attempt) -> AttemptedRollout:
    """A claimed rollout: the row may be the one read before the claim. Raises one of `UNREADABLE`."""
    return AttemptedRollout(
        rollout_id=row[0],
        input=wire.decode(row[1]),
        status=ROLLOUT_STATUS[attempt.status],
        mode=MODE[row[2]],
        tag=row[3],
        seed=row[4],
        group_id=row[5],
        priority=row[6],
        config=config_of(row[7]),
        metadata=wire.decode(row[8]),
        enqueued_at=utc(row[9]),
        n_attempts=attempt.sequence_id,
        n_failures=row[10],
        attempt_id=attempt.attempt_id,
        worker_id=attempt.worker_id,
        resources_version=attempt.resources_version,
        attempt=attempt,
    )


def attempt_of(rollout_id: str, row: Sequence[Any]) -> Attempt:
    """An attempt that has ended."""
    return Attempt(
        rollout_id=rollout_id,
        attempt_id=row[0],
        sequence_id=row[1],
        worker_id=row[2],
        status=ATTEMPT_STATUS[row[3]],
        started_at=utc(row[4]),
        last_heartbeat_at=utc(row[5]),
        ended_at=utc(row[6]),
        lease_expires_at=None,
        reward=row[7],
        failure=_failure_of(rollout_id, row[8]),
        resources_version=row[9],
        metadata={} if row[10] is None else _noted(row[10]),
    )


def _noted(record: bytes) -> Mapping[str, Any]:
    """What was noted; nothing, of what cannot be read."""
    noted: Mapping[str, Any] = _or({}, wire.decode, record)
    return noted


def _failure_of(rollout_id: str, record: bytes | None) -> Failure | None:
    try:
        return failure_of(record)
    except UNREADABLE as exc:
        return unreadable(f"the failure of rollout {rollout_id!r}", exc)


def live_attempt(current: Current) -> Attempt:
    """The attempt that holds the lease."""
    return Attempt(
        rollout_id=current.rollout_id,
        attempt_id=current.attempt_id,
        sequence_id=current.n_attempts,
        worker_id=current.worker_id,
        status=ATTEMPT_STATUS[current.status],
        started_at=utc(current.started_at),
        last_heartbeat_at=utc(current.heartbeat_at),
        lease_expires_at=None if current.expires_at is None else utc(current.expires_at),
        resources_version=current.resources_version,
        metadata={} if current.metadata is None else _noted(current.metadata),
    )


def ended_attempt(
    current: Current, status: AttemptStatus, outcome: Outcome, now: float, *, heartbeat_at: float | None = None
) -> Attempt:
    """The attempt that held the lease, as it has just ended; `heartbeat_at` if that is newer than in `current`."""
    return Attempt(
        rollout_id=current.rollout_id,
        attempt_id=current.attempt_id,
        sequence_id=current.n_attempts,
        worker_id=outcome.worker_id,
        status=status,
        started_at=utc(current.started_at),
        last_heartbeat_at=utc(current.heartbeat_at if heartbeat_at is None else heartbeat_at),
        ended_at=utc(now),
        lease_expires_at=None,
        reward=outcome.reward,
        failure=outcome.failure,
        resources_version=current.resources_version,
        metadata={} if current.metadata is None else _noted(current.metadata),
    )


def event_rows(current: Current, first: int, events: Sequence[Event]) -> Iterator[tuple[Any, ...]]:
    """Rows for the events table: seq, sequence_id, place, kind, name, at, data."""
    for place, event in enumerate(events, first):
        yield (
            current.seq,
            current.n_attempts,
            place,
            event.kind,
            event.name,
            event.at.timestamp(),
            wire.encode(event.data),
        )


def event_of(rollout_id: str, attempt_id: str, row: Sequence[Any]) -> RecordedEvent:
    """An event from place, kind, name, at, data. One that cannot be read is a log that says so."""
    kind, at = row[1], row[3]
    try:
        kind, at, data = EventKind(kind), utc(at), metadata_of(row[4])
    except UNREADABLE as exc:
        kind, at = EventKind.LOG, _or(utc(0.0), utc, at)
        data = {"unreadable": unreadable(f"event {row[0]} of rollout {rollout_id!r}", exc).message}
    return RecordedEvent(
        rollout_id=rollout_id, attempt_id=attempt_id, index=row[0], kind=kind, name=row[2], at=at, data=data
    )


def seq_of(attempt_id: str) -> int | None:
    """Where its rollout stands, which the id of an attempt tells; None of an id that no store has given."""
    try:
        seq = int(attempt_id.split("-")[1], 16)
    except (IndexError, ValueError):
        return None
    return seq if abs(seq) < 1 << 63 else None


def chosen_attempt(attempts: Sequence[Attempt], query: EventQuery) -> Attempt | None:
    """The attempt whose events are asked for: the latest, if there is one yet, unless another is named."""
    if query.attempt_id is None:
        return attempts[-1] if attempts else None
    for attempt in attempts:
        if attempt.attempt_id == query.attempt_id:
            return attempt
    raise UnknownId("attempt", query.attempt_id)


Lease = tuple[str, str, float]
"""An attempt that holds a lease, its rollout, and when it was claimed."""


def worker_of(row: Sequence[Any], leases: Sequence[Lease], now: float) -> Worker:
    """A worker from the columns `WORKER` and the leases it holds."""
    if leases:
        status = WorkerStatus.BUSY
    else:
        status = WorkerStatus.UNKNOWN if now - row[2] > WORKER_SILENT_SECONDS else WorkerStatus.IDLE
    return Worker(
        worker_id=row[0],
        status=status,
        first_seen_at=utc(row[1]),
        last_seen_at=utc(row[2]),
        attempt_ids=tuple(attempt_id for attempt_id, _, _ in sorted(leases)),
        rollout_ids=tuple(rollout_id for _, rollout_id, _ in sorted(leases)),
        busy_since=utc(min(claimed_at for _, _, claimed_at in leases)) if leases else None,
        n_succeeded=row[3],
        n_failed=row[4],
        last_ended_at=None if row[5] is None else utc(row[5]),
        stats={} if row[6] is None else _noted(row[6]),
    )


def resources_of(row: Sequence[Any]) -> Resources:
    """Resources from the columns `RESOURCES`."""
    try:
        return Resources(version=row[0], resources_id=row[1], resources=metadata_of(row[2]), created_at=utc(row[3]))
    except UNREADABLE as exc:
        raise StoreError(f"version {row[0]} of the resources cannot be read ({exc}); publish them again") from exc
