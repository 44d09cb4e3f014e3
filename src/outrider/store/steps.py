"""What the shared half of a store hands to its engine: checked, encoded, and ready for one atomic step."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any, TypeVar

from outrider.core import wire
from outrider.core.attempt import Failure
from outrider.core.errors import Boundary, InvalidInput
from outrider.core.event import Event, EventKind
from outrider.core.ids import new_id
from outrider.core.lifecycle import REPORTED, Signal
from outrider.core.rollout import Rollout, RolloutConfig, RolloutRequest
from outrider.core.status import AttemptStatus, Mode, RolloutStatus
from outrider.store.protocol import SortKey

S = TypeVar("S", bound=StrEnum)

MAX_ID_BYTES = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRollout:
    """A rollout to insert, its payloads already encoded."""

    rollout_id: str
    request: RolloutRequest
    input: bytes
    metadata: bytes
    config: bytes

    @property
    def lane(self) -> str:
        return lane_of(self.request.mode, self.request.tag)

    def matches(self, existing: Rollout) -> bool:
        """Whether enqueueing this again is a repetition of what made `existing`."""
        new = self.request
        return (
            (new.mode, new.tag, new.seed, new.group_id, new.priority, new.config)
            == (
                existing.mode,
                existing.tag,
                existing.seed,
                existing.group_id,
                existing.priority,
                existing.config,
            )
            and wire.encode(existing.input) == self.input
            and wire.encode(existing.metadata) == self.metadata
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A claim of up to `limit` rollouts from the lanes that fit."""

    worker_id: str
    limit: int
    tags: frozenset[str] | None
    mode: Mode | None
    request_id: str | None

    @property
    def takes_any(self) -> bool:
        return self.tags is None and self.mode is None

    def takes(self, lane: str) -> bool:
        mode, _, tag = lane.partition("/")
        return (self.mode is None or mode == self.mode) and (self.tags is None or tag in self.tags)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a worker says of its attempt; `signal` is None when only the worker or events are new."""

    rollout_id: str
    attempt_id: str
    signal: Signal | None = None
    worker_id: str | None = None
    reward: float | None = None
    failure: Failure | None = None
    events: tuple[Event, ...] = ()
    first_index: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutQuery:
    """Which rollouts to list."""

    statuses: tuple[RolloutStatus, ...] | None = None
    mode: Mode | None = None
    tag: str | None = None
    group_id: str | None = None
    rollout_ids: tuple[str, ...] | None = None
    sort_by: SortKey = "enqueued_at"
    descending: bool = False
    limit: int = -1
    offset: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EventQuery:
    """Which events of a rollout to list."""

    rollout_id: str
    attempt_id: str | None = None
    kind: EventKind | None = None
    limit: int = -1
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Lease:
    """How long an attempt may stay silent and run, in unix seconds."""

    config: RolloutConfig
    started_at: float

    def renewed(self, now: float) -> float:
        """When the lease ends if nothing is heard after `now`."""
        return min(now + self.config.unresponsive_seconds, self.deadline)

    @property
    def deadline(self) -> float:
        timeout = self.config.timeout_seconds
        return math.inf if timeout is None else self.started_at + timeout

    def verdict(self, worker_id: str, now: float) -> tuple[Signal, Failure]:
        """Why the store takes an expired lease away."""
        if self.deadline <= now:
            message = f"no result within timeout_seconds={self.config.timeout_seconds:g}"
            return Signal.TIME_OUT, Failure(boundary=Boundary.LIMIT, kind="AttemptTimeout", message=message)
        message = f"worker {worker_id} sent no heartbeat for unresponsive_seconds={self.config.unresponsive_seconds:g}"
        return Signal.LOSE, Failure(boundary=Boundary.WORKER, kind="WorkerUnresponsive", message=message)


def lane_of(mode: Mode, tag: str | None) -> str:
    """The queue a rollout waits in: claims choose lanes, so that their cost does not grow with other lanes' rows."""
    return f"{mode}/{tag or ''}"


@lru_cache(maxsize=1024)
def config_of(record: bytes) -> RolloutConfig:
    """The configuration in a record; a store has few different ones."""
    return wire.from_record(record, RolloutConfig)


@lru_cache(maxsize=1024)
def _config_record(config: RolloutConfig) -> bytes:
    return wire.to_record(config)


def failure_record(failure: Failure | None) -> bytes | None:
    return None if failure is None else wire.to_record(failure)


def failure_of(record: bytes | None) -> Failure | None:
    return None if record is None else wire.from_record(record, Failure)


def new_rollout(request: RolloutRequest) -> NewRollout:
    """Check a request and encode its payloads; `InvalidInput` names the field that cannot be used."""
    if request.rollout_id is not None:
        check_id("rollout_id", request.rollout_id)
    if request.tag is not None:
        check_id("tag", request.tag)
    if request.group_id is not None:
        check_id("group_id", request.group_id)
    _check_integer("seed", request.seed or 0, bits=64)
    _check_integer("priority", request.priority, bits=32)
    return NewRollout(
        rollout_id=request.rollout_id or new_id("ro"),
        request=request,
        input=wire.encode(request.input),
        metadata=wire.encode(dict(request.metadata)),
        config=_config_record(request.config),
    )


def new_request(input: Any, **fields: Any) -> RolloutRequest:
    """A request from the loose arguments of `enqueue_rollout`; what is None takes its default."""
    given = {name: value for name, value in fields.items() if value is not None}
    if "mode" in given:
        given["mode"] = member(Mode, given["mode"])
    try:
        return RolloutRequest(input=input, **given)
    except TypeError as exc:
        raise InvalidInput(f"a rollout cannot be made of these arguments: {exc}") from exc


def new_report(
    rollout_id: str,
    attempt_id: str,
    *,
    status: AttemptStatus | str | None,
    reward: float | None,
    error: Failure | None,
    events: Sequence[Event],
    worker_id: str | int | None = None,
    first_index: int | None = None,
) -> Report:
    """Check what a worker reports."""
    signal = None if status is None else REPORTED.get(member(AttemptStatus, status))
    if status is not None and signal is None:
        raise InvalidInput(f"a worker cannot report {status!r}; it may report {', '.join(REPORTED)}")
    if reward is not None and not math.isfinite(reward):
        raise InvalidInput(f"reward {reward} of rollout {rollout_id} is not a finite number; leave it out instead")
    if first_index is not None:
        _check_integer("first_index", first_index, bits=32)
    return Report(
        rollout_id=rollout_id,
        attempt_id=attempt_id,
        signal=signal,
        worker_id=None if worker_id is None else worker_name(worker_id),
        reward=None if reward is None else float(reward),
        failure=error,
        events=tuple(events),
        first_index=first_index,
    )


def member(kind: type[S], value: str) -> S:
    """The enum member of that name, or an error that lists the names there are."""
    try:
        return kind(value)
    except ValueError as exc:
        name = kind.__name__.removesuffix("Status").lower()
        raise InvalidInput(f"{value!r} is no {name} state or mode; there are {', '.join(kind)}") from exc


def worker_name(worker_id: str | int) -> str:
    name = str(worker_id)
    check_id("worker_id", name)
    return name


def check_id(field_name: str, value: str) -> None:
    """Ids are any text of 1 to 512 bytes without NUL; quotes, spaces and other alphabets are fine."""
    if not isinstance(value, str):
        raise InvalidInput(f"{field_name} must be text, not {type(value).__name__}")
    try:
        n_bytes = len(value.encode())
    except UnicodeEncodeError as exc:
        raise InvalidInput(f"{field_name} {value!r} is not valid text: {exc.reason}") from exc
    if not 1 <= n_bytes <= MAX_ID_BYTES or "\0" in value:
        raise InvalidInput(f"{field_name} must have 1 to {MAX_ID_BYTES} bytes and no NUL, not {n_bytes} bytes")


def check_window(limit: int, offset: int) -> None:
    if limit < -1 or offset < 0:
        raise InvalidInput(
            f"limit {limit}, offset {offset}: give a limit of 0 or more (-1: all), an offset of 0 or more"
        )


def claim_of(
    limit: int,
    worker_id: str | int,
    tags: Collection[str] | None,
    mode: Mode | str | None,
    request_id: str | None,
) -> Claim:
    """Check a claim."""
    if limit < 1:
        raise InvalidInput(f"cannot claim {limit} rollouts; give a limit of 1 or more")
    if isinstance(tags, str):
        raise InvalidInput(f"tags is the text {tags!r}; give a list of tags")
    if request_id is not None:
        check_id("request_id", request_id)
    return Claim(
        worker_id=worker_name(worker_id),
        limit=limit,
        tags=None if tags is None else frozenset(tags),
        mode=None if mode is None else member(Mode, mode),
        request_id=request_id,
    )


def metadata_of(data: bytes) -> Mapping[str, Any]:
    metadata: Mapping[str, Any] = wire.decode(data)
    return metadata


def _check_integer(name: str, value: int, *, bits: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidInput(f"{name} must be a whole number, not {type(value).__name__}")
    if not -(1 << bits - 1) <= value < 1 << bits - 1:
        raise InvalidInput(f"{name} {value} does not fit into {bits} bits")
