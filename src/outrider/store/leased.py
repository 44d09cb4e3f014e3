"""What all store engines share: checking, waiting, waking, and taking expired leases away.

An engine brings the atomic steps; see `outrider.store.engine`.
"""

import asyncio
import logging
import math
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Self, TypeVar

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from outrider.core import wire
from outrider.core.account import Account
from outrider.core.attempt import Attempt, Failure, LostLease
from outrider.core.clock import Clock, sleep
from outrider.core.errors import Boundary, InvalidInput, StoreError, StoreUnavailable, UnknownId
from outrider.core.event import Event, EventKind, RecordedEvent
from outrider.core.page import Page
from outrider.core.rollout import AttemptedRollout, Rollout, RolloutConfig, RolloutRequest
from outrider.core.status import AttemptStatus, Mode, RolloutStatus, WorkerStatus
from outrider.core.worker import Worker
from outrider.store.bell import Bell, Topic
from outrider.store.handle import StoreHandle
from outrider.store.ledgers import LedgerMethods
from outrider.store.machines import MachineMethods
from outrider.store.outage import Outage, RepeatedCall
from outrider.store.protocol import DEFAULT_RESOURCES, Finished, Resources, Revoked, SortKey, Statistics, Store
from outrider.store.reported import Reported
from outrider.store.steps import (
    MAX_RESOURCES_BYTES,
    EventQuery,
    ResourcesQuery,
    Revocation,
    RolloutQuery,
    WorkerNote,
    check_feed,
    check_id,
    check_integer,
    check_seconds,
    check_text,
    check_window,
    checked_ids,
    claim_of,
    member,
    members,
    new_change,
    new_report,
    new_request,
    new_rollout,
    several,
    small_record,
    worker_name,
)
from outrider.store.url import StoreUrl

R = TypeVar("R")

_log = logging.getLogger(__name__)

SWEEP_SECONDS = 0.5
"""How often to look for expired leases at least; a lease granted meanwhile by another process may end sooner."""

FEED_PAGE = 1000

LAST_NOTE_SECONDS = 1.0
"""How long a store that is closed may take to count the last reports."""


class LeasedStore(LedgerMethods, MachineMethods):
    """A store; see `outrider.store.protocol` for what its public methods promise."""

    def __init__(self, url: StoreUrl, clock: Clock, bell: Bell) -> None:
        super().__init__(clock, bell)
        self._url = url
        self.outage = Outage(clock)
        self._is_open = False
        self._sweeper: asyncio.Task[None] | None = None
        self._handle: StoreHandle
        self._reported = Reported()

    @property
    def url(self) -> StoreUrl:
        return self._url

    async def open(self, *, read_only: bool = False) -> Self:
        """Connect, bring the schema up to date, and start taking expired leases away.

        With `read_only` nothing is written: expired leases stay where they are, too.
        """
        self._is_read_only = read_only
        self._handle = StoreHandle(self, asyncio.get_running_loop())
        await self._connect()
        self._is_open = True
        if not read_only:
            self._sweeper = asyncio.create_task(self._sweep(), name=f"expire leases of {self._url}")
        return self

    def handle(self) -> Store:
        return self._handle.handle()

    async def close(self) -> None:
        was_open, self._is_open = self._is_open, False
        if not was_open:
            return
        sweeper = self._sweeper
        if sweeper is not None:
            sweeper.cancel()
            await asyncio.wait([sweeper])
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_NOTE_SECONDS):
                await self._note_reported()
        await self._disconnect()
        for topic in Topic:  # those who still wait find the store closed now, not at their deadline
            self._bell.ring_here(topic)
        if sweeper is not None and not sweeper.cancelled() and (error := sweeper.exception()) is not None:
            raise error

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def enqueue_rollout(
        self,
        input: Any,
        *,
        rollout_id: str | None = None,
        mode: Mode | str = Mode.TRAIN,
        tag: str | None = None,
        seed: int | None = None,
        group_id: str | None = None,
        priority: int = 0,
        config: RolloutConfig | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Rollout:
        self._check_writable()
        await self._check_resources(config)
        request = new_request(
            input,
            rollout_id=rollout_id,
            mode=mode,
            tag=tag,
            seed=seed,
            group_id=group_id,
            priority=priority,
            config=config,
            metadata=metadata,
        )
        return (await self._enqueue((new_rollout(request),)))[0]

    async def enqueue_many_rollouts(self, requests: Sequence[RolloutRequest]) -> tuple[Rollout, ...]:
        self._check_writable()
        new = tuple(new_rollout(request) for request in several("requests", requests, "rollouts to enqueue"))
        ids = {rollout.rollout_id for rollout in new}
        if len(ids) < len(new):
            raise InvalidInput("the same rollout_id is given twice among the rollouts to enqueue; nothing was enqueued")
        for config in {one.request.config for one in new}:
            await self._check_resources(config)
        return await self._enqueue(new) if new else ()

    async def dequeue_rollout(
        self,
        *,
        worker_id: str | int,
        wait: float = 0.0,
        tags: Collection[str] | None = None,
        mode: Mode | str | None = None,
        request_id: str | None = None,
    ) -> AttemptedRollout | None:
        self._check_writable()
        claim = claim_of(1, worker_id, tags, mode, request_id)
        claimed = await self._look_until(Topic.QUEUE, partial(self._claim, claim), wait)
        return claimed[0] if claimed else None

    async def dequeue_many_rollouts(
        self,
        limit: int,
        *,
        worker_id: str | int,
        wait: float = 0.0,
        tags: Collection[str] | None = None,
        mode: Mode | str | None = None,
        request_id: str | None = None,
        isolated: bool = False,
    ) -> tuple[AttemptedRollout, ...]:
        self._check_writable()
        claim = claim_of(limit, worker_id, tags, mode, request_id, isolated=isolated)
        return await self._look_until(Topic.QUEUE, partial(self._claim, claim), wait)

    async def start_rollout(
        self, input: Any, *, worker_id: str | int, config: RolloutConfig | None = None, **request: Any
    ) -> AttemptedRollout:
        self._check_writable()
        await self._check_resources(config)
        new = new_rollout(new_request(input, config=config, **request))
        return await self._start(new, worker_name(worker_id))

    async def update_rollout(
        self,
        rollout_id: str,
        *,
        input: Any = UNSET,
        mode: Mode | str | UnsetType = UNSET,
        tag: str | UnsetType | None = UNSET,
        seed: int | UnsetType | None = UNSET,
        priority: int | UnsetType = UNSET,
        config: RolloutConfig | UnsetType = UNSET,
        metadata: Mapping[str, Any] | UnsetType = UNSET,
    ) -> Rollout:
        self._check_writable()
        change = new_change(
            rollout_id,
            input=input,
            mode=mode,
            tag=tag,
            seed=seed,
            priority=priority,
            config=config,
            metadata=metadata,
        )
        await self._check_resources(change.fields.get("config"))
        return await self._change(change)

    async def update_attempt(
        self,
        rollout_id: str,
        attempt_id: str,
        *,
        status: AttemptStatus | str | None = None,
        worker_id: str | int | None = None,
        reward: float | None = None,
        error: Failure | None = None,
        metadata: Mapping[str, Any] | None = None,
        events: Sequence[Event] = (),
        first_index: int | None = None,
        account: Account | None = None,
    ) -> Attempt:
        self._check_writable()
        attempt = await self._report(
            new_report(
                rollout_id,
                attempt_id,
                status=status,
                worker_id=worker_id,
                reward=reward,
                error=error,
                events=events,
                first_index=first_index,
                account=account,
                metadata=metadata,
            )
        )
        if attempt.ended_at is not None:
            self._reported.add(attempt)
        return attempt

    async def append_events(
        self, rollout_id: str, attempt_id: str, events: Sequence[Event], *, first_index: int | None = None
    ) -> int:
        self._check_writable()
        return await self._append(
            new_report(
                rollout_id, attempt_id, status=None, reward=None, error=None, events=events, first_index=first_index
            )
        )

    async def heartbeat(
        self,
        worker_id: str | int,
        attempt_ids: Collection[str] = (),
        *,
        wait: float = 0.0,
        stats: Mapping[str, Any] | None = None,
    ) -> tuple[LostLease, ...]:
        self._check_writable()
        name = worker_name(worker_id)
        check_seconds("wait", wait)
        if stats is not None:
            checked_ids("attempt_ids", attempt_ids)
            note = WorkerNote(worker_id=name, stats=small_record("stats of a worker", stats))
            await self._note_workers((note,))

        async def renew() -> tuple[LostLease, ...]:
            lost = await self._renew(name, frozenset(checked_ids("attempt_ids", attempt_ids)))
            return tuple(lease for lease in lost if lease.attempt_id in attempt_ids)

        if wait <= 0:
            return await renew()
        # A ring that was lost with its process is made up for by the next heartbeat, so this needs no net.
        return await self._watch(Topic.REVOKED, renew, self._clock.monotonic() + wait, net_seconds=math.inf)

    async def revoke_leases(self, worker_id: str | int, *, reason: str, how: Revoked = Revoked.LOST) -> tuple[str, ...]:
        self._check_writable()
        check_text("reason", reason)
        failure = Failure(boundary=Boundary.WORKER, kind="WorkerDied", message=reason)
        revocation = Revocation(worker_id=worker_name(worker_id), failure=failure, how=member(Revoked, how))
        return await self._revoke(revocation)

    async def cancel_rollouts(self, rollout_ids: Sequence[str]) -> tuple[str, ...]:
        self._check_writable()
        return await self._cancel(checked_ids("rollout_ids", rollout_ids))

    async def get_rollout_by_id(self, rollout_id: str) -> Rollout | None:
        check_id("rollout_id", rollout_id)
        found = await self._query_rollouts(RolloutQuery(rollout_ids=(rollout_id,)))
        return found[0] if found else None

    async def get_latest_attempt(self, rollout_id: str) -> Attempt | None:
        attempts = await self.query_attempts(rollout_id)
        return attempts[-1] if attempts else None

    async def query_rollouts(
        self,
        *,
        status: RolloutStatus | str | None = None,
        status_in: Collection[RolloutStatus | str] | None = None,
        mode: Mode | str | None = None,
        tag: str | None = None,
        group_id: str | None = None,
        rollout_ids: Sequence[str] | None = None,
        sort_by: SortKey = "enqueued_at",
        descending: bool = False,
        limit: int = -1,
        offset: int = 0,
    ) -> Page[Rollout]:
        query = RolloutQuery(
            statuses=members("status_in", RolloutStatus, status_in if status is None else (status,)),
            mode=None if mode is None else member(Mode, mode),
            tag=tag,
            group_id=group_id,
            rollout_ids=None if rollout_ids is None else checked_ids("rollout_ids", rollout_ids),
            sort_by=sort_by,
            descending=descending,
            limit=limit,
            offset=offset,
        )
        return await self._query_rollouts(query)

    async def query_attempts(self, rollout_id: str, *, limit: int = -1, offset: int = 0) -> Page[Attempt]:
        check_id("rollout_id", rollout_id)
        return _window(await self._query_attempts(rollout_id), limit, offset)

    async def query_workers(
        self, *, status: WorkerStatus | str | None = None, limit: int = -1, offset: int = 0
    ) -> Page[Worker]:
        wanted = None if status is None else member(WorkerStatus, status)
        await self._note_reported()
        workers = await self._query_workers()
        return _window([worker for worker in workers if wanted in (None, worker.status)], limit, offset)

    async def query_events(
        self,
        rollout_id: str,
        *,
        attempt_id: str | None = None,
        kind: EventKind | str | None = None,
        limit: int = -1,
        offset: int = 0,
    ) -> Page[RecordedEvent]:
        return await self._query_events(
            EventQuery(
                rollout_id=rollout_id,
                attempt_id=attempt_id,
                kind=None if kind is None else member(EventKind, kind),
                limit=limit,
                offset=offset,
            )
        )

    async def wait_for_rollouts(self, rollout_ids: Sequence[str], timeout: float | None = None) -> tuple[Rollout, ...]:
        if timeout is not None:
            check_seconds("timeout", timeout)
        checked_ids("rollout_ids", rollout_ids)
        deadline = None if timeout is None else self._clock.monotonic() + timeout
        cursor = await self._feed_end()
        ended = {rollout.rollout_id: rollout for rollout in await self._known(rollout_ids) if rollout.status.is_final}
        pending = set(rollout_ids) - set(ended)
        while pending and (deadline is None or self._clock.monotonic() < deadline):
            wait = self._bell.net_seconds if deadline is None else deadline - self._clock.monotonic()
            finished = await self.finished_after(cursor, limit=FEED_PAGE, wait=wait)
            cursor = finished.cursor
            ended |= {rollout.rollout_id: rollout for rollout in finished.items if rollout.rollout_id in pending}
            pending -= set(ended)
        return tuple(ended[rollout_id] for rollout_id in dict.fromkeys(rollout_ids) if rollout_id in ended)

    async def finished_after(self, cursor: int = 0, *, limit: int = 100, wait: float = 0.0) -> Finished:
        check_feed(cursor, limit)
        found = await self._look_until(Topic.ENDED, lambda: self._finished(cursor, limit), wait)
        return Finished(items=tuple(rollout for _, rollout in found), cursor=found[-1][0] if found else cursor)

    async def put_resources(self, resources: Mapping[str, Any], *, resources_id: str = DEFAULT_RESOURCES) -> Resources:
        self._check_writable()
        check_id("resources_id", resources_id)
        if not isinstance(resources, Mapping):
            raise InvalidInput(f"resources must be a mapping of names to values, not {type(resources).__name__}")
        data = wire.encode(dict(resources))
        if len(data) > MAX_RESOURCES_BYTES:
            raise InvalidInput(
                f"the resources have {len(data)} bytes, and may have {MAX_RESOURCES_BYTES}; publish where large things "
                "are, such as a path or an address"
            )
        return await self._put_resources(resources_id, data)

    async def get_latest_resources(
        self, *, resources_id: str = DEFAULT_RESOURCES, after: int = 0, wait: float = 0.0
    ) -> Resources | None:
        check_id("resources_id", resources_id)
        check_integer("after", after, bits=64, least=0)

        async def look() -> tuple[Resources, ...]:
            latest = await self._latest_resources(resources_id)
            return () if latest is None or latest.version <= after else (latest,)

        found = await self._look_until(Topic.PUBLISHED, look, wait)
        return found[0] if found else None

    async def get_resources(self, version: int) -> Resources | None:
        found = await self._query_resources(ResourcesQuery(version=version))
        return found[0] if found else None

    async def query_resources(
        self, *, resources_id: str | None = None, descending: bool = False, limit: int = -1, offset: int = 0
    ) -> Page[Resources]:
        query = ResourcesQuery(resources_id=resources_id, descending=descending, limit=limit, offset=offset)
        return await self._query_resources(query)

    async def statistics(self) -> Statistics:
        cursor = await self._feed_end()
        return replace(await self._statistics(), cursor=cursor)

    async def _check_resources(self, config: RolloutConfig | None) -> None:
        """Refuse a version that was not published; those that were never go."""
        version = getattr(config, "resources_version", None)
        if version is not None and await self.get_resources(version) is None:
            raise InvalidInput(
                f"resources_version is {version}, which was not published in this store; query_resources lists what was"
            )

    async def _note_reported(self) -> None:
        """Count what was reported here since the last time: with every sweep, and before anybody looks."""
        if not self._reported or self._is_read_only:
            return
        reported, self._reported = self._reported, Reported(self._reported.counted())
        try:
            await self._note_workers(reported.notes())
        except StoreError:  # counts are not worth an error; next time
            self._reported = reported.followed_by(self._reported)

    async def _known(self, rollout_ids: Sequence[str]) -> tuple[Rollout, ...]:
        """These rollouts; `UnknownId` if one is not there, since nothing would ever end it."""
        found = (await self.query_rollouts(rollout_ids=rollout_ids)).items
        missing = set(rollout_ids) - {rollout.rollout_id for rollout in found}
        if missing:
            raise UnknownId("rollout", min(missing))
        return found

    async def _sweep(self) -> None:
        looking, is_said = RepeatedCall(self.outage), False
        while True:
            # Counted from before the look: a lease may be granted, and time may pass, while it is under way.
            next_look = self._clock.monotonic() + SWEEP_SECONDS
            try:
                with looking:
                    next_expiry = await self._expire()
                    await self._add_up()
                    await self._note_reported()
            except StoreUnavailable:
                pass  # which the outage says
            except StoreError as exc:
                if not is_said:
                    _log.warning("cannot take expired leases away, will try again: %s", exc)
                is_said = True
            else:
                is_said = False
                next_look = min(next_look, math.inf if next_expiry is None else next_expiry)
            await sleep(self._clock, next_look - self._clock.monotonic())


def _window(items: Sequence[R], limit: int, offset: int) -> Page[R]:
    check_window(limit, offset)
    end = None if limit < 0 else offset + limit
    return Page(items=tuple(items[offset:end]), total=len(items), limit=limit, offset=offset)
