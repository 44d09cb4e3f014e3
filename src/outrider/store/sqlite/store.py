"""The embedded store: one SQLite file, any number of processes on one machine.

Writes go through one thread a process with group commit, reads through another; `FifoBell` wakes the other processes.
What is acknowledged survives the death of any process (`synchronous=NORMAL`); `?durability=full` in the URL makes it
survive the loss of power too, for a flush to disk at every commit.
"""

import sqlite3
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
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
from outrider.store.bell import Topic
from outrider.store.durability import Durability
from outrider.store.fifo_bell import FifoBell
from outrider.store.jumps import HostClock
from outrider.store.leased import LeasedStore
from outrider.store.ledger_steps import GroupQuery, LedgerStep
from outrider.store.machine_steps import MachineQuery, MachineStep, MoveQuery
from outrider.store.orphans import Orphans
from outrider.store.protocol import Resources, Statistics
from outrider.store.sqlite import ledger_reads, machines, reads
from outrider.store.sqlite.disk import Disk
from outrider.store.sqlite.file import connect, connect_to_read
from outrider.store.sqlite.lock_signal import LockSignal
from outrider.store.sqlite.machines import SqliteMachines
from outrider.store.sqlite.reads import SqliteReads
from outrider.store.sqlite.thread import SqliteThread
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

R = TypeVar("R")

BUSY_SECONDS = 60.0
QUICK_BYTES = 1 << 16
"""The largest input that is written on the event loop."""


class SqliteStore(LeasedStore):
    """The embedded engine."""

    def __init__(self, url: StoreUrl, path: Path, *, clock: Clock, durability: Durability, create: bool) -> None:
        bells = path.with_name(path.name + "-bells")
        self._fifo_bell = FifoBell(clock, bells)
        self._lock_signal = LockSignal(bells / "lock")
        super().__init__(url, clock, self._fifo_bell)
        self._host_clock = HostClock(clock)
        self._path = path
        self._durability = durability
        self._create = create
        self._disk: Disk
        self._writer: SqliteThread
        self._reader: SqliteThread
        self._threads: list[SqliteThread]
        self._orphans: Orphans

    async def _connect(self) -> None:
        self._disk = Disk(self._path)
        self._threads = [] if self._is_read_only else [await self._start_writer()]
        self._reader = SqliteThread(
            f"read {self._path.name}",
            open_desk=self._open_reader,
            disk=self._disk,
            busy_seconds=BUSY_SECONDS,
        )
        try:
            await self._reader.start()
        except BaseException:
            await self._disconnect()
            raise
        self._threads.append(self._reader)

    async def _start_writer(self) -> SqliteThread:
        self._writer = SqliteThread(
            f"write {self._path.name}",
            open_desk=self._open_writer,
            disk=self._disk,
            busy_seconds=BUSY_SECONDS,
            lock_signal=self._lock_signal,
            quick=() if self._durability is Durability.FULL else (Claim, Report, NewRollout),
        )
        await self._writer.start()
        self._orphans = Orphans(self._writer.submit)
        return self._writer

    def _open_writer(self) -> SqliteMachines:
        connection = connect(self._path, synchronous=self._durability, create=self._create, migrate=True)
        return SqliteMachines(connection, self._clock, self._ring, self._host_clock)

    def _open_reader(self) -> SqliteReads:
        if self._is_read_only:
            return SqliteReads(connect_to_read(self._path, synchronous=self._durability))
        connection = connect(self._path, synchronous=self._durability, create=False, migrate=False, options="mode=ro")
        return SqliteReads(connection)

    async def _disconnect(self) -> None:
        # Whoever closes last copies the write-ahead log to the database: the writer, unless the disk has failed.
        last_first = self._threads if self._disk.damage is None else reversed(self._threads)
        async with AsyncExitStack() as stack:
            for thread in last_first:
                stack.push_async_callback(thread.stop)
        self._lock_signal.close()

    def _ring(self, topics: frozenset[Topic]) -> Callable[[], None]:
        """Wake the other processes from the writer's thread; waking this one is left to its event loop."""
        self._fifo_bell.ring_others(topics)
        return partial(self._ring_here, topics)

    def _ring_here(self, topics: frozenset[Topic]) -> None:
        for topic in topics:
            self._bell.ring_here(topic)

    async def _enqueue(self, new: tuple[NewRollout, ...]) -> tuple[Rollout, ...]:
        if len(new) == 1 and len(new[0].input) <= QUICK_BYTES:
            enqueued: tuple[Rollout, ...] = await self._writer.submit(new[0])
            return enqueued
        return await self._write(lambda steps: steps.enqueue(new))

    def _claim(self, claim: Claim) -> Awaitable[tuple[AttemptedRollout, ...]]:
        return self._orphans.awaited(self._writer.submit(claim, orphaned=self._orphans.hand_back))

    async def _start(self, new: NewRollout, worker_id: str) -> AttemptedRollout:
        return await self._write(lambda steps: steps.start(new, worker_id))

    def _report(self, report: Report) -> Awaitable[Attempt]:
        return self._writer.submit(report)

    async def _append(self, report: Report) -> int:
        return await self._write(lambda steps: steps.append(report))

    async def _renew(self, worker_id: str, attempt_ids: frozenset[str]) -> tuple[LostLease, ...]:
        return await self._write(lambda steps: steps.renew(worker_id, attempt_ids))

    async def _revoke(self, revocation: Revocation) -> tuple[str, ...]:
        return await self._write(lambda steps: steps.revoke(revocation))

    async def _cancel(self, rollout_ids: tuple[str, ...]) -> tuple[str, ...]:
        return await self._write(lambda steps: steps.cancel(rollout_ids))

    async def _put_resources(self, resources_id: str, data: bytes) -> Resources:
        return await self._write(lambda steps: steps.put_resources(resources_id, data))

    async def _change(self, change: Change) -> Rollout:
        return await self._write(lambda steps: steps.change(change))

    async def _note_workers(self, notes: tuple[WorkerNote, ...]) -> None:
        await self._write(lambda steps: steps.note_workers(notes))

    async def _expire(self) -> float | None:
        next_expiry = await self._read(reads.next_expiry)
        if next_expiry is not None and (next_expiry <= self._clock.time() or self._host_clock.has_jumped):
            await self._write(SqliteMachines.expire)
            next_expiry = await self._read(reads.next_expiry)
        return None if next_expiry is None else self._host_clock.monotonic_of(next_expiry)

    async def _add_up(self) -> None:
        if not await self._read(reads.is_tallied):
            while not await self._write(SqliteMachines.tally):
                pass

    async def _finished(self, cursor: int, limit: int) -> tuple[tuple[int, Rollout], ...]:
        return await self._read(lambda db: reads.finished(db, cursor, limit))

    async def _feed_end(self) -> int:
        return await self._read(reads.feed_end)

    async def _query_rollouts(self, query: RolloutQuery) -> Page[Rollout]:
        return await self._read(lambda db: reads.rollouts(db, query))

    async def _query_attempts(self, rollout_id: str) -> tuple[Attempt, ...]:
        return await self._read(lambda db: reads.attempts(db, rollout_id))

    async def _query_workers(self) -> tuple[Worker, ...]:
        return await self._read(lambda db: reads.workers(db, self._clock.time()))

    async def _query_events(self, query: EventQuery) -> Page[RecordedEvent]:
        return await self._read(lambda db: reads.events(db, query))

    async def _latest_resources(self, resources_id: str) -> Resources | None:
        return await self._read(lambda db: reads.latest_resources(db, resources_id))

    async def _query_resources(self, query: ResourcesQuery) -> Page[Resources]:
        return await self._read(lambda db: reads.resources(db, query))

    async def _statistics(self) -> Statistics:
        return await self._read(lambda db: reads.statistics(db, self._clock.time()))

    async def _open_ledger(self, name: str, settings: bytes) -> Ledger:
        return await self._write(lambda steps: steps.open_ledger(name, settings))

    async def _write_ledger(self, step: LedgerStep) -> None:
        await self._write(lambda steps: steps.write_ledger(step))

    async def _ask(self, asks: tuple[tuple[str, str], ...]) -> None:
        await self._write(lambda steps: steps.ask(asks))

    async def _leave_account(self, rollout_id: str, attempt_id: str, account: Account) -> None:
        await self._write(lambda steps: steps.leave_account(rollout_id, attempt_id, account))

    async def _ledgers(self) -> tuple[Ledger, ...]:
        return await self._read(ledger_reads.ledgers)

    async def _query_groups(self, query: GroupQuery) -> Page[GroupEntry]:
        return await self._read(lambda db: ledger_reads.groups(db, query))

    async def _count_groups(self, ledger: str) -> Mapping[tuple[str, GroupState], int]:
        return await self._read(lambda db: ledger_reads.count_groups(db, ledger))

    async def _asks_after(self, ledger: str, cursor: int, limit: int) -> tuple[tuple[int, Ask], ...]:
        return await self._read(lambda db: ledger_reads.asks_after(db, ledger, cursor, limit))

    async def _grants(self, attempt_ids: frozenset[str]) -> Mapping[str, int]:
        return await self._read(lambda db: ledger_reads.grants(db, attempt_ids))

    async def _query_accounts(self, rollout_ids: tuple[str, ...]) -> tuple[AttemptAccount, ...]:
        return await self._read(lambda db: ledger_reads.accounts(db, rollout_ids))

    async def _late_accounts(self, ledger: str, limit: int) -> tuple[AttemptAccount, ...]:
        return await self._read(lambda db: ledger_reads.late_accounts(db, ledger, limit))

    async def _tally(self, ledger: str) -> Tally:
        return await self._read(lambda db: ledger_reads.tally(db, ledger))

    async def _query_progress(self, ledger: str) -> tuple[MemberProgress, ...]:
        return await self._read(lambda db: ledger_reads.progress(db, ledger))

    async def _open_pool(self, name: str) -> int:
        return await self._write(lambda steps: steps.open_pool(name))

    async def _write_machines(self, step: MachineStep) -> None:
        await self._write(lambda steps: steps.write_machines(step))

    async def _pools(self) -> tuple[PoolRecord, ...]:
        return await self._read(machines.pools)

    async def _query_machines(self, query: MachineQuery) -> tuple[MachineRecord, ...]:
        return await self._read(lambda db: machines.machines(db, query))

    async def _query_moves(self, query: MoveQuery) -> Page[MachineMove]:
        return await self._read(lambda db: machines.machine_moves(db, query))

    async def _write(self, step: Callable[[SqliteMachines], R]) -> R:
        result: R = await self._writer.submit(step)
        return result

    async def _read(self, read: Callable[[sqlite3.Connection], R]) -> R:
        result: R = await self._reader.submit(read)
        return result
