"""What a store engine brings: the atomic steps, checked input in, values out.

Each step is carried out whole or not at all, and rings the bell for what it changed once that is durable.
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Mapping

from outrider.core.account import Account, AttemptAccount, Tally
from outrider.core.attempt import Attempt, LostLease
from outrider.core.errors import StoreError
from outrider.core.event import RecordedEvent
from outrider.core.ledger import Ask, GroupEntry, GroupState, Ledger, MemberProgress
from outrider.core.machine import MachineMove, MachineRecord, PoolRecord
from outrider.core.page import Page
from outrider.core.rollout import AttemptedRollout, Rollout
from outrider.core.worker import Worker
from outrider.store.ledger_steps import GroupQuery, LedgerStep
from outrider.store.machine_steps import MachineQuery, MachineStep, MoveQuery
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


class Engine(ABC):
    """The steps that differ from database to database; `LeasedStore` builds the public methods on them."""

    _is_read_only = False

    def _check_writable(self) -> None:
        """Every public method that writes begins with this."""
        if self._is_read_only:
            raise StoreError("this store was opened for reading only; open it without read_only=True to write")

    @abstractmethod
    async def _connect(self) -> None: ...

    @abstractmethod
    async def _disconnect(self) -> None: ...

    @abstractmethod
    async def _enqueue(self, new: tuple[NewRollout, ...]) -> tuple[Rollout, ...]: ...

    @abstractmethod
    def _claim(self, claim: Claim) -> Awaitable[tuple[AttemptedRollout, ...]]: ...

    @abstractmethod
    async def _start(self, new: NewRollout, worker_id: str) -> AttemptedRollout: ...

    @abstractmethod
    def _report(self, report: Report) -> Awaitable[Attempt]: ...

    @abstractmethod
    async def _append(self, report: Report) -> int: ...

    @abstractmethod
    async def _renew(self, worker_id: str, attempt_ids: frozenset[str]) -> tuple[LostLease, ...]: ...

    @abstractmethod
    async def _revoke(self, revocation: Revocation) -> tuple[str, ...]: ...

    @abstractmethod
    async def _cancel(self, rollout_ids: tuple[str, ...]) -> tuple[str, ...]: ...

    @abstractmethod
    async def _expire(self) -> float | None:
        """Take away the leases that are due; when the next one is, if there is one, in monotonic time."""

    @abstractmethod
    async def _add_up(self) -> None:
        """Add what is new to the tallies of rollouts, if it has become much."""

    @abstractmethod
    async def _finished(self, cursor: int, limit: int) -> tuple[tuple[int, Rollout], ...]: ...

    @abstractmethod
    async def _feed_end(self) -> int: ...

    @abstractmethod
    async def _query_rollouts(self, query: RolloutQuery) -> Page[Rollout]: ...

    @abstractmethod
    async def _query_attempts(self, rollout_id: str) -> tuple[Attempt, ...]: ...

    @abstractmethod
    async def _query_workers(self) -> tuple[Worker, ...]: ...

    @abstractmethod
    async def _query_events(self, query: EventQuery) -> Page[RecordedEvent]: ...

    @abstractmethod
    async def _put_resources(self, resources_id: str, data: bytes) -> Resources: ...

    @abstractmethod
    async def _latest_resources(self, resources_id: str) -> Resources | None: ...

    @abstractmethod
    async def _query_resources(self, query: ResourcesQuery) -> Page[Resources]: ...

    @abstractmethod
    async def _change(self, change: Change) -> Rollout: ...

    @abstractmethod
    async def _note_workers(self, notes: tuple[WorkerNote, ...]) -> None: ...

    @abstractmethod
    async def _statistics(self) -> Statistics: ...

    @abstractmethod
    async def _open_ledger(self, name: str, settings: bytes) -> Ledger:
        """Make the ledger with these settings, or begin the next epoch of the one there is."""

    @abstractmethod
    async def _ledgers(self) -> tuple[Ledger, ...]: ...

    @abstractmethod
    async def _write_ledger(self, step: LedgerStep) -> None: ...

    @abstractmethod
    async def _query_groups(self, query: GroupQuery) -> Page[GroupEntry]: ...

    @abstractmethod
    async def _count_groups(self, ledger: str) -> Mapping[tuple[str, GroupState], int]: ...

    @abstractmethod
    async def _ask(self, asks: tuple[tuple[str, str], ...]) -> None: ...

    @abstractmethod
    async def _asks_after(self, ledger: str, cursor: int, limit: int) -> tuple[tuple[int, Ask], ...]: ...

    @abstractmethod
    async def _grants(self, attempt_ids: frozenset[str]) -> Mapping[str, int]: ...

    @abstractmethod
    async def _leave_account(self, rollout_id: str, attempt_id: str, account: Account) -> None: ...

    @abstractmethod
    async def _query_accounts(self, rollout_ids: tuple[str, ...]) -> tuple[AttemptAccount, ...]: ...

    @abstractmethod
    async def _late_accounts(self, ledger: str, limit: int) -> tuple[AttemptAccount, ...]: ...

    @abstractmethod
    async def _tally(self, ledger: str) -> Tally: ...

    @abstractmethod
    async def _query_progress(self, ledger: str) -> tuple[MemberProgress, ...]: ...

    @abstractmethod
    async def _open_pool(self, name: str) -> int: ...

    @abstractmethod
    async def _pools(self) -> tuple[PoolRecord, ...]: ...

    @abstractmethod
    async def _write_machines(self, step: MachineStep) -> None: ...

    @abstractmethod
    async def _query_machines(self, query: MachineQuery) -> tuple[MachineRecord, ...]: ...

    @abstractmethod
    async def _query_moves(self, query: MoveQuery) -> Page[MachineMove]: ...
