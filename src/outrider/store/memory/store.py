"""The store in this process's memory: for tests and small runs that nobody resumes. What it holds ends with it."""

from collections.abc import Callable, Mapping
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
from outrider.store.bell import Bell
from outrider.store.leased import LeasedStore
from outrider.store.ledger_steps import GroupQuery, LedgerStep
from outrider.store.machine_steps import MachineQuery, MachineStep, MoveQuery
from outrider.store.memory.machines import MemoryMachines
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
from outrider.store.usable import Usable

R = TypeVar("R")


class MemoryStore(LeasedStore):
    """The engine without a database. A step never pauses, so a caller that is cancelled has no claim under way."""

    def __init__(self, url: StoreUrl, clock: Clock) -> None:
        super().__init__(url, clock, Bell(clock))
        self._usable: Usable
        self._steps = MemoryMachines(clock)

    async def _connect(self) -> None:
        self._usable = Usable()

    async def _disconnect(self) -> None:
        self._usable.closed = True
        self._steps = MemoryMachines(self._clock)

    def _do(self, operation: Callable[[MemoryMachines], R]) -> R:
        self._usable.check()
        steps = self._steps
        result = operation(steps)
        if steps.topics:
            for topic in sorted(steps.topics):
                self._bell.ring_here(topic)
            steps.topics.clear()
        return result

    async def _enqueue(self, new: tuple[NewRollout, ...]) -> tuple[Rollout, ...]:
        return self._do(lambda steps: steps.enqueue(new))

    async def _claim(self, claim: Claim) -> tuple[AttemptedRollout, ...]:
        return self._do(lambda steps: steps.claim(claim))

    async def _start(self, new: NewRollout, worker_id: str) -> AttemptedRollout:
        return self._do(lambda steps: steps.start(new, worker_id))

    async def _report(self, report: Report) -> Attempt:
        return self._do(lambda steps: steps.report(report))

    async def _append(self, report: Report) -> int:
        return self._do(lambda steps: steps.append(report))

    async def _renew(self, worker_id: str, attempt_ids: frozenset[str]) -> tuple[LostLease, ...]:
        return self._do(lambda steps: steps.renew(worker_id, attempt_ids))

    async def _revoke(self, revocation: Revocation) -> tuple[str, ...]:
        return self._do(lambda steps: steps.revoke(revocation))

    async def _cancel(self, rollout_ids: tuple[str, ...]) -> tuple[str, ...]:
        return self._do(lambda steps: steps.cancel(rollout_ids))

    async def _expire(self) -> float | None:
        return self._do(MemoryMachines.expire)

    async def _add_up(self) -> None:
        """The counts are always up to date."""

    async def _finished(self, cursor: int, limit: int) -> tuple[tuple[int, Rollout], ...]:
        return self._do(lambda steps: steps.finished(cursor, limit))

    async def _feed_end(self) -> int:
        return self._do(MemoryMachines.feed_end)

    async def _query_rollouts(self, query: RolloutQuery) -> Page[Rollout]:
        return self._do(lambda steps: steps.rollouts(query))

    async def _query_attempts(self, rollout_id: str) -> tuple[Attempt, ...]:
        return self._do(lambda steps: steps.attempts(rollout_id))

    async def _query_workers(self) -> tuple[Worker, ...]:
        return self._do(MemoryMachines.workers)

    async def _query_events(self, query: EventQuery) -> Page[RecordedEvent]:
        return self._do(lambda steps: steps.events(query))

    async def _put_resources(self, resources_id: str, data: bytes) -> Resources:
        return self._do(lambda steps: steps.put_resources(resources_id, data))

    async def _latest_resources(self, resources_id: str) -> Resources | None:
        return self._do(lambda steps: steps.latest_resources(resources_id))

    async def _query_resources(self, query: ResourcesQuery) -> Page[Resources]:
        return self._do(lambda steps: steps.resources(query))

    async def _change(self, change: Change) -> Rollout:
        return self._do(lambda steps: steps.change(change))

    async def _note_workers(self, notes: tuple[WorkerNote, ...]) -> None:
        self._do(lambda steps: steps.note_workers(notes))

    async def _statistics(self) -> Statistics:
        return self._do(MemoryMachines.statistics)

    async def _open_ledger(self, name: str, settings: bytes) -> Ledger:
        return self._do(lambda steps: steps.open_ledger(name, settings))

    async def _ledgers(self) -> tuple[Ledger, ...]:
        return self._do(MemoryMachines.ledgers)

    async def _write_ledger(self, step: LedgerStep) -> None:
        return self._do(lambda steps: steps.write_ledger(step))

    async def _query_groups(self, query: GroupQuery) -> Page[GroupEntry]:
        return self._do(lambda steps: steps.groups(query))

    async def _count_groups(self, ledger: str) -> Mapping[tuple[str, GroupState], int]:
        return self._do(lambda steps: steps.count_groups(ledger))

    async def _ask(self, asks: tuple[tuple[str, str], ...]) -> None:
        return self._do(lambda steps: steps.ask(asks))

    async def _asks_after(self, ledger: str, cursor: int, limit: int) -> tuple[tuple[int, Ask], ...]:
        return self._do(lambda steps: steps.asks_after(ledger, cursor, limit))

    async def _grants(self, attempt_ids: frozenset[str]) -> Mapping[str, int]:
        return self._do(lambda steps: steps.grants(attempt_ids))

    async def _leave_account(self, rollout_id: str, attempt_id: str, account: Account) -> None:
        return self._do(lambda steps: steps.leave_account(rollout_id, attempt_id, account))

    async def _query_accounts(self, rollout_ids: tuple[str, ...]) -> tuple[AttemptAccount, ...]:
        return self._do(lambda steps: steps.accounts(rollout_ids))

    async def _late_accounts(self, ledger: str, limit: int) -> tuple[AttemptAccount, ...]:
        return self._do(lambda steps: steps.late_accounts(ledger, limit))

    async def _tally(self, ledger: str) -> Tally:
        return self._do(lambda steps: steps.tally(ledger))

    async def _query_progress(self, ledger: str) -> tuple[MemberProgress, ...]:
        return self._do(lambda steps: steps.progress(ledger))

    async def _open_pool(self, name: str) -> int:
        return self._do(lambda steps: steps.open_pool(name))

    async def _pools(self) -> tuple[PoolRecord, ...]:
        return self._do(MemoryMachines.pools)

    async def _write_machines(self, step: MachineStep) -> None:
        return self._do(lambda steps: steps.write_machines(step))

    async def _query_machines(self, query: MachineQuery) -> tuple[MachineRecord, ...]:
        return self._do(lambda steps: steps.machines(query))

    async def _query_moves(self, query: MoveQuery) -> Page[MachineMove]:
        return self._do(lambda steps: steps.machine_moves(query))
