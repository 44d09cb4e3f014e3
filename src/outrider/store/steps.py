"""What the shared half of a store hands to its engine: checked, encoded, and ready for one atomic step."""

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from functools import lru_cache
from typing import Any, SupportsFloat, TypeVar, assert_never

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from outrider.core import wire
from outrider.core.account import Account
from outrider.core.attempt import Failure
from outrider.core.bounds import MAX_SECONDS, is_number
from outrider.core.clock import utc
from outrider.core.errors import Boundary, InvalidInput
from outrider.core.event import Event, EventKind
from outrider.core.ids import new_id
from outrider.core.lifecycle import REPORTED, Signal
from outrider.core.rollout import Rollout, RolloutConfig, RolloutRequest
from outrider.core.status import AttemptStatus, Mode, RolloutStatus
from outrider.store.protocol import Revoked, SortKey

S = TypeVar("S", bound=StrEnum)
T = TypeVar("T")

MAX_ID_BYTES = 512

MAX_NOTE_BYTES = 1 << 16
"""The longest that is noted on an attempt or said by a worker of itself."""

MAX_RESOURCES_BYTES = 16 << 20
"""The most that one version of the resources holds: every worker reads it."""

MODES = tuple(Mode)

ISOLATED = "~"
"""Lanes of rollouts that were set aside begin with this character, and so come after all others."""


class NewRollout(Struct, frozen=True, kw_only=True):
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


class Claim(Struct, frozen=True, kw_only=True):
    """A claim of up to `limit` rollouts from the lanes that fit: `isolated` ones if it says so, else the others."""

    worker_id: str
    limit: int
    tags: frozenset[str] | None
    mode: Mode | None
    request_id: str | None
    isolated: bool = False

    @property
    def takes_any(self) -> bool:
        return self.tags is None and self.mode is None and not self.isolated

    @property
    def modes(self) -> tuple[Mode, ...]:
        return MODES if self.mode is None else (self.mode,)

    @property
    def lanes(self) -> list[str]:
        """The lanes of the tags it names."""
        return [lane_of(mode, tag, isolated=self.isolated) for mode in self.modes for tag in sorted(self.tags or ())]


class Revocation(Struct, frozen=True, kw_only=True):
    """The leases of a worker to take away, why, and what becomes of its rollouts."""

    worker_id: str
    failure: Failure
    how: Revoked

    @property
    def isolates(self) -> bool:
        return self.how is Revoked.ISOLATED

    def signal(self, n_held: int) -> Signal:
        """What happens to each of the `n_held` rollouts of the worker."""
        match self.how:
            case Revoked.LOST:
                return Signal.LOSE
            case Revoked.HANDED_BACK:
                return Signal.HAND_BACK
            case Revoked.ISOLATED:
                return Signal.LOSE if n_held == 1 else Signal.HAND_BACK
            case _:
                assert_never(self.how)


class Report(Struct, frozen=True, kw_only=True):
    """What a worker says of its attempt; `signal` is None when only the worker or events are new."""

    rollout_id: str
    attempt_id: str
    signal: Signal | None = None
    worker_id: str | None = None
    reward: float | None = None
    failure: Failure | None = None
    events: tuple[Event, ...] = ()
    first_index: int | None = None
    account: Account | None = None
    metadata: bytes | None = None


class Change(Struct, frozen=True, kw_only=True):
    """What of a waiting rollout to change: fields of `RolloutRequest` by name, checked."""

    rollout_id: str
    fields: Mapping[str, Any]

    def applied(self, existing: Rollout) -> NewRollout:
        """The rollout as it shall be."""
        kept = {name: getattr(existing, name) for name in RolloutRequest.__struct_fields__}
        return new_rollout(RolloutRequest(**{**kept, **self.fields}))


class WorkerNote(Struct, frozen=True, kw_only=True):
    """What a worker has done since the last note, and what it says of itself, if it does."""

    worker_id: str
    n_succeeded: int = 0
    n_failed: int = 0
    ended_at: float | None = None
    stats: bytes | None = None


class ResourcesQuery(Struct, frozen=True, kw_only=True):
    """Which resources to list."""

    resources_id: str | None = None
    version: int | None = None
    descending: bool = False
    limit: int = -1
    offset: int = 0

    def __post_init__(self) -> None:
        check_window(self.limit, self.offset)
        check_texts(resources_id=self.resources_id)
        check_kind("descending", self.descending, bool)
        if self.version is not None:
            check_integer("version", self.version, bits=64, least=1)


class RolloutQuery(Struct, frozen=True, kw_only=True):
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

    @property
    def is_filtered(self) -> bool:
        """Whether rollouts are chosen by anything but their ids."""
        return any(chosen is not None for chosen in (self.statuses, self.mode, self.tag, self.group_id))

    @property
    def is_by_kind(self) -> bool:
        """Whether rollouts are chosen by status, mode and tag alone."""
        return self.is_filtered and self.group_id is None and self.rollout_ids is None

    @property
    def is_of_all(self) -> bool:
        """Whether all rollouts are asked for, or all that have ended."""
        return not self.is_filtered and self.rollout_ids is None

    def __post_init__(self) -> None:
        check_window(self.limit, self.offset)
        check_texts(tag=self.tag, group_id=self.group_id)
        check_kind("descending", self.descending, bool)
        if self.sort_by not in ("enqueued_at", "ended_at"):
            raise InvalidInput(f"cannot sort by {self.sort_by!r}; there are enqueued_at and ended_at")


class EventQuery(Struct, frozen=True, kw_only=True):
    """Which events of a rollout to list."""

    rollout_id: str
    attempt_id: str | None = None
    kind: EventKind | None = None
    limit: int = -1
    offset: int = 0

    def __post_init__(self) -> None:
        check_window(self.limit, self.offset)
        check_texts(rollout_id=self.rollout_id, attempt_id=self.attempt_id)


class Lease(Struct, frozen=True):
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


def lease_of(config: bytes, started_at: float) -> Lease:
    """The lease of an attempt with this configuration."""
    return Lease(config_or_no_retry(config), started_at)


def lease_seconds(config: bytes) -> tuple[float, float]:
    """How long an attempt with this configuration may stay silent, and run, from its start."""
    found = config_or_no_retry(config)
    return found.unresponsive_seconds, math.inf if found.timeout_seconds is None else found.timeout_seconds


def lane_of(mode: Mode, tag: str | None, *, isolated: bool = False) -> str:
    """The queue a rollout waits in: claims choose lanes, so that their cost does not grow with other lanes' rows."""
    return f"{ISOLATED if isolated else ''}{mode}/{tag or ''}"


def is_isolated(lane: str | None) -> bool:
    """Whether what waits in this lane was set aside."""
    return lane is not None and lane.startswith(ISOLATED)


@lru_cache(maxsize=1024)
def config_of(record: bytes) -> RolloutConfig:
    """The configuration in a record; a store has few different ones. Raises one of `UNREADABLE`."""
    return wire.from_record(record, RolloutConfig)


UNREADABLE = (msgspec.MsgspecError, InvalidInput, ValueError, TypeError, KeyError, OverflowError)
"""What reading a row raises that another version of Outrider has written, or that is damaged."""

NO_RETRY = RolloutConfig(max_attempts=1)
"""Stands for a configuration that cannot be read: a lease of it ends in time, and nothing is tried again."""


@lru_cache(maxsize=1024)
def config_or_no_retry(record: bytes) -> RolloutConfig:
    """The same, but never raises: a row that cannot be read must be in nobody's way."""
    try:
        return config_of(record)
    except UNREADABLE:
        return NO_RETRY


@lru_cache(maxsize=1024)
def _config_record(config: RolloutConfig) -> bytes:
    fields = msgspec.structs.asdict(config)
    if config.resources_version is None:  # as of nearly all, whose rows it would make longer
        del fields["resources_version"]
    return wire.to_record(fields)


def checked_account(account: Account) -> Account:
    """An account that can be kept, as a copy that no caller shares."""
    check_kind("an account", account, Account)
    check_integer("completion_tokens of an account", account.completion_tokens, bits=64, least=0)
    try:
        return account_of(account_record(account))
    except (TypeError, ValueError, OverflowError, msgspec.MsgspecError) as exc:
        raise InvalidInput(f"an account cannot be stored: {exc}") from exc


def account_record(account: Account) -> bytes:
    return wire.to_record(account)


def account_of(record: bytes) -> Account:
    return wire.from_record(record, Account)


def failure_record(failure: Failure | None) -> bytes | None:
    return None if failure is None else wire.to_record(failure)


def failure_of(record: bytes | None) -> Failure | None:
    return None if record is None else wire.from_record(record, Failure)


def new_rollout(request: RolloutRequest) -> NewRollout:
    """Check a request and encode its payloads; `InvalidInput` names the field that cannot be used."""
    check_kind("a rollout to enqueue", request, RolloutRequest)
    check_texts(rollout_id=request.rollout_id, tag=request.tag, group_id=request.group_id)
    check_integer("seed", 0 if request.seed is None else request.seed, bits=64)
    check_integer("priority", request.priority, bits=32)
    check_kind("config", request.config, RolloutConfig)
    check_kind("metadata", request.metadata, Mapping)
    return NewRollout(
        rollout_id=request.rollout_id or new_id("ro"),
        request=replace(request, mode=member(Mode, request.mode)),
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
    account: Account | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> Report:
    """Check what a worker reports."""
    signal = None if status is None else REPORTED.get(member(AttemptStatus, status))
    if status is not None and signal is None:
        raise InvalidInput(f"a worker cannot report {status!r}; it may report {', '.join(REPORTED)}")
    check_id("rollout_id", rollout_id)
    check_id("attempt_id", attempt_id)
    if error is not None:
        _check_failure(error)
        if error.permanent and signal is Signal.FAIL:
            signal = Signal.GIVE_UP
    if first_index is not None:
        check_integer("first_index", first_index, bits=32, least=0)
    if account is not None:
        _check_ends(signal)
    return Report(
        rollout_id=rollout_id,
        attempt_id=attempt_id,
        signal=signal,
        worker_id=None if worker_id is None else worker_name(worker_id),
        reward=None if reward is None else finite(f"reward of rollout {rollout_id}:", reward),
        failure=error,
        events=_checked_events(events),
        first_index=first_index,
        account=None if account is None else checked_account(account),
        metadata=None if metadata is None else small_record("metadata of an attempt", metadata),
    )


def new_change(rollout_id: str, **fields: Any) -> Change:
    """Check what of a rollout to change; what is `UNSET` stays as it is."""
    check_id("rollout_id", rollout_id)
    given = {name: value for name, value in fields.items() if value is not msgspec.UNSET}
    if "mode" in given:
        given["mode"] = member(Mode, given["mode"])
    new_rollout(RolloutRequest(**{"input": None, **given}))
    return Change(rollout_id=rollout_id, fields=given)


def small_record(name: str, values: Mapping[str, Any]) -> bytes:
    """A mapping that is read and written together with its row, and so must be small."""
    check_kind(name, values, Mapping)
    record = wire.encode(dict(values))
    if len(record) > MAX_NOTE_BYTES:
        raise InvalidInput(
            f"{name} has {len(record)} bytes, and may have {MAX_NOTE_BYTES}; keep what is larger as events or artifacts"
        )
    return record


def member(kind: type[S], value: str) -> S:
    """The enum member of that name, or an error that lists the names there are."""
    if type(value) is kind:
        return value
    try:
        return kind(value)
    except ValueError as exc:
        name = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", kind.__name__).lower()
        raise InvalidInput(f"unknown {name} {value!r}; give one of {', '.join(kind)}") from exc


def members(field_name: str, kind: type[S], values: Collection[str] | None) -> tuple[S, ...] | None:
    """Each of the enum members of these names once; None stands for all."""
    return (
        None
        if values is None
        else tuple(dict.fromkeys(member(kind, name) for name in several(field_name, values, "states")))
    )


def worker_name(worker_id: str | int) -> str:
    if type(worker_id) is not str and (isinstance(worker_id, bool) or not isinstance(worker_id, (str, int))):
        raise InvalidInput(f"worker_id must be text or a whole number, not {type(worker_id).__name__}")
    name = str(worker_id)
    check_id("worker_id", name)
    return name


def check_id(field_name: str, value: str) -> None:
    """Ids are any text of 1 to 512 bytes without NUL; quotes, spaces and other alphabets are fine."""
    if type(value) is str and value.isascii() and 0 < len(value) <= MAX_ID_BYTES and "\0" not in value:
        return
    n_bytes = check_text(field_name, value)
    if not 1 <= n_bytes <= MAX_ID_BYTES:
        raise InvalidInput(f"{field_name} must have 1 to {MAX_ID_BYTES} bytes, not {n_bytes}")


def check_text(field_name: str, value: str) -> int:
    """Text that every database keeps, and its length in bytes."""
    if not isinstance(value, str):
        raise InvalidInput(f"{field_name} must be text, not {type(value).__name__}")
    try:
        encoded = value.encode()
    except UnicodeEncodeError as exc:
        raise InvalidInput(f"{field_name} {value!r} is not valid text: {exc.reason}") from exc
    if b"\0" in encoded:
        raise InvalidInput(f"{field_name} {value!r} has a NUL character")
    return len(encoded)


def check_texts(**ids: str | None) -> None:
    """Check the ids that are given."""
    for field_name, value in ids.items():
        if value is not None:
            check_id(field_name, value)


def checked_ids(field_name: str, ids: Collection[str]) -> tuple[str, ...]:
    """Each of `ids` once, checked."""
    for id in several(field_name, ids, "ids"):
        check_id(field_name, id)
    return tuple(dict.fromkeys(ids))


def several(field_name: str, values: Iterable[T], what: str) -> Iterable[T]:
    """`values`, if they are several things and not one."""
    if isinstance(values, (str, bytes)):
        raise InvalidInput(f"{field_name} is the text {values!r}; give a list of {what}")
    if isinstance(values, Mapping) or not isinstance(values, Iterable):
        raise InvalidInput(f"{field_name} must be a list of {what}, not {type(values).__name__}")
    return values


def check_seconds(field_name: str, value: float) -> None:
    """A time to wait: infinity stands for no limit, and what is below 0 for none."""
    if type(value) is float and value <= MAX_SECONDS:
        return
    if not is_number(value) or not value <= math.inf:
        raise InvalidInput(f"{field_name} must be a number of seconds, not {value!r:.40}")
    if value != math.inf and value > MAX_SECONDS:
        raise InvalidInput(f"{field_name} is {value!r:.40}; give at most {MAX_SECONDS:g} seconds, or math.inf")


def check_window(limit: int, offset: int) -> None:
    check_integer("limit (-1: all)", limit, bits=64, least=-1)
    check_integer("offset", offset, bits=64, least=0)


def check_feed(cursor: int, limit: int) -> None:
    check_integer("cursor", cursor, bits=64, least=0)
    check_integer("limit", limit, bits=64, least=1)


def claim_of(
    limit: int,
    worker_id: str | int,
    tags: Collection[str] | None,
    mode: Mode | str | None,
    request_id: str | None,
    *,
    isolated: bool = False,
) -> Claim:
    """Check a claim."""
    check_integer("limit", limit, bits=64, least=1)
    if request_id is not None:
        check_id("request_id", request_id)
    if isolated is not False:
        check_kind("isolated", isolated, bool)
    return Claim(
        worker_id=worker_name(worker_id),
        limit=limit,
        tags=None if tags is None else frozenset(checked_ids("tags", tags)),
        mode=None if mode is None else member(Mode, mode),
        request_id=request_id,
        isolated=isolated,
    )


def metadata_of(data: bytes) -> Mapping[str, Any]:
    metadata: Mapping[str, Any] = wire.decode(data)
    return metadata


def finite(name: str, value: SupportsFloat) -> float:
    """What can stand for a number, a flag or a NumPy scalar too, but no text."""
    if type(value) is not float and not isinstance(value, SupportsFloat):
        raise InvalidInput(f"{name} {value!r} is not a number")
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError) as exc:
        raise InvalidInput(f"{name} {value!r} is not a number") from exc
    if not math.isfinite(number):
        raise InvalidInput(f"{name} {value} is not a finite number; leave it out instead")
    return number


def _check_ends(signal: Signal | None) -> None:
    if signal is None or signal is Signal.RUN:
        raise InvalidInput("an account goes with the report that ends the attempt; give it with a final status")


def _check_failure(error: Failure) -> None:
    check_kind("error", error, Failure)
    try:
        failure_of(failure_record(error))
    except (TypeError, ValueError, msgspec.MsgspecError) as exc:
        raise InvalidInput(f"the error of kind {error.kind!r} cannot be stored: {exc}") from exc


def _checked_events(events: Sequence[Event]) -> tuple[Event, ...]:
    if type(events) is tuple and not events:
        return ()
    return tuple(map(_checked_event, several("events", events, "events")))


def _checked_event(event: Event) -> Event:
    check_kind("an event", event, Event)
    check_kind("an event's time `at`", event.at, datetime)
    check_kind("an event's data", event.data, Mapping)
    checked_time("an event's time `at`", event.at)
    if event.name != "":
        check_text("an event's name", event.name)
    return event if isinstance(event.kind, EventKind) else replace(event, kind=member(EventKind, event.kind))


def checked_time(name: str, value: datetime) -> datetime:
    """A time that comes back from a store: not one at the very ends of the calendar."""
    try:
        utc(value.timestamp())
    except (ValueError, OverflowError, OSError) as exc:
        raise InvalidInput(f"{name} {value} cannot be stored: {exc}") from exc
    return value


def check_kind(name: str, value: object, kind: type) -> None:
    if not isinstance(value, kind):
        raise InvalidInput(f"{name} must be a {kind.__name__}, not {type(value).__name__}")


def check_integer(name: str, value: int, *, bits: int, least: int | None = None) -> None:
    if type(value) is not int and (isinstance(value, bool) or not isinstance(value, int)):
        raise InvalidInput(f"{name} must be a whole number, not {type(value).__name__}")
    if not -(1 << bits - 1) <= value < 1 << bits - 1:
        raise InvalidInput(f"{name} {value} does not fit into {bits} bits")
    if least is not None and value < least:
        raise InvalidInput(f"{name} {value} is too small; give {least} or more")
