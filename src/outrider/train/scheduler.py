"""The scheduler: keeps environments busy with groups of rollouts, and gives a trainer batches of whole groups.

```python
async with RolloutScheduler(store, config) as scheduler:
    while True:
        batch = await scheduler.get_batch()
        train(batch)
        await scheduler.publish()
```

Invariants:
- A batch is whole groups, oldest first; no trajectory in it is staler than `max_staleness`.
- Groups are delivered once. After a crash of anything, a batch that was delivered and not acknowledged comes again,
  as it was; groups that were complete are kept; members that were running go on or are run again.
- `get_batch` ends by its deadline, and says then what it waits for.
- One scheduler at a time writes a ledger: a second one takes it over, and the first is refused from then on.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Self

import msgspec
from msgspec.structs import replace

from outrider.core.account import Tally
from outrider.core.clock import Clock, SystemClock, sleep, utc, wait
from outrider.core.crash_points import reached
from outrider.core.decoding import convert
from outrider.core.errors import BatchLate, InvalidInput
from outrider.core.ledger import LEDGER_KEY, GroupEntry, GroupState, Ledger
from outrider.core.published import POLICY_KEY, PublishedPolicy, Served, published_in
from outrider.core.status import LIVE, QUEUED, Mode
from outrider.core.task import Task
from outrider.core.tasks import uninterrupted
from outrider.store import Store
from outrider.store.outage import insist
from outrider.train.advantage import AdvantageRule
from outrider.train.config import SchedulerConfig, warnings_of
from outrider.train.delivery import RolloutBatch, load_batch
from outrider.train.driver import Driver
from outrider.train.schedule import Schedule
from outrider.train.status import SchedulerStatus, what_blocks
from outrider.train.validation import Validation, ValidationResult

_log = logging.getLogger(__name__)

STOP_SECONDS = 5.0
"""How long `stop` waits for the accounts of attempts that were cut off."""

LAST_WORDS_SECONDS = 0.1

LOOK_SECONDS = 5.0
"""How long a late batch is looked into."""

NEXT_KEY = "policy_next"
"""Where the resources hold a policy that is about to be published."""


class RolloutScheduler:
    """One trainer's source of batches. `name` is that of its ledger in the store: use it again to go on after a crash.

    `tasks` are those of each tag, for environments that need them. `rule` computes the advantages of a batch, instead
    of the configuration's.
    """

    def __init__(
        self,
        store: Store,
        config: SchedulerConfig,
        *,
        name: str = "train",
        tasks: Mapping[str, Sequence[Task]] | None = None,
        rule: AdvantageRule | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._store = store
        self._config = config
        self._name = name
        self._tasks = tasks or {}
        self._rule = rule or config.advantages
        self._clock = clock or SystemClock()
        self._driver: Driver | None = None
        self._running: asyncio.Task[None] | None = None
        self._published: PublishedPolicy | None = None
        self._validations: set[asyncio.Future[None]] = set()
        self._heard: set[str] = set()
        self._has_warned = False
        for warning in warnings_of(config):
            _log.warning(warning)

    @property
    def version(self) -> int:
        """That of the policy, as last published."""
        return self._driving.schedule.rule.version

    @property
    def config(self) -> SchedulerConfig:
        return self._config

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await uninterrupted(self.stop())

    async def start(self) -> None:
        """Take the ledger over and go on from where it stands."""
        if self._running is not None:
            raise InvalidInput("this scheduler is running already")
        ledger = await self._store.open_ledger(self._name, _settings(self._config))
        reached("scheduler.ledger_opened")
        _check_same(ledger, self._config)
        cursor = (await self._store.statistics()).cursor
        schedule = Schedule(
            self._config,
            self._name,
            batch_groups=self._config.n_groups_of(self._config.batch_size),
            tasks=self._tasks,
        )
        driver = Driver(self._store, ledger, schedule, self._config, self._clock, cursor=cursor)
        await self._restore(ledger, schedule, driver)
        self._driver = driver
        self._running = asyncio.create_task(driver.run(), name=f"scheduler of {self._name}")

    async def get_batch(self, batch_size: int | None = None, *, timeout: float | None = None) -> RolloutBatch:
        """The next batch: so many trajectories, in whole groups. `BatchLate` after `timeout` seconds.

        A batch that was delivered before and not acknowledged comes first, as large as it was.
        """
        n_groups = self._config.n_groups_of(self._config.batch_size if batch_size is None else batch_size)
        seconds = self._config.batch_seconds if timeout is None else timeout
        driver = self._driving
        waiter = await driver.next_batch(n_groups, seconds)
        if waiter is None or waiter.delivery is None:
            with suppress(TimeoutError):  # of a store that cannot be reached, what is known must do
                await asyncio.wait_for(driver.look(), LOOK_SECONDS)
            raise BatchLate(f"no batch after {seconds:g} s: {what_blocks(self.status(), utc(self._clock.time()))}")
        try:
            load = partial(load_batch, self._store, waiter.delivery, version=waiter.version, rule=self._rule)
            batch = await insist(self._store.outage, self._clock, load)
        except BaseException:
            driver.give_back(waiter)
            raise
        driver.took(waiter)
        self._heard.update(batch.batch.policies)
        if not self._has_warned and (warning := batch.batch.token_accounting().warning) is not None:
            self._has_warned = True
            _log.warning("batch %d: %s", batch.number, warning)
        return batch

    async def publish(
        self,
        version: int | None = None,
        *,
        model: str | None = None,
        base_urls: Sequence[str] = (),
        policies: Mapping[str, Served] | None = None,
        acknowledge: bool = True,
    ) -> int:
        """Announce the next version of the policy, which is served already; its number.

        Where nothing else is said it is served as the one before. `policies` are those beside the run's own, by name;
        the version is that of all together. Every batch that `get_batch` has returned is acknowledged: turn that off to
        do it yourself, once what you learnt from it is safe. A validation that runs on a policy served at the same
        place is waited for.
        """
        driver = self._driving
        further = self._checked(policies or {})
        news = PublishedPolicy(model=model, base_urls=tuple(base_urls), further=further)
        if not all(self._moves(news)):
            while self._validations:
                await asyncio.wait(self._validations)

        async def act() -> int:
            wanted = driver.schedule.rule.version + 1
            if version is not None and version != wanted:
                raise InvalidInput(f"the policy is at version {wanted - 1}: publish {wanted} next, not {version}")
            served = replace(news, version=wanted, paused=self._policy.paused).after(self._policy)
            if any(self._moves(news)):  # whoever goes on after a crash must know where it is served
                await self._put({NEXT_KEY: msgspec.to_builtins(served)})
            reached("scheduler.before_publish")
            await driver.publish(wanted, acknowledge=acknowledge)
            reached("scheduler.published")
            await self._announce(served)
            reached("scheduler.announced")
            return wanted

        return await driver.do(act)

    async def acknowledge(self, batch: RolloutBatch) -> None:
        """What was learnt from this batch is safe: it will not come again."""
        await self._driving.do(partial(self._driving.acknowledge, batch.number))

    async def validate(self, *, timeout: float | None = None) -> ValidationResult:
        """Run the groups of `val_env_manager` with the policy as it is now; whatever is late is cancelled."""
        validation = Validation(self._config, self._name, self.version, self._tasks)
        began = self._clock.monotonic()
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._validations.add(done)
        try:
            seconds = self._config.batch_seconds if timeout is None else timeout
            rollouts = await validation.run(self._store, self._clock, seconds)
        finally:
            self._validations.discard(done)
            done.set_result(None)
        return validation.result(rollouts, self._clock.monotonic() - began)

    async def pause(self) -> None:
        """Open no group, let no trajectory begin, and no model call: those under way come to their end."""
        await self._set_paused(paused=True)

    async def resume(self) -> None:
        await self._set_paused(paused=False)

    async def stop(self, *, abort: bool = False) -> None:
        """End. Groups that are open stay in the ledger for the next scheduler; with `abort` they are dropped."""
        running, self._running = self._running, None
        if running is None:
            return
        try:
            if abort and not running.done():
                await self._abort()
            elif not running.done():
                await self._settle_briefly()
        finally:
            running.cancel()
            await asyncio.wait([running])

    def status(self) -> SchedulerStatus:
        """Where it stands, as far as the last look at its members goes."""
        driver, schedule = self._driving, self._driving.schedule
        rule = schedule.rule
        dropped: Counter[str] = Counter()
        for (_, fate), n in schedule.dropped.items():
            dropped[fate] += n
        return SchedulerStatus(
            version=rule.version,
            is_training=rule.is_training,
            is_paused=driver.is_paused,
            n_batches=driver.n_batches,
            n_opened=len(schedule.groups) - rule.n_complete,
            n_complete=rule.n_complete,
            n_wanted=rule.batch_groups,
            n_held=schedule.n_held,
            phases=Counter(standing.phase for standing in driver.standings),
            n_slots=self._config.train_env_manager.n_slots,
            n_bytes=schedule.n_bytes,
            tokens=dict(driver.tokens),
            dropped=dropped,
            last_failure=schedule.last_failure,
            blocking=driver.blocking(),
        )

    async def tally(self) -> Tally:
        """All tokens that members of this ledger generated, in this run and before, by what became of them."""
        return await self._store.tally(self._name)

    @property
    def _driving(self) -> Driver:
        if self._driver is None:
            raise InvalidInput("the scheduler is not started; use it as `async with RolloutScheduler(…) as scheduler`")
        return self._driver

    @property
    def _policy(self) -> PublishedPolicy:
        return self._published or PublishedPolicy()

    async def _restore(self, ledger: Ledger, schedule: Schedule, driver: Driver) -> None:
        entries = await self._store.query_groups(
            self._name, states=(GroupState.OPENED, GroupState.COMPLETE, GroupState.DELIVERED)
        )
        driver.restore(entry for entry in entries if entry.state is GroupState.DELIVERED)
        open_ones = [entry for entry in entries if entry.state is not GroupState.DELIVERED]
        counts = await self._store.count_groups(self._name)
        resources = await self._store.get_latest_resources()
        found: Mapping[str, Any] = {} if resources is None else resources.resources
        self._published = published_in(found)
        version = max(ledger.version, self._policy.version)
        schedule.source.n_opened = ledger.n_opened
        ids = await self._member_ids(open_ones)
        ended = await self._store.query_rollouts(rollout_ids=ids, sort_by="ended_at")
        accounts = await self._store.query_accounts(ids)
        schedule.restore(version, open_ones, counts=counts, member_ids=ids, ended=ended, accounts=accounts)
        await driver.unaccounted.look()
        await self._cancel_left_over(ids)
        await self._announce(replace(_last_published(found, version), version=version, paused=False))

    async def _member_ids(self, entries: Sequence[GroupEntry]) -> list[str]:
        found = []
        for entry in entries:
            members = await self._store.query_rollouts(group_id=entry.group_id)
            found += [rollout.rollout_id for rollout in members]
        return found

    async def _cancel_left_over(self, member_ids: Sequence[str]) -> None:
        """Whoever had the ledger before may have closed a group and died before it cancelled its members."""
        unfinished = await self._store.query_rollouts(status_in=QUEUED | LIVE, mode=Mode.TRAIN)
        own = {one.rollout_id for one in unfinished if one.metadata.get(LEDGER_KEY) == self._name}
        if left_over := sorted(own.difference(member_ids)):
            await self._store.cancel_rollouts(left_over)

    def _checked(self, policies: Mapping[str, Served]) -> dict[str, Served]:
        if "" in policies:
            raise InvalidInput("policies has one without a name; the run's own is published by model and base_urls")
        for name in sorted(policies.keys() - self._heard) if self._heard else ():
            _log.warning("policy %r is published, and no sample so far is by it; is that its name?", name)
        return {name: replace(served, base_urls=tuple(served.base_urls)) for name, served in policies.items()}

    def _moves(self, news: PublishedPolicy) -> list[bool]:
        """For each policy whether it is to be served at another place than now."""
        before, after = self._policy, news.after(self._policy)
        return [after.served(name) != before.served(name) for name in ("", *after.further)]

    async def _announce(self, policy: PublishedPolicy) -> None:
        """Tell the workers. What they are told is in the ledger already, so only its owner tells them."""
        if policy != self._published:
            await self._put({POLICY_KEY: msgspec.to_builtins(policy)})
            self._published = policy

    async def _put(self, changed: Mapping[str, Any]) -> None:
        resources = await insist(self._store.outage, self._clock, self._store.get_latest_resources)
        others: Mapping[str, Any] = {} if resources is None else resources.resources
        await insist(self._store.outage, self._clock, lambda: self._store.put_resources({**others, **changed}))

    async def _set_paused(self, *, paused: bool) -> None:
        driver = self._driving

        async def act() -> None:
            await driver.check_owner()
            driver.is_paused = paused
            await self._announce(replace(self._policy, paused=paused))

        await driver.do(act)

    async def _abort(self) -> None:
        driver = self._driving
        await self._settle(set(await driver.do(driver.abort)))

    async def _settle_briefly(self) -> None:
        """So that the tally is whole, if the store can be reached and the ledger is still ours."""
        settling = asyncio.ensure_future(self._settle(set()))
        try:
            await wait(self._clock, settling, 2 * STOP_SECONDS)
        finally:
            settling.cancel()
            await asyncio.wait([settling])
        if not settling.cancelled() and (error := settling.exception()) is not None:
            _log.warning("not all attempts of %s are accounted for: %s", self._name, error)

    async def _settle(self, cut_off: set[str]) -> None:
        """Wait for the accounts of attempts that were cut off; what is missing then is counted from their events."""
        driver = self._driving
        await driver.do(driver.unaccounted.look)
        deadline = self._clock.monotonic() + STOP_SECONDS
        while True:
            cut_off -= set(await driver.do(driver.settle_accounts))
            if not (cut_off or driver.unaccounted.hears_more) or self._clock.monotonic() >= deadline:
                break
            await sleep(self._clock, LAST_WORDS_SECONDS)
        await driver.do(partial(driver.settle_accounts, at_once=True))


def _last_published(resources: Mapping[str, Any], version: int) -> PublishedPolicy:
    """The policy that was published last, even if whoever published it died before the workers were told."""
    published = published_in(resources) or PublishedPolicy()
    if published.version < version and NEXT_KEY in resources:
        coming = convert(resources[NEXT_KEY], PublishedPolicy)
        return coming if coming.version == version else published
    return published


def _settings(config: SchedulerConfig) -> dict[str, Any]:
    """What must stay the same for a ledger to go on."""
    manager = config.train_env_manager
    return {"seed": config.seed, "group_size": manager.group_size, "tags": sorted(manager.tags)}


def _check_same(ledger: Ledger, config: SchedulerConfig) -> None:
    for name, now in _settings(config).items():
        before = ledger.settings.get(name)
        if before != now:
            raise InvalidInput(
                f"the ledger {ledger.name!r} was begun with {name} {before!r}, and this configuration has {now!r}: "
                "go on with the same, or give the scheduler another name"
            )
