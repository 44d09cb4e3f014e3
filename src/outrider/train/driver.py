"""Drives a schedule: brings it the news of the store, writes down what it decides, hands out batches.

Invariants:
- One task owns the schedule and is the only writer of the ledger; all else is posted to it, and carried out in order.
- A decision is written before anything follows from it. A write that could not reach the store is repeated as it is.
- What is handed out is in the ledger as delivered first. A batch that its asker did not take goes to the next one.
- What ends the driver is raised to everybody who waits for it, and to those who come later.
"""

import asyncio
import math
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from outrider.core.account import AttemptAccount, Fate
from outrider.core.clock import Clock, sleep, wait
from outrider.core.crash_points import reached
from outrider.core.errors import InvalidInput, OutriderError
from outrider.core.ledger import Ask, GroupEntry, GroupMove, GroupState, Ledger, LedgerWrite
from outrider.core.rollout import Rollout
from outrider.store import Store
from outrider.store.bell import Listener
from outrider.store.outage import insist
from outrider.train.config import SchedulerConfig
from outrider.train.delivery import Delivery
from outrider.train.groups import OpenGroup, late_fate
from outrider.train.metrics import LengthBias, Occupancy, token_metrics
from outrider.train.news import NET_SECONDS, follow_asks, follow_ends
from outrider.train.schedule import Decision, Schedule
from outrider.train.unaccounted import Unaccounted
from outrider.train.watch import Phase, Standing, standings_of

R = TypeVar("R")

WATCH_SECONDS = 10.0
"""How often to look for members without progress at least; more often if they are hedged soon."""

LATE_PAGE = 1000
HEDGED = frozenset({Phase.RESET, Phase.ENV})
"""The phases in which it is the environment that shows no progress."""


@dataclass(slots=True, eq=False)
class Waiter:
    """Somebody who asks for a batch, and what it was given."""

    n_groups: int
    asked_at: float
    future: "asyncio.Future[None]"
    delivery: Delivery | None = None
    version: int = 0
    """That of the policy when it was given."""


class Driver:
    """For one ledger that this process has opened. `run` until it is cancelled; the rest may be called meanwhile."""

    def __init__(
        self, store: Store, ledger: Ledger, schedule: Schedule, config: SchedulerConfig, clock: Clock, *, cursor: int
    ) -> None:
        self.schedule = schedule
        self.n_batches = ledger.n_batches
        self.standings: list[Standing] = []
        self.is_paused = False
        self.is_started = config.rollout_batch_size is not None
        self._store = store
        self._ledger = ledger
        self._config = config
        self._clock = clock
        self._cursor = cursor
        self._inbox: deque[Callable[[], Awaitable[None]]] = deque()
        self._bell = Listener(clock)
        self._waiter: Waiter | None = None
        self._unclaimed: deque[Delivery] = deque()
        self._outstanding: dict[int, tuple[str, ...]] = {}
        self._taken: set[int] = set()
        self.unaccounted = Unaccounted(store, clock, ledger.name)
        self._occupancy = Occupancy(config.train_env_manager.n_slots)
        self._bias = LengthBias()
        self._tokens: Counter[Fate] = Counter()
        self._expected: set[asyncio.Future[Any]] = set()
        self._failure: BaseException | None = None

    @property
    def tokens(self) -> Counter[Fate]:
        """Those that have found their fate since this began."""
        return self._tokens + self.schedule.flow

    def restore(self, delivered: Iterable[GroupEntry]) -> None:
        """Batches that were delivered and not acknowledged: they come first again."""
        batches: dict[int, list[GroupEntry]] = {}
        for entry in delivered:
            batches.setdefault(entry.batch or 0, []).append(entry)
        for number, entries in sorted(batches.items()):
            self._unclaimed.append(Delivery.of(number, entries))
            self._outstanding[number] = tuple(entry.group_id for entry in entries)
        if batches:  # as far as the rule goes the trainer has one, and what begins now is for the next
            self.schedule.rule.handed_over(self._clock.monotonic())

    async def run(self) -> None:
        name = self._ledger.name
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(follow_ends(self._store, self._clock, name, self._cursor, self._take_ends))
                group.create_task(follow_asks(self._store, self._clock, name, self._take_asks))
                group.create_task(self._watch())
                group.create_task(self._drive())
        except BaseExceptionGroup as exc:
            self._fail(exc.exceptions[0])
        except asyncio.CancelledError:
            self._fail(OutriderError("the scheduler was stopped"))
            raise

    async def do(self, action: Callable[[], Awaitable[R]]) -> R:
        """Have the driver carry out `action` between two decisions; what it returns or raises."""
        done: asyncio.Future[R] = self._expect()

        async def act() -> None:
            try:
                result = await action()
            except InvalidInput as exc:
                if not done.done():
                    done.set_exception(exc)
                return
            if not done.done():
                done.set_result(result)

        self._post(act)
        return await done

    async def next_batch(self, n_groups: int, seconds: float) -> Waiter | None:
        """Wait for a batch of so many groups; None at the deadline. Give back what is not taken."""
        waiter = Waiter(n_groups, self._clock.monotonic(), self._expect())
        self._post(partial(self._ask, waiter))
        try:
            if not await wait(self._clock, waiter.future, seconds):
                return None
            waiter.future.result()
        except BaseException:
            self.give_back(waiter)
            raise
        finally:
            if self._waiter is waiter:
                self._waiter = None
        return waiter

    def give_back(self, waiter: Waiter) -> None:
        """Its asker did not take what it was given, and takes nothing any more."""
        waiter.future.cancel()
        if waiter.delivery is not None:
            self._unclaimed.appendleft(waiter.delivery)
            waiter.delivery = None

    def took(self, waiter: Waiter) -> None:
        """Its asker has what it was given: from now on it may be acknowledged by publishing."""
        if waiter.delivery is not None:
            self._taken.add(waiter.delivery.number)

    async def publish(self, version: int, *, acknowledge: bool) -> None:
        """The policy has this version from now on: the next one. Workers are told after this.

        With `acknowledge` the trainer is done with all batches that it was given, in the same step.
        """
        done = [number for number in self._outstanding if number in self._taken] if acknowledge else []
        await self._acknowledge(done, version)
        self.schedule.published(self._clock.monotonic())

    async def check_owner(self) -> None:
        """Raise `LedgerLost` if another scheduler has taken the ledger over."""
        await self._write(LedgerWrite())

    async def acknowledge(self, number: int) -> None:
        """The trainer is done with this batch."""
        if number >= self.n_batches:
            raise InvalidInput(f"batch {number} was never delivered; the last one is {self.n_batches - 1}")
        await self._acknowledge([number], None)

    async def abort(self) -> list[str]:
        """Drop all groups that are open; the attempts that were under way, which are about to leave their accounts."""
        await self.look()
        self.is_started = False
        self.schedule.abort()
        return [standing.attempt_id for standing in self.standings]

    def blocking(self) -> list[Standing]:
        """The live members that a batch waits for, longest without progress first."""
        waits_for = set(self.schedule.rule.waits_for())
        groups = self.schedule.groups
        unfinished = [one for one in self.standings if one.group_id in groups and not groups[one.group_id].is_complete]
        return [one for one in unfinished if one.group_id in waits_for] or unfinished

    async def look(self) -> None:
        """See what live members are doing."""
        progress = await insist(self._store.outage, self._clock, lambda: self._store.query_progress(self._ledger.name))
        self.standings = standings_of(progress)
        self._occupancy.look(len(self.standings))

    async def settle_accounts(self, *, at_once: bool = False) -> tuple[str, ...]:
        """Attempts that were cut off leave their accounts after their group is closed: give them a fate too.

        Those that were given one now. Accounts are made for attempts that left none in time; `at_once`: that time is
        over.
        """
        await self.unaccounted.settle(at_once=at_once)
        late = await insist(
            self._store.outage, self._clock, lambda: self._store.late_accounts(self._ledger.name, limit=LATE_PAGE)
        )
        if not late:
            return ()
        ids = list({one.group_id for one in late})
        page = await insist(
            self._store.outage, self._clock, lambda: self._store.query_groups(self._ledger.name, group_ids=ids)
        )
        entries = {entry.group_id: entry for entry in page}
        rollouts = await insist(
            self._store.outage,
            self._clock,
            lambda: self._store.query_rollouts(rollout_ids=list({one.rollout_id for one in late})),
        )
        last = {rollout.rollout_id: rollout.attempt_id for rollout in rollouts}
        fates = {
            one.attempt_id: late_fate(one, entries[one.group_id], is_last=last.get(one.rollout_id) == one.attempt_id)
            for one in late
        }
        for one in late:
            self.schedule.flow[fates[one.attempt_id]] += one.account.completion_tokens
        await self._write(LedgerWrite(fates=fates))
        return tuple(fates)

    async def _acknowledge(self, numbers: Sequence[int], version: int | None) -> None:
        groups = [group_id for number in numbers for group_id in self._outstanding.get(number, ())]
        moved = tuple(GroupMove(group_id=group_id, state=GroupState.ACKNOWLEDGED) for group_id in groups)
        await self._write(LedgerWrite(moved=moved, version=version))
        for number in numbers:
            self._outstanding.pop(number, None)
            self._taken.discard(number)
        self._unclaimed = deque(delivery for delivery in self._unclaimed if delivery.number in self._outstanding)

    def _expect(self) -> "asyncio.Future[Any]":
        """A future that fails when the driver does."""
        if self._failure is not None:
            raise self._failure
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._expected.add(future)
        future.add_done_callback(self._expected.discard)
        return future

    def _fail(self, failure: BaseException) -> None:
        self._failure = self._failure or failure
        for future in list(self._expected):
            if not future.done():
                future.set_exception(self._failure)

    def _post(self, action: Callable[[], Awaitable[None]]) -> None:
        self._inbox.append(action)
        self._bell.ring()

    def _take_ends(self, ended: Sequence[Rollout], accounts: Sequence[AttemptAccount]) -> None:
        async def tell() -> None:
            self.unaccounted.note(ended, accounts)
            for account in accounts:
                self.schedule.accounted(account)
            finishing = {rollout.attempt_id for rollout in ended if rollout.reward is not None}
            for account in accounts:
                if account.attempt_id in finishing:
                    self._bias.offered(account.account)
            for rollout in ended:
                self.schedule.ended(rollout)

        self._post(tell)

    def _take_asks(self, asks: Sequence[Ask]) -> None:
        async def tell() -> None:
            now = self._clock.monotonic()
            for ask in asks:
                self.schedule.asked(ask, now)

        self._post(tell)

    async def _drive(self) -> None:
        while True:
            while self._inbox:
                await self._inbox.popleft()()
            await self._decide()
            while await self._deliver():
                await self._decide()
            await self._until_news()

    async def _until_news(self) -> None:
        now = self._clock.monotonic()
        due = self.schedule.wake_at(now) if self.is_started and not self.is_paused else math.inf
        await self._bell.wait(min(due - now, NET_SECONDS))

    async def _decide(self) -> None:
        may_open = self.is_started and not self.is_paused
        await self._carry_out(self.schedule.decide(self._clock.monotonic(), may_open=may_open))

    async def _carry_out(self, decision: Decision) -> None:
        write = decision.write()
        if not write.is_empty:
            await self._write(write)
            reached("scheduler.decided")
        if decision.cancelled:
            await insist(self._store.outage, self._clock, lambda: self._store.cancel_rollouts(decision.cancelled))

    async def _write(self, write: LedgerWrite) -> None:
        await insist(self._store.outage, self._clock, lambda: self._store.write_ledger(self._ledger, write))

    async def _ask(self, waiter: Waiter) -> None:
        if waiter.future.done():
            return
        if self._waiter is not None and not self._waiter.future.done():
            waiter.future.set_exception(InvalidInput("another get_batch is waiting already; await one at a time"))
            return
        now = self._clock.monotonic()
        self.is_started = True
        if self._unclaimed:
            self.schedule.rule.handed_over(now)
            self._hand_out(waiter, self._unclaimed.popleft())
            return
        self._waiter = waiter
        self.schedule.rule.resize(waiter.n_groups)
        self.schedule.rule.asked(now)

    def _hand_out(self, waiter: Waiter, delivery: Delivery) -> None:
        if waiter.future.done():
            self._unclaimed.appendleft(delivery)
            return
        waiter.delivery = delivery
        waiter.version = self.schedule.rule.version
        waiter.future.set_result(None)

    async def _deliver(self) -> bool:
        """Deliver a batch if somebody waits and there is one."""
        waiter = self._waiter
        if waiter is None or waiter.future.done() or not self.schedule.rule.may_deliver():
            return False
        if not self._occupancy.has_looked:
            await self.look()
        now = self._clock.monotonic()
        number = self.n_batches
        groups, decision = self.schedule.deliver(now, number)
        await self._carry_out(decision)
        reached("scheduler.delivered")
        self.n_batches += 1
        self._outstanding[number] = tuple(group.group_id for group in groups)
        self._waiter = None
        self._hand_out(waiter, self._delivery(number, groups, now - waiter.asked_at))
        return True

    def _delivery(self, number: int, groups: Sequence[OpenGroup], waited: float) -> Delivery:
        flow = dict(self.schedule.flow)
        self._tokens += self.schedule.flow
        self.schedule.flow.clear()
        self._bias.trained(one.account for group in groups for one in group.results)
        metrics = token_metrics(flow) | {
            "batch/wait_seconds": waited,
            "groups/open": float(len(self.schedule.groups) - self.schedule.rule.n_complete),
            "groups/complete": float(self.schedule.rule.n_complete),
            "groups/held_members": float(self.schedule.n_held),
            "slots/occupancy": self._occupancy.take(),
            "batch/length_bias": self._bias.ratio,
        }
        members = [tuple(one.rollout_id for one in group.results) for group in groups]
        return Delivery(number=number, members=members, metrics=metrics, tokens=flow)

    async def _watch(self) -> None:
        """Now and then: who shows no progress, and who has left an account late."""
        hedge_seconds = math.inf if self._config.hedge_seconds is None else self._config.hedge_seconds
        # By when each was first seen, not by its timestamp: that is of another machine, whose clock may differ or jump.
        first_seen: dict[Standing, float] = {}
        while True:
            await sleep(self._clock, min(WATCH_SECONDS, hedge_seconds / 6))
            await self.look()
            now = self._clock.monotonic()
            first_seen = {standing: first_seen.get(standing, now) for standing in self.standings}
            for standing, since in first_seen.items():
                if standing.phase in HEDGED and now - since >= hedge_seconds:
                    await self._hedge(standing)
            await self.do(self.settle_accounts)

    async def _hedge(self, standing: Standing) -> None:
        if not self.schedule.may_hedge(standing.group_id, standing.rollout_id):
            return
        rollout = await insist(
            self._store.outage, self._clock, lambda: self._store.get_rollout_by_id(standing.rollout_id)
        )

        async def act() -> None:
            if rollout is not None and self.schedule.may_hedge(standing.group_id, standing.rollout_id):
                self.schedule.hedge(rollout)

        self._post(act)
