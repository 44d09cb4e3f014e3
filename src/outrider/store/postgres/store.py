"""The shared store: a schema in a PostgreSQL database, for any number of processes on any number of machines.

Calls made at the same time in one process share round trips (`batcher`); LISTEN and NOTIFY wake the others.
What is acknowledged is committed, so it survives whatever the server survives; `?durability=full` in the URL asks of it
that commits survive the loss of power.
"""

import asyncio
from collections.abc import Awaitable, Mapping
from typing import TypeVar

from outrider.core.account import Account, AttemptAccount, Tally
from outrider.core.attempt import Attempt, LostLease
from outrider.core.clock import Clock
from outrider.core.event import RecordedEvent
from outrider.core.ledger import Ask, GroupEntry, GroupState, Ledger, MemberProgress
from outrider.core.machine import MachineMove, MachineRecord, PoolRecord
from outrider.core.page import Page
from outrider.core.rollout import AttemptedRollout, Rollout
from outrider.core.worker import Worker
from outrider.store.held import Held
from outrider.store.leased import SWEEP_SECONDS, LeasedStore
from outrider.store.ledger_steps import GroupQuery, LedgerStep
from outrider.store.machine_steps import MachineQuery, MachineStep, MoveQuery
from outrider.store.orphans import Orphans
from outrider.store.postgres import ledger_reads, machines, reads
from outrider.store.postgres.address import READ_PLANS, STEP_PLANS, address_of
from outrider.store.postgres.batcher import Batcher
from outrider.store.postgres.bell import PostgresBell
from outrider.store.postgres.claims import CLAIMED_AT_ONCE, Claims, claim_key
from outrider.store.postgres.clock import DatabaseClock
from outrider.store.postgres.connections import Connections
from outrider.store.postgres.driver import Link
from outrider.store.postgres.ledgers import ASKED_AT_ONCE, PostgresLedgers
from outrider.store.postgres.links import FIRST_PAUSE, RETRY_SECONDS, Links
from outrider.store.postgres.machines import PostgresMachines
from outrider.store.postgres.reports import Reported, Reports
from outrider.store.postgres.schema import migrate
from outrider.store.postgres.steps import ENQUEUED_AT_ONCE, PostgresSteps
from outrider.store.postgres.workers import Heartbeat, Workers
from outrider.store.protocol import Resources, Statistics
from outrider.store.steps import (
    Change,
    Claim,
    EventQuery,
    NewRollout,
    Report,
    ResourcesQuery,
    Revocation,
    RolloutQuery,
    WorkerNote,
)
from outrider.store.url import StoreUrl

A = TypeVar("A")
R = TypeVar("R")

REPORTS_AT_ONCE = 256


class PostgresStore(LeasedStore):
    """The engine for many machines."""

    def __init__(self, url: StoreUrl, clock: Clock, *, create: bool) -> None:
        self._create = create
        self._address = address_of(url)
        self._postgres_bell = PostgresBell(
            clock, self._address.connect, self._address.channel, self._address.folder_on_this_machine
        )
        super().__init__(url, clock, self._postgres_bell)
        self._database_clock = DatabaseClock(clock)
        self._is_migrated = False
        self._has_swept = False

    async def _connect(self) -> None:
        shown = self._address.shown
        self._connections = Connections(self._new_link, size=self._address.n_connections)
        self._links = Links(self._connections, STEP_PLANS, shown=shown)
        self._read_links = Links(self._connections, READ_PLANS, shown=shown)
        held = Held()
        clock, bell = self._database_clock, self._postgres_bell
        self._workers = Workers(self._links, clock)
        self._steps = PostgresSteps(self._links, clock, bell, self._workers, held)
        self._enqueues = Batcher[tuple[NewRollout, ...], tuple[Rollout, ...]](
            self._steps.enqueue, limit=ENQUEUED_AT_ONCE, weight=len
        )
        self._reports = Batcher[Report, Reported](
            Reports(self._links, clock, bell, self._workers, held).carry_out,
            limit=REPORTS_AT_ONCE,
            subject=lambda report: report.rollout_id,
        )
        self._orphans = Orphans(self._reports.submit)
        self._ledger_steps = PostgresLedgers(self._links, clock, bell)
        self._machine_steps = PostgresMachines(self._links, clock)
        self._asks = Batcher[tuple[tuple[str, str], ...], None](self._ledger_steps.ask, limit=ASKED_AT_ONCE, weight=len)
        self._claims = Batcher[Claim, tuple[AttemptedRollout, ...]](
            Claims(self._links, clock, bell, self._workers, held).carry_out,
            limit=CLAIMED_AT_ONCE,
            weight=lambda claim: claim.limit,
            key=claim_key,
            orphaned=self._orphans.hand_back,
        )
        self._heartbeats = Batcher[Heartbeat, tuple[LostLease, ...]](self._workers.renew, limit=REPORTS_AT_ONCE)
        await self._links.open()

    async def _new_link(self) -> Link:
        link = await self._address.connect()
        try:
            if not self._is_migrated:
                await migrate(link, self._address, create=self._create and not self._is_read_only)
                self._is_migrated = True
            await self._database_clock.look(link)
        except BaseException:
            link.terminate()
            raise
        return link

    async def _disconnect(self) -> None:
        for links in (self._links, self._read_links):
            links.hurry()
        for batcher in (self._enqueues, self._claims, self._heartbeats, self._asks, self._reports):
            await batcher.drain(RETRY_SECONDS)
        await self._postgres_bell.stop()
        self._links.close()
        self._read_links.close()
        await self._connections.close()

    def _submit(self, batcher: Batcher[A, R], call: A) -> "asyncio.Future[R]":
        self._links.check()
        return batcher.submit(call)

    async def _enqueue(self, new: tuple[NewRollout, ...]) -> tuple[Rollout, ...]:
        return await self._submit(self._enqueues, new)

    def _claim(self, claim: Claim) -> Awaitable[tuple[AttemptedRollout, ...]]:
        return self._orphans.awaited(self._submit(self._claims, claim))

    async def _start(self, new: NewRollout, worker_id: str) -> AttemptedRollout:
        return await self._steps.start(new, worker_id)

    async def _report(self, report: Report) -> Attempt:
        return (await self._submit(self._reports, report))[0]

    async def _append(self, report: Report) -> int:
        return (await self._submit(self._reports, report))[1]

    async def _renew(self, worker_id: str, attempt_ids: frozenset[str]) -> tuple[LostLease, ...]:
        return await self._submit(self._heartbeats, (worker_id, attempt_ids))

    async def _revoke(self, revocation: Revocation) -> tuple[str, ...]:
        return await self._steps.revoke(revocation)

    async def _cancel(self, rollout_ids: tuple[str, ...]) -> tuple[str, ...]:
        return await self._steps.cancel(rollout_ids)

    async def _put_resources(self, resources_id: str, data: bytes) -> Resources:
        return await self._steps.put_resources(resources_id, data)

    async def _change(self, change: Change) -> Rollout:
        return await self._steps.change(change)

    async def _note_workers(self, notes: tuple[WorkerNote, ...]) -> None:
        await self._workers.note(notes)

    async def _expire(self) -> float | None:
        """When the next lease is due, after none is due now."""
        clock, pause = self._database_clock, FIRST_PAUSE
        if not self._has_swept:
            await self._links.run(lambda link, _: clock.shorten_leases(link))
            self._has_swept = True
        while True:
            look = await self._links.run(lambda link, _: clock.look(link))
            if (jump := clock.jump_before(look)) is not None:
                await clock.follow(self._links, jump)
            elif look.next_expiry is None:
                return None
            elif look.next_expiry > look.there:
                return look.monotonic_of(look.next_expiry)
            elif await self._steps.expire(look.there) == 0:
                # Somebody else is just moving or renewing what is due, and a renewal may leave it due.
                await asyncio.sleep(pause)
                pause = min(2 * pause, SWEEP_SECONDS)

    async def _add_up(self) -> None:
        await self._steps.tally()

    async def _finished(self, cursor: int, limit: int) -> tuple[tuple[int, Rollout], ...]:
        return await self._read_links.run(lambda link, _: reads.finished(link, cursor, limit))

    async def _feed_end(self) -> int:
        return await self._read_links.run(lambda link, _: reads.feed_end(link))

    async def _query_rollouts(self, query: RolloutQuery) -> Page[Rollout]:
        return await self._read_links.read(lambda link: reads.rollouts(link, query))

    async def _query_attempts(self, rollout_id: str) -> tuple[Attempt, ...]:
        return await self._read_links.read(lambda link: reads.attempts(link, rollout_id))

    async def _query_workers(self) -> tuple[Worker, ...]:
        now = self._database_clock.now()
        return await self._read_links.read(lambda link: reads.workers(link, now))

    async def _query_events(self, query: EventQuery) -> Page[RecordedEvent]:
        return await self._read_links.read(lambda link: reads.events(link, query))

    async def _latest_resources(self, resources_id: str) -> Resources | None:
        return await self._read_links.run(lambda link, _: reads.latest_resources(link, resources_id))

    async def _query_resources(self, query: ResourcesQuery) -> Page[Resources]:
        return await self._read_links.read(lambda link: reads.resources(link, query))

    async def _statistics(self) -> Statistics:
        now = self._database_clock.now()
        return await self._read_links.read(lambda link: reads.statistics(link, now))

    async def _open_ledger(self, name: str, settings: bytes) -> Ledger:
        return await self._ledger_steps.open(name, settings)

    async def _ledgers(self) -> tuple[Ledger, ...]:
        return await self._read_links.run(lambda link, _: ledger_reads.ledgers(link))

    async def _write_ledger(self, step: LedgerStep) -> None:
        await self._ledger_steps.write(step)

    async def _query_groups(self, query: GroupQuery) -> Page[GroupEntry]:
        return await self._read_links.read(lambda link: ledger_reads.groups(link, query))

    async def _count_groups(self, ledger: str) -> Mapping[tuple[str, GroupState], int]:
        return await self._read_links.run(lambda link, _: ledger_reads.group_counts(link, ledger))

    async def _ask(self, asks: tuple[tuple[str, str], ...]) -> None:
        await self._submit(self._asks, asks)

    async def _asks_after(self, ledger: str, cursor: int, limit: int) -> tuple[tuple[int, Ask], ...]:
        return await self._links.run(lambda link, _: ledger_reads.asks(link, ledger, cursor, limit))

    async def _grants(self, attempt_ids: frozenset[str]) -> Mapping[str, int]:
        return await self._links.run(lambda link, _: ledger_reads.grants(link, attempt_ids))

    async def _leave_account(self, rollout_id: str, attempt_id: str, account: Account) -> None:
        await self._ledger_steps.leave_account(rollout_id, attempt_id, account)

    async def _query_accounts(self, rollout_ids: tuple[str, ...]) -> tuple[AttemptAccount, ...]:
        return await self._links.run(lambda link, _: ledger_reads.accounts(link, rollout_ids))

    async def _late_accounts(self, ledger: str, limit: int) -> tuple[AttemptAccount, ...]:
        return await self._links.run(lambda link, _: ledger_reads.late_accounts(link, ledger, limit))

    async def _tally(self, ledger: str) -> Tally:
        return await self._read_links.run(lambda link, _: ledger_reads.tally(link, ledger))

    async def _query_progress(self, ledger: str) -> tuple[MemberProgress, ...]:
        return await self._links.run(lambda link, _: ledger_reads.progress(link, ledger))

    async def _open_pool(self, name: str) -> int:
        return await self._machine_steps.open(name)

    async def _pools(self) -> tuple[PoolRecord, ...]:
        return await self._read_links.run(lambda link, _: machines.pools(link))

    async def _write_machines(self, step: MachineStep) -> None:
        await self._machine_steps.write(step)

    async def _query_machines(self, query: MachineQuery) -> tuple[MachineRecord, ...]:
        return await self._read_links.run(lambda link, _: machines.machines(link, query))

    async def _query_moves(self, query: MoveQuery) -> Page[MachineMove]:
        return await self._read_links.read(lambda link: machines.moves(link, query))
