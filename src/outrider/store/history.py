"""A record of the calls on a store, for `outrider.testing.history` to check afterwards.

With `OUTRIDER_HISTORY` set to a folder, `open_store` records every call of this process and of those it starts: one
file a store, one line when a call begins and one when it is answered. Of a call without an answer nobody knows the
outcome, such as that of a process that was killed. Payloads are recorded as digests.

Times are those of the host's monotonic clock: histories of several hosts cannot be compared.
"""

import asyncio
import functools
import hashlib
import inspect
import itertools
import os
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol, cast
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from outrider.core import wire
from outrider.core.attempt import Attempt, LostLease
from outrider.core.errors import InvalidInput, LeaseLost, LedgerLost, PoolLost
from outrider.core.event import Event, RecordedEvent
from outrider.core.ids import new_id
from outrider.core.ledger import Ledger, LedgerWrite
from outrider.core.page import Page
from outrider.core.rollout import AttemptedRollout, Rollout, RolloutRequest
from outrider.store.handle import StoreHandle
from outrider.store.protocol import Finished, Resources, Store
from outrider.store.url import StoreUrl

RECORDED = frozenset(
    {
        *("enqueue_rollout", "enqueue_many_rollouts", "start_rollout"),
        *("dequeue_rollout", "dequeue_many_rollouts"),
        *("update_rollout", "update_attempt", "append_events", "heartbeat", "revoke_leases", "cancel_rollouts"),
        *("get_rollout_by_id", "query_rollouts", "query_attempts", "query_events"),
        *("wait_for_rollouts", "finished_after"),
        *("put_resources", "get_latest_resources", "get_resources"),
        *("open_ledger", "write_ledger", "open_pool", "write_machines"),
    }
)
"""The methods that say something of rollouts, resources, ledgers and pools."""

_PAYLOADS = frozenset({"input", "metadata", "resources", "settings", "stats"})
"""Arguments that are recorded as digests."""


class Outcome(StrEnum):
    """What the caller learnt of its call."""

    OK = "ok"
    REFUSED = "refused"
    """The store said no, and changed nothing."""

    UNKNOWN = "unknown"
    """The caller was not answered, so the call may have been carried out or not."""


_REFUSALS = (InvalidInput, LeaseLost, LedgerLost, PoolLost)


class CallBegun(Struct, frozen=True, kw_only=True, tag="begun"):
    """A call that is about to be made on the store of this name. `at` is in nanoseconds."""

    client: str
    number: int
    method: str
    arguments: Mapping[str, Any]
    at: int
    store: str = ""


class CallAnswered(Struct, frozen=True, kw_only=True, tag="answered"):
    """What became of the call with that number."""

    client: str
    number: int
    at: int
    outcome: Outcome
    error: str = ""
    answer: Any = None


HistoryLine = CallBegun | CallAnswered


class Recorder(Protocol):
    """Where the lines of a history go."""

    def write(self, line: HistoryLine) -> None: ...

    def close(self) -> None:
        """Its store is closed; calls that are refused for that are not recorded any more."""


class FileRecorder:
    """Appends lines to a file of its own in `folder`: each is one write, so a killed process leaves only whole ones."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{new_id('client')}.jsonl"
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def write(self, line: HistoryLine) -> None:
        if self._descriptor >= 0:
            os.write(self._descriptor, msgspec.json.encode(line) + b"\n")

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class RecordedStore:
    """A store whose calls are recorded. It has all methods of the store it stands for."""

    def __init__(self, store: Store, recorder: Recorder, name: str) -> None:
        self._store = store
        self.name = name
        self._recorder = recorder
        self._client = new_id("client")
        self._numbers = itertools.count()
        self._handle = StoreHandle(self, asyncio.get_running_loop())

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        return functools.partial(self._recorded, name, found) if name in RECORDED else found

    def handle(self) -> Store:
        return self._handle.handle()

    async def __aenter__(self) -> Store:
        return cast("Store", self)

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def close(self) -> None:
        try:
            await self._store.close()
        finally:
            self._recorder.close()

    async def _recorded(self, method: str, call: Callable[..., Awaitable[Any]], *args: Any, **kwargs: Any) -> Any:
        number = next(self._numbers)
        bound = _signature(method).bind(self, *args, **kwargs).arguments
        bound |= bound.pop("request", {}) if method == "start_rollout" else {}
        del bound["self"]
        arguments = {name: digest_of(value) if name in _PAYLOADS else _given(value) for name, value in bound.items()}
        at = time.monotonic_ns()
        begun = CallBegun(
            client=self._client, number=number, method=method, arguments=arguments, at=at, store=self.name
        )
        self._recorder.write(begun)
        try:
            answer = await call(*args, **kwargs)
        except _REFUSALS as exc:
            self._answered(number, Outcome.REFUSED, error=type(exc).__name__)
            raise
        except (Exception, asyncio.CancelledError) as exc:
            self._answered(number, Outcome.UNKNOWN, error=type(exc).__name__)
            raise
        if method == "heartbeat":
            # What is held may be a live view, which the caller changes meanwhile.
            held = facts_of(bound.get("attempt_ids", ()))
            self._answered(number, Outcome.OK, answer={"lost": facts_of(answer), "held": held})
        else:
            self._answered(number, Outcome.OK, answer=facts_of(answer))
        return answer

    def _answered(self, number: int, outcome: Outcome, *, error: str = "", answer: Any = None) -> None:
        at = time.monotonic_ns()
        self._recorder.write(
            CallAnswered(client=self._client, number=number, at=at, outcome=outcome, error=error, answer=answer)
        )


@functools.cache
def _signature(method: str) -> inspect.Signature:
    return inspect.signature(getattr(Store, method))


def recorded(store: Store, recorder: Recorder, *, name: str | None = None) -> Store:
    """The same store, each of its calls told to `recorder`. Calls on stores of one name are checked together."""
    return cast("Store", RecordedStore(store, recorder, name_of(store) if name is None else name))


def name_of(store: Store) -> str:
    """A name that the store has in every process of this host; one in memory has none."""
    if isinstance(store, RecordedStore):
        return store.name
    url: StoreUrl | None = getattr(store, "url", None)
    if url is None or url.scheme == "memory":
        return ""
    place = urlsplit(url.shown)
    if url.scheme == "sqlite":
        return str(Path(place.path[1:]).absolute())
    return url.shown


def _given(value: Any) -> Any:
    """The facts of an argument; None of one that is no such thing, which the store refuses."""
    try:
        return facts_of(value)
    except (AttributeError, TypeError):
        return None


def facts_of(value: Any) -> Any:
    """What a checker must know of a value, as JSON: ids, states, numbers, and digests of payloads."""
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int):
        return value if -(2**63) <= value < 2**63 else str(value)
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if (known := _FACTS.get(type(value))) is not None:
        return known(value)
    return [facts_of(item) for item in value] if isinstance(value, Iterable) else None


def digest_of(payload: Any) -> str:
    """A short name for a payload, equal for equal ones; empty for one that cannot be stored."""
    try:
        return hashlib.blake2b(wire.encode(payload), digest_size=8).hexdigest()
    except InvalidInput:
        return ""


def _rollout(rollout: Rollout) -> dict[str, Any]:
    names = ("rollout_id", "status", "mode", "tag", "priority", "group_id", "reward", "n_attempts", "attempt_id")
    return {name: getattr(rollout, name) for name in names} | {"digest": digest_of(rollout.input)}


def _attempted(rollout: AttemptedRollout) -> dict[str, Any]:
    return _rollout(rollout) | {"attempt": _attempt(rollout.attempt)}


def _attempt(attempt: Attempt) -> dict[str, Any]:
    names = ("rollout_id", "attempt_id", "sequence_id", "worker_id", "status", "reward", "resources_version")
    return {name: getattr(attempt, name) for name in names} | {"metadata": digest_of(attempt.metadata)}


def _request(request: RolloutRequest) -> dict[str, Any]:
    names = ("rollout_id", "mode", "tag", "priority", "group_id")
    return {name: getattr(request, name) for name in names} | {"digest": digest_of(request.input)}


def _ledger_write(write: LedgerWrite) -> dict[str, Any]:
    return {
        "opened": [group.group_id for group in write.opened],
        "members": [_request(member) for group in write.opened for member in group.members]
        + [_request(member) for member in write.members],
        "granted": [[grant.group_id, grant.attempt_id, grant.version] for grant in write.granted],
        "moved": [[move.group_id, move.state, move.batch, list(move.members)] for move in write.moved],
        "version": write.version,
    }


_FACTS: Mapping[type, Callable[[Any], Any]] = {
    Page: lambda page: {"items": [facts_of(item) for item in page.items], "total": page.total},
    Rollout: _rollout,
    AttemptedRollout: _attempted,
    Attempt: _attempt,
    RolloutRequest: _request,
    LedgerWrite: _ledger_write,
    LostLease: lambda lease: lease.attempt_id,
    Event: lambda _: None,
    RecordedEvent: lambda _: None,
    Finished: lambda found: {"items": [_rollout(rollout) for rollout in found.items], "cursor": found.cursor},
    Resources: lambda found: {"version": found.version, "id": found.resources_id, "digest": digest_of(found.resources)},
    Ledger: lambda ledger: {"name": ledger.name, "epoch": ledger.epoch},
}
