"""The store: one durable queue of rollouts that producers, workers and trainers share.

Invariants, the same for every engine:
- A claim is one atomic step; a rollout is claimed by one attempt at a time.
- Every write to a claimed rollout names its attempt. A write by an attempt that is not the current one, or of a
  rollout that has ended, raises `LeaseLost` and changes nothing; repeating a write that was carried out is accepted.
- Final states are final.
- Expiry and time-outs are enforced by every process that has the store open to write, whether or not anyone calls it.
- Waiting calls wake on events, within milliseconds, also when the event comes from another process.

Those of the ledger of groups stand in `outrider.core.ledger`, those of machines in `outrider.core.machine`.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal, Protocol, Self

from msgspec import UNSET, Struct, UnsetType

from outrider.core.account import Account, AttemptAccount, Tally
from outrider.core.attempt import Attempt, Failure, LostLease
from outrider.core.event import Event, EventKind, RecordedEvent
from outrider.core.ledger import Asks, GroupEntry, GroupState, Ledger, LedgerWrite, MemberProgress
from outrider.core.machine import MachineMove, MachineRecord, MachineState, PoolRecord
from outrider.core.page import Page
from outrider.core.rollout import AttemptedRollout, Rollout, RolloutConfig, RolloutRequest
from outrider.core.status import AttemptStatus, Mode, RolloutStatus, WorkerStatus
from outrider.core.worker import Worker
from outrider.store.outage import Outage
from outrider.store.url import StoreUrl

SortKey = Literal["enqueued_at", "ended_at"]


class Revoked(StrEnum):
    """What becomes of the rollouts of a worker whose leases are taken away."""

    LOST = "lost"
    """Each attempt counts as a failure."""

    HANDED_BACK = "handed back"
    """No attempt counts as a failure: whatever happened, these rollouts had no part in it."""

    ISOLATED = "isolated"
    """One of them may have killed the worker. If it held only one, that attempt counts as a failure; of several none
    does. From now on only claims with `isolated` get them, so that they can run alone and the killer be told."""


class Finished(Struct, frozen=True, kw_only=True):
    """A stretch of the completion-ordered feed; pass `cursor` to read on from here."""

    items: tuple[Rollout, ...]
    cursor: int


DEFAULT_RESOURCES = "default"
"""The id of the resources that claims are made with, such as the policy that a trainer publishes."""


class Resources(Struct, frozen=True, kw_only=True):
    """What runs need and trainers publish (policy endpoint, prompt templates): immutable.

    Versions grow from 1 through the whole store, whatever the id: a version alone names one set of resources.
    """

    version: int
    resources_id: str
    resources: Mapping[str, Any]
    created_at: datetime


class Statistics(Struct, frozen=True, kw_only=True):
    """Counts of the whole store at one moment. `cursor` is the end of the feed, for `finished_after`.

    `n_set_aside` of the rollouts that wait may have killed a worker, and will each run alone.
    """

    rollouts: Mapping[RolloutStatus, int]
    workers: Mapping[WorkerStatus, int]
    oldest_queued_at: datetime | None
    next_expiry_at: datetime | None
    n_set_aside: int = 0
    cursor: int = 0


class Store(Protocol):
    """The methods every engine has. All ids are strings; `worker_id` may also be given as a number."""

    @property
    def url(self) -> StoreUrl:
        """What `open_store` takes to open this store again. Another process needs what its `reveal()` returns."""

    @property
    def outage(self) -> Outage:
        """Whether the database is away just now, as far as calls that are repeated until they succeed tell."""

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
        """Add one rollout. With a `rollout_id` of your own, repeating the call changes nothing."""

    async def enqueue_many_rollouts(self, requests: Sequence[RolloutRequest]) -> tuple[Rollout, ...]:
        """Add all of them or, if one is refused, none."""

    async def dequeue_rollout(
        self,
        *,
        worker_id: str | int,
        wait: float = 0.0,
        tags: Collection[str] | None = None,
        mode: Mode | str | None = None,
        request_id: str | None = None,
    ) -> AttemptedRollout | None:
        """Claim the next rollout: highest priority first, then oldest. Waits up to `wait` seconds for one.

        A claim repeated with the same `request_id` returns what the first one claimed.
        """

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
        """Claim up to `limit` rollouts; waits only while there is none at all.

        With `isolated`, only rollouts that `revoke_leases` has set aside: run each in a worker that runs nothing else.
        """

    async def start_rollout(
        self, input: Any, *, worker_id: str | int, config: RolloutConfig | None = None, **request: Any
    ) -> AttemptedRollout:
        """Enqueue and claim in one step, past the queue. `request` takes the other arguments of `enqueue_rollout`."""

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
        """Change a rollout while it waits in the queue; what is not given stays as it is, and so does its place.

        Raises `RolloutTaken`, and changes nothing, once it was claimed or has ended. A rollout that waits to be tried
        again can be changed too.
        """

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
        """Report on an attempt, and append its last `events` and its `account` in the same step.

        `metadata` takes the place of what was noted on the attempt before, up to 64 KiB of it.
        An account is kept for members of a group that is in a ledger, with the report that ends the attempt.
        `running` and the ends `succeeded`, `failed`, `timeout`; `cancelled` hands the rollout back to the queue.
        """

    async def append_events(
        self, rollout_id: str, attempt_id: str, events: Sequence[Event], *, first_index: int | None = None
    ) -> int:
        """Append events, and the number of events the attempt has then.

        With `first_index`, the place of the first one, repeating the call changes nothing.
        """

    async def heartbeat(
        self,
        worker_id: str | int,
        attempt_ids: Collection[str] = (),
        *,
        wait: float = 0.0,
        stats: Mapping[str, Any] | None = None,
    ) -> tuple[LostLease, ...]:
        """Renew all leases of a worker, and learn which are lost.

        `stats` is what the worker says of itself, up to 64 KiB; `query_workers` shows the last it said.

        With `wait`, goes on watching for so many seconds and returns as soon as one is lost; leases are not renewed
        meanwhile, so wait less than they last. `attempt_ids` may be a live view, such as a dict's keys: it is read anew
        at every look.
        """

    async def revoke_leases(self, worker_id: str | int, *, reason: str, how: Revoked = Revoked.LOST) -> tuple[str, ...]:
        """Take all leases of a worker known to be dead, at once instead of when they expire; the attempts concerned.

        Those that count as a failure end `unresponsive` and are retried as their configuration says, the others
        `cancelled`; each with `reason` as the failure's message.
        """

    async def cancel_rollouts(self, rollout_ids: Sequence[str]) -> tuple[str, ...]:
        """Cancel what has not ended, down to the running attempts; the ids that were cancelled by this call."""

    async def get_rollout_by_id(self, rollout_id: str) -> Rollout | None: ...

    async def get_latest_attempt(self, rollout_id: str) -> Attempt | None: ...

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
    ) -> Page[Rollout]: ...

    async def query_attempts(self, rollout_id: str, *, limit: int = -1, offset: int = 0) -> Page[Attempt]: ...

    async def query_workers(
        self, *, status: WorkerStatus | str | None = None, limit: int = -1, offset: int = 0
    ) -> Page[Worker]: ...

    async def query_events(
        self,
        rollout_id: str,
        *,
        attempt_id: str | None = None,
        kind: EventKind | str | None = None,
        limit: int = -1,
        offset: int = 0,
    ) -> Page[RecordedEvent]:
        """Events in the order they were appended; of the latest attempt unless another is named."""

    async def wait_for_rollouts(self, rollout_ids: Sequence[str], timeout: float | None = None) -> tuple[Rollout, ...]:
        """Wait until all have ended, or `timeout` seconds; those that have ended, in the order asked."""

    async def finished_after(self, cursor: int = 0, *, limit: int = 100, wait: float = 0.0) -> Finished:
        """Rollouts in the order they ended, after `cursor` (0: from the start). Nothing is skipped or shown twice."""

    async def put_resources(self, resources: Mapping[str, Any], *, resources_id: str = DEFAULT_RESOURCES) -> Resources:
        """Publish the next version of the resources of that id. A claim is made with the newest of the default id."""

    async def get_latest_resources(
        self, *, resources_id: str = DEFAULT_RESOURCES, after: int = 0, wait: float = 0.0
    ) -> Resources | None:
        """The newest of that id, if its version is above `after`; waits up to `wait` seconds for one that is."""

    async def get_resources(self, version: int) -> Resources | None:
        """The resources that were published as this version."""

    async def query_resources(
        self, *, resources_id: str | None = None, descending: bool = False, limit: int = -1, offset: int = 0
    ) -> Page[Resources]:
        """All that were published, of one id or of all, by version."""

    async def statistics(self) -> Statistics: ...

    async def open_ledger(self, name: str, settings: Mapping[str, Any] | None = None) -> Ledger:
        """Make the ledger, or take it over from whoever had it. `settings` are kept when it is made."""

    async def query_ledgers(self) -> tuple[Ledger, ...]:
        """All ledgers, as they stand, by name. Takes none of them over."""

    async def write_ledger(self, ledger: Ledger, write: LedgerWrite) -> None:
        """Carry out one step. Raises `LedgerLost` if the epoch is over, `InvalidInput` for a move not in the table."""

    async def query_groups(
        self,
        ledger: str,
        *,
        states: Collection[GroupState | str] | None = None,
        batch: int | None = None,
        group_ids: Sequence[str] | None = None,
        limit: int = -1,
        offset: int = 0,
    ) -> Page[GroupEntry]:
        """Groups in the order they were opened."""

    async def count_groups(self, ledger: str) -> Mapping[tuple[str, GroupState], int]:
        """How many groups there are by tag and state."""

    async def ask_to_begin(self, asks: Sequence[tuple[str, str]]) -> None:
        """Ask for the first turns of these attempts, given as rollout and attempt id.

        One that is not the current attempt of its rollout, or not of an open group in a ledger, is passed over.
        """

    async def asks_after(self, ledger: str, cursor: int = 0, *, limit: int = 1000, wait: float = 0.0) -> Asks:
        """What is asked and not granted, after `cursor`; asks of attempts that have ended are left out."""

    async def grants(self, attempt_ids: Collection[str], *, wait: float = 0.0) -> Mapping[str, int]:
        """The versions granted to those of these attempts that may begin; waits only while there is none at all.

        `attempt_ids` may be a live view, such as a dict's keys: it is read anew at every look.
        """

    async def leave_account(self, rollout_id: str, attempt_id: str, account: Account) -> None:
        """What an attempt took that could not say so itself in time, since it was ended by somebody else.

        Kept if the attempt is one of that rollout, has ended and has left none; otherwise nothing is changed.
        """

    async def query_accounts(self, rollout_ids: Sequence[str]) -> tuple[AttemptAccount, ...]:
        """The accounts of all attempts of these rollouts, rollout by rollout, in the order of the attempts."""

    async def late_accounts(self, ledger: str, *, limit: int = 1000) -> tuple[AttemptAccount, ...]:
        """Accounts without a fate whose group is closed: they came after it was."""

    async def tally(self, ledger: str) -> Tally: ...

    async def query_progress(self, ledger: str) -> tuple[MemberProgress, ...]:
        """The live members of the ledger's groups that are opened, oldest group first."""

    async def open_pool(self, name: str) -> int:
        """Make the pool, or take it over from the process that had it; the epoch that its writes must name."""

    async def query_pools(self) -> tuple[PoolRecord, ...]:
        """All pools, by name. Takes none of them over."""

    async def write_machines(
        self, pool: str, epoch: int, number: int, records: Sequence[MachineRecord], moves: Sequence[MachineMove]
    ) -> None:
        """Journal machines as they stand now and the moves that brought them there, oldest first, in one step.

        The writes of an epoch are numbered from 1; repeating one that was carried out changes nothing. Raises
        `PoolLost` if the epoch is over, `InvalidInput` for a move not in the table.
        """

    async def query_machines(
        self, pool: str | None = None, states: Collection[MachineState | str] | None = None
    ) -> tuple[MachineRecord, ...]:
        """Machines by pool, the oldest first; those that are gone too, unless `states` leaves them out."""

    async def query_machine_moves(
        self, machine_id: str | None = None, pool: str | None = None, *, limit: int = -1, offset: int = 0
    ) -> Page[MachineMove]:
        """Moves, newest first."""

    def handle(self) -> "Store":
        """The same store for other threads and event loops: its calls are carried out on the loop that opened it.

        They need that loop to run, and fail once it has ended.
        """

    async def close(self) -> None:
        """Let go of the database. What was acknowledged stays; calls under way are carried out first."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *exc_info: object) -> None: ...
