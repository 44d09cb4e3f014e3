"""Workers on rollouts of a ledger: leave to begin, published policies, deadlines and accounts."""

import asyncio
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from guessing import CountingGame, Games, GuessingGame, Watched, scripted
from leaks import no_leaks
from outrider import RolloutConfig, Runner, Store, local_workers, open_store
from outrider.agent import AgentFunction, ChatAgent, EpisodeKit
from outrider.core.account import AttemptAccount
from outrider.core.chat import Message
from outrider.core.errors import AgentError, Boundary, InvalidInput, PolicyUnusable
from outrider.core.event import EventKind
from outrider.core.ledger import LEDGER_KEY, PIN_KEY, Ask, Grant, Ledger, LedgerWrite, NewGroup
from outrider.core.published import POLICY_KEY
from outrider.core.rollout import Rollout, RolloutRequest
from outrider.core.status import RolloutStatus
from outrider.core.task import Task
from outrider.core.turn import turn_of
from outrider.env import Environment, Step
from outrider.policy import ChatPolicy, Completion
from outrider.policy.spec import PolicySpec
from outrider.runner import RunnerConfig, StageLimits
from outrider.runner.kit import EnvironmentSpec, EpisodeSpec, check_episodes
from outrider.runner.meter import Meter, MeteredPolicy
from outrider.runner.worker import ProcessWorker, WorkerSpec
from outrider.testing import FakeClock, eventually

LEDGER = "train"


@pytest.fixture(params=["memory", "sqlite"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'runs.db'}"


class Scheduler:
    """Opens groups and gives leave, by hand."""

    def __init__(self, store: Store, ledger: Ledger) -> None:
        self._store = store
        self._ledger = ledger
        self._n_groups = 0
        self._cursor = 0

    @classmethod
    async def on(cls, store: Store) -> "Scheduler":
        return cls(store, await store.open_ledger(LEDGER))

    async def open(
        self, n: int, *, tag: str = "counting", config: RolloutConfig | None = None, **metadata: Any
    ) -> list[str]:
        """A group of `n` members: their ids."""
        group_id = f"g{self._n_groups}"
        members = tuple(
            RolloutRequest(
                input={"question": ""},
                rollout_id=f"{group_id}-{seat}",
                tag=tag,
                seed=self._n_groups,
                group_id=group_id,
                config=config or RolloutConfig(max_attempts=1),
                metadata={LEDGER_KEY: LEDGER, **metadata},
            )
            for seat in range(n)
        )
        group = NewGroup(
            group_id=group_id, number=self._n_groups, tag=tag, seed=self._n_groups, size=n, members=members
        )
        self._n_groups += 1
        await self._store.write_ledger(self._ledger, LedgerWrite(opened=(group,)))
        return [member.rollout_id or "" for member in members]

    async def asks(self, n: int) -> list[Ask]:
        """The next `n` asks."""
        found: list[Ask] = []
        async with asyncio.timeout(20):
            while len(found) < n:
                asks = await self._store.asks_after(LEDGER, self._cursor, wait=5.0)
                found += asks.items
                self._cursor = asks.cursor
        return found

    async def grant(self, *asks: Ask, version: int = 0) -> None:
        grants = tuple(Grant(group_id=ask.group_id, attempt_id=ask.attempt_id, version=version) for ask in asks)
        await self._store.write_ledger(self._ledger, LedgerWrite(granted=grants))

    async def grant_all(self, *, version: int = 0) -> None:
        """Grant whatever is asked, until cancelled."""
        while True:
            await self.grant(*await self.asks(1), version=version)

    async def publish(self, version: int, **fields: Any) -> None:
        await self._store.put_resources({POLICY_KEY: {"version": version, **fields}})

    async def accounts(self, rollout_ids: Sequence[str]) -> tuple[AttemptAccount, ...]:
        return await self._store.query_accounts(rollout_ids)


@pytest.fixture
async def scheduler(store: Store) -> Scheduler:
    return await Scheduler.on(store)


def kit(
    policy: ChatPolicy, agent: AgentFunction | None = None, **environments: Callable[[Task], Environment]
) -> EpisodeKit:
    games = {tag: Games(make) for tag, make in {"counting": CountingGame, **environments}.items()}
    return EpisodeKit(policy=policy, environments=games, agent=agent or ChatAgent())


class Calls(Watched):
    """Tells of the first call."""

    def __init__(self, inner: ChatPolicy | None = None) -> None:
        super().__init__(inner or scripted())
        self.called = asyncio.Event()

    async def complete(self, messages: Sequence[Message], **kwargs: Any) -> Completion:
        self.called.set()
        return await super().complete(messages, **kwargs)


async def ended(store: Store, ids: Sequence[str]) -> tuple[Rollout, ...]:
    rollouts = await store.wait_for_rollouts(ids, timeout=20)
    assert len(rollouts) == len(ids)
    return rollouts


async def settled() -> None:
    """Let all that can run on the event loop do so."""
    for _ in range(50):
        await asyncio.sleep(0)


async def versions_of(store: Store, rollout_id: str) -> list[int]:
    events = await store.query_events(rollout_id, kind=EventKind.TURN)
    return [turn_of(event).policy_version for event in events]


async def test_a_rollout_of_a_ledger_makes_no_model_call_before_it_is_granted_and_then_at_once(
    store: Store, scheduler: Scheduler
):
    policy = Calls()
    async with no_leaks(), local_workers(store, kit(policy), max_env_num_per_worker=4):
        ids = await scheduler.open(4)
        asks = await scheduler.asks(4)
        await settled()
        assert policy.requests == []

        await scheduler.grant(asks[0])
        async with asyncio.timeout(10):  # far less than a look for grants takes by itself
            await policy.called.wait()
        granted = next(ask.rollout_id for ask in asks[:1])
        await ended(store, [granted])
        assert len(policy.requests) == 5, "the others still wait"

        await scheduler.grant(*asks[1:])
        rollouts = await ended(store, ids)
    assert {rollout.status for rollout in rollouts} == {RolloutStatus.SUCCEEDED}


async def test_the_reset_is_in_the_store_while_the_attempt_waits(store: Store, scheduler: Scheduler):
    async with local_workers(store, kit(Calls()), grace_seconds=0):
        (rollout_id,) = await scheduler.open(1)
        await scheduler.asks(1)

        async def reset_is_told() -> bool:
            return [event.name for event in await store.query_events(rollout_id)] == ["reset"]

        await eventually(reset_is_told)
        waiting = await store.get_rollout_by_id(rollout_id)
        assert waiting is not None
        assert waiting.status is RolloutStatus.PREPARING


async def test_rollouts_without_a_ledger_ask_nothing(store: Store, scheduler: Scheduler):
    policy = Calls()
    async with local_workers(store, kit(policy), max_env_num_per_worker=2):
        held = await scheduler.open(1)
        await scheduler.asks(1)
        free = await store.enqueue_rollout({"question": ""}, tag="counting")
        (rollout,) = await ended(store, [free.rollout_id])
        assert rollout.status is RolloutStatus.SUCCEEDED
        assert await store.query_accounts([free.rollout_id]) == ()
        await store.cancel_rollouts(held)


async def test_the_first_turn_never_has_a_version_below_the_granted_one(store: Store, scheduler: Scheduler):
    policy = Calls()
    await scheduler.publish(1)
    async with local_workers(store, kit(policy)) as (worker,):
        (rollout_id,) = await scheduler.open(1)
        await scheduler.grant(*await scheduler.asks(1), version=3)
        await scheduler.publish(2)
        publications = worker._admission.publications

        async def is_behind() -> bool:
            return worker._admission.gate.n_waiting == 0 and publications.newest.version == 2

        await eventually(is_behind)
        await settled()
        assert policy.requests == []

        await scheduler.publish(3)
        await ended(store, [rollout_id])
    assert await versions_of(store, rollout_id) == [3] * 5
    [entry] = await scheduler.accounts([rollout_id])
    assert (entry.account.first_version, entry.account.last_version) == (3, 3)


class Trained(Watched):
    """Stands for a server whose policy is trained meanwhile: publishes a version in the middle of its third call."""

    def __init__(self, publish: Callable[[], Any]) -> None:
        super().__init__(scripted())
        self._publish = publish

    async def complete(self, messages: Sequence[Message], **kwargs: Any) -> Completion:
        if len(self.requests) == 2:
            await self._publish()
        return await super().complete(messages, **kwargs)


async def test_a_turn_has_the_version_that_was_newest_when_it_began(store: Store, scheduler: Scheduler):
    await scheduler.publish(1)
    runners: list[Runner] = []

    async def publish() -> None:
        await scheduler.publish(2)

        async def is_seen() -> bool:
            return runners[0]._admission.publications.newest.version == 2

        await eventually(is_seen)

    async with local_workers(store, kit(Trained(publish))) as workers:
        runners += workers
        (rollout_id,) = await scheduler.open(1)
        await scheduler.grant(*await scheduler.asks(1), version=1)
        await ended(store, [rollout_id])
    assert await versions_of(store, rollout_id) == [1, 1, 1, 2, 2]
    [entry] = await scheduler.accounts([rollout_id])
    assert (entry.account.first_version, entry.account.last_version) == (1, 2)


async def test_a_pinned_rollout_keeps_its_version_while_others_go_on(store: Store, scheduler: Scheduler):
    await scheduler.publish(1)
    policy = Calls()
    async with local_workers(store, kit(policy), max_env_num_per_worker=2) as (worker,):
        pinned = await store.enqueue_rollout({"question": ""}, tag="counting", metadata={PIN_KEY: 1})
        await ended(store, [pinned.rollout_id])
        await scheduler.publish(2)
        again = await store.enqueue_rollout({"question": ""}, tag="counting", metadata={PIN_KEY: 1})
        (free,) = await scheduler.open(1)
        await scheduler.grant(*await scheduler.asks(1), version=2)
        await ended(store, [again.rollout_id, free])
        assert worker._admission.publications.newest.version == 2
    assert await versions_of(store, pinned.rollout_id) == [1] * 5
    assert await versions_of(store, again.rollout_id) == [1] * 5
    assert await versions_of(store, free) == [2] * 5


async def test_a_rollout_runs_with_the_policy_of_the_resources_it_is_pinned_to(store: Store, scheduler: Scheduler):
    """Also where the worker came later, and has never seen that version."""
    await scheduler.publish(1)
    old = await store.get_latest_resources()
    assert old is not None
    await scheduler.publish(2)
    async with local_workers(store, kit(Calls())):
        config = RolloutConfig(resources_version=old.version)
        pinned = await store.enqueue_rollout({"question": ""}, tag="counting", config=config)
        await ended(store, [pinned.rollout_id])
    assert await versions_of(store, pinned.rollout_id) == [1] * 5
    rollout = await store.get_rollout_by_id(pinned.rollout_id)
    assert rollout is not None
    assert rollout.resources_version == old.version


async def test_a_pause_holds_model_calls_and_no_deadline_runs_meanwhile(clock: FakeClock):
    policy = Calls()
    limits = StageLimits(turn_seconds=5, trajectory_seconds=8)
    async with open_store("memory://", clock=clock) as store:
        scheduler = await Scheduler.on(store)
        await scheduler.publish(1, paused=True)
        async with local_workers(store, kit(policy), clock=clock, limits=limits) as (worker,):
            (rollout_id,) = await scheduler.open(1, config=RolloutConfig(unresponsive_seconds=1000))
            await clock.advance(0)
            await scheduler.grant(*await scheduler.asks(1))
            publications = worker._admission.publications

            async def is_paused() -> bool:
                return publications.newest.paused and worker._admission.gate.n_waiting == 0

            await eventually(is_paused)
            await clock.advance(500)
            assert policy.requests == []

            await scheduler.publish(1)

            async def has_ended() -> bool:
                rollout = await store.get_rollout_by_id(rollout_id)
                return rollout is not None and rollout.status is RolloutStatus.SUCCEEDED

            await eventually(has_ended)
    assert len(policy.requests) == 5


class Stuck(CountingGame):
    """Never returns from its third step."""

    async def step(self, action: Message) -> Step:
        if self._n_steps == 2:
            await asyncio.Event().wait()
        return await super().step(action)


class Unanswering(Calls):
    """Never answers."""

    async def complete(self, messages: Sequence[Message], **_: Any) -> Completion:
        self.called.set()
        await asyncio.Event().wait()
        raise AssertionError


@pytest.mark.parametrize(
    ("tag", "limits", "stage"),
    [
        ("stuck", {"turn_seconds": 0.05}, "env.step"),
        ("stuck", {"trajectory_seconds": 0.1}, "env.step"),
        ("counting", {"turn_seconds": 0.05}, "policy.complete"),
    ],
)
async def test_what_takes_too_long_fails_the_attempt_and_names_the_limit(
    store: Store, tag: str, limits: dict[str, float], stage: str
):
    policy = Calls() if tag == "stuck" else Unanswering()
    runner = Runner(store, episodes=kit(policy, stuck=Stuck).episodes, limits=StageLimits(**limits))
    rollout = await runner.step({"question": ""}, tag=tag)
    assert rollout.failure is not None
    assert (rollout.failure.boundary, rollout.failure.stage) == (Boundary.LIMIT, stage)
    [(name, seconds)] = limits.items()
    assert f"{name} of {seconds:g} s" in rollout.failure.message


def test_a_deadline_of_nothing_is_refused():
    with pytest.raises(InvalidInput, match="trajectory_seconds is 0"):
        StageLimits(trajectory_seconds=0)


async def test_cancelling_an_attempt_that_waits_frees_its_slot_at_once(store: Store, scheduler: Scheduler):
    policy = Calls()
    async with no_leaks(), local_workers(store, kit(policy)) as (worker,):
        first, second = await scheduler.open(2)
        [ask] = await scheduler.asks(1)
        assert ask.rollout_id == first

        await store.cancel_rollouts([first])

        async with asyncio.timeout(10):
            [ask] = await scheduler.asks(1)
        assert ask.rollout_id == second
        assert worker._admission.gate.n_waiting == 1
        await scheduler.grant(ask)
        await ended(store, [second])
    [entry] = await scheduler.accounts([first])
    assert (entry.account.n_turns, entry.account.completion_tokens) == (0, 0)
    assert entry.account.held_seconds > 0


async def test_a_worker_that_drains_hands_back_what_waits_for_leave(store: Store, scheduler: Scheduler):
    async with asyncio.timeout(30), local_workers(store, kit(Calls()), grace_seconds=1000):
        (rollout_id,) = await scheduler.open(1)
        await scheduler.asks(1)
    rollout = await store.get_rollout_by_id(rollout_id)
    assert rollout is not None
    assert (rollout.status, rollout.n_failures) == (RolloutStatus.REQUEUING, 0)


async def test_an_account_tells_what_the_attempt_took(store: Store, scheduler: Scheduler):
    meter = Meter()
    async with local_workers(store, kit(MeteredPolicy(scripted(), meter), guessing=GuessingGame)):
        (rollout_id,) = await scheduler.open(1, tag="guessing")
        await scheduler.grant(*await scheduler.asks(1))
        await ended(store, [rollout_id])
    [entry] = await scheduler.accounts([rollout_id])
    account = entry.account
    n_turns = len(await store.query_events(rollout_id, kind=EventKind.TURN))
    assert (account.n_turns, account.n_steps) == (n_turns, n_turns)
    assert account.completion_tokens == meter.reading.completion_tokens > 0
    assert account.prompt_tokens == meter.reading.prompt_tokens
    assert account.metrics == {"guesses": float(n_turns)}
    assert account.n_bytes > 100 * n_turns
    assert 0 < account.held_seconds < 20


class Fragile(CountingGame):
    """Breaks in its third step."""

    async def step(self, action: Message) -> Step:
        if self._n_steps == 2:
            raise RuntimeError("it broke")
        return await super().step(action)


@asynccontextmanager
async def granting(scheduler: Scheduler) -> AsyncIterator[None]:
    duty = asyncio.create_task(scheduler.grant_all())
    try:
        yield
    finally:
        duty.cancel()
        await asyncio.wait([duty])


class Halting(Watched):
    """Does not answer the third call of some rollouts, and tells which rollout asks for it."""

    def __init__(self, inner: ChatPolicy, halted: Sequence[str], tell: Callable[[str], None]) -> None:
        super().__init__(inner)
        self._halted = halted
        self._tell = tell

    async def complete(self, messages: Sequence[Message], *, session: str = "", **kwargs: Any) -> Completion:
        if session in self._halted and self.sessions.count(session) == 2:
            self._tell(session)
            await asyncio.Event().wait()
        return await super().complete(messages, session=session, **kwargs)


async def test_the_tokens_of_all_accounts_are_those_that_were_generated(store: Store, scheduler: Scheduler):
    """With members that succeed, fail and are retried, are cancelled in the middle, time out, and are handed back."""
    cancels: asyncio.Queue[str] = asyncio.Queue()
    halted: list[str] = []
    hunted: list[str] = []
    begun: Counter[str] = Counter()
    meter = Meter()
    policy = MeteredPolicy(Halting(scripted(latency=0.004), halted, cancels.put_nowait), meter)

    async def hunting(task: Any, ctx: Any) -> Any:
        begun[ctx.rollout_id] += 1
        if ctx.rollout_id in hunted:
            asyncio.get_running_loop().call_later(0.005 + 0.002 * len(begun), cancels.put_nowait, ctx.rollout_id)
        return await ChatAgent()(task, ctx)

    async def cancel(n: int) -> None:
        for _ in range(n):
            await store.cancel_rollouts([await cancels.get()])

    async with no_leaks(), granting(scheduler):
        succeeding = await scheduler.open(6)
        halted += await scheduler.open(6)
        hunted += await scheduler.open(8)
        failing = await scheduler.open(4, tag="fragile", config=RolloutConfig(max_attempts=3))
        failing += await scheduler.open(4, tag="stuck", config=RolloutConfig(max_attempts=2, timeout_seconds=0.03))
        ids = [*succeeding, *halted, *hunted, *failing]
        made = kit(policy, hunting, fragile=Fragile, stuck=Stuck)
        async with local_workers(store, made, n_workers=2, max_env_num_per_worker=8), asyncio.TaskGroup() as group:
            group.create_task(cancel(len(halted) + len(hunted)))
            group.create_task(store.wait_for_rollouts(ids, timeout=30))
        left = await scheduler.open(3)
        async with local_workers(store, made, max_env_num_per_worker=8, grace_seconds=0.01):
            await eventually(lambda: _all_begun(begun, left))
        await store.cancel_rollouts(left)

    status = {rollout.rollout_id: rollout.status for rollout in await store.query_rollouts(rollout_ids=ids)}
    assert {status[rollout_id] for rollout_id in succeeding} == {RolloutStatus.SUCCEEDED}
    assert {status[rollout_id] for rollout_id in halted} == {RolloutStatus.CANCELLED}
    assert {status[rollout_id] for rollout_id in failing} == {RolloutStatus.FAILED}
    accounts = await scheduler.accounts([*ids, *left])
    assert {entry.account.n_turns for entry in accounts if entry.rollout_id in halted} == {2}
    assert len(accounts) == sum([(await store.query_attempts(rollout_id)).total for rollout_id in [*ids, *left]])
    total = sum(entry.account.completion_tokens for entry in accounts)
    assert total == meter.reading.completion_tokens > 0
    assert (await store.tally(LEDGER)).generated == total
    assert sum(entry.account.n_turns for entry in accounts) == meter.reading.calls


async def test_an_attempt_that_was_cut_off_from_the_store_leaves_its_account_when_that_is_back(tmp_path: Path):
    class OneAnswer(Unanswering):
        """Answers once."""

        async def complete(self, messages: Sequence[Message], **kwargs: Any) -> Completion:
            if not self.requests:
                return await Watched.complete(self, messages, **kwargs)
            return await super().complete(messages, **kwargs)

    meter, policy = Meter(), OneAnswer()
    async with open_store(f"sqlite:///{tmp_path / 'runs.db'}") as store:
        scheduler = await Scheduler.on(store)
        async with granting(scheduler), local_workers(store, kit(MeteredPolicy(policy, meter))) as (worker,):
            (rollout_id,) = await scheduler.open(1, config=RolloutConfig(unresponsive_seconds=0.9, max_attempts=1))
            await policy.called.wait()
            with closing(sqlite3.connect(tmp_path / "runs.db", isolation_level=None)) as other_process:
                other_process.execute("BEGIN IMMEDIATE")
                await eventually(lambda: _nothing_runs(worker))
                other_process.execute("ROLLBACK")

            async def is_told() -> bool:
                return len(await scheduler.accounts([rollout_id])) == 1

            await eventually(is_told)
        [entry] = await scheduler.accounts([rollout_id])
    assert entry.account.n_turns == 1
    assert entry.account.completion_tokens == meter.reading.completion_tokens > 0


async def _nothing_runs(worker: Runner) -> bool:
    return not worker._running


async def test_an_agent_that_does_not_stop_asks_nothing_more_of_the_model(store: Store, scheduler: Scheduler):
    meter, refused = Meter(), asyncio.Event()

    async def stubborn(task: Any, ctx: Any) -> None:
        while True:
            try:
                await ctx.policy.complete(ctx.opening)
            except asyncio.CancelledError:
                continue
            except AgentError:
                refused.set()
                raise

    policy = MeteredPolicy(scripted(latency=0.005), meter)
    limits = StageLimits(cancel_seconds=0.05, close_seconds=0.05)
    async with granting(scheduler), local_workers(store, kit(policy, stubborn), limits=limits):
        (rollout_id,) = await scheduler.open(1)

        async def has_asked() -> bool:
            return meter.reading.calls > 3

        await eventually(has_asked)
        await store.cancel_rollouts([rollout_id])
        async with asyncio.timeout(30):
            await refused.wait()

        async def is_told() -> bool:
            return len(await scheduler.accounts([rollout_id])) == 1

        await eventually(is_told)
    [entry] = await scheduler.accounts([rollout_id])
    assert entry.account.completion_tokens == meter.reading.completion_tokens


async def _all_begun(begun: Counter[str], ids: Sequence[str]) -> bool:
    return all(begun[rollout_id] for rollout_id in ids)


def spec_of(store: Store, **limits: float) -> WorkerSpec:
    episodes = EpisodeSpec(
        policy=PolicySpec(model="builtin:solver"),
        environments={
            "lake": EnvironmentSpec(name="FrozenLake", system_template="{system}", turn_template="Now:\n{observation}")
        },
    )
    return WorkerSpec(
        store_url=store.url, episodes=episodes, config=RunnerConfig(limits=StageLimits(**limits)), tells_claims=False
    )


async def test_after_a_worker_process_was_killed_while_it_waited_another_attempt_asks_anew(tmp_path: Path):
    async with open_store(f"sqlite:///{tmp_path / 'runs.db'}") as store:
        scheduler = await Scheduler.on(store)
        (rollout_id,) = await scheduler.open(1, tag="lake", config=RolloutConfig(max_attempts=2))
        spec = spec_of(store, turn_seconds=60)
        first = await ProcessWorker.start(spec, lambda _: None)
        [lost] = await scheduler.asks(1)
        first.kill()
        assert (await first.wait()).failed
        await store.revoke_leases(first.worker_id, reason="it was killed")

        second = await ProcessWorker.start(spec, lambda _: None)
        try:
            [ask] = await scheduler.asks(1)
            assert ask.rollout_id == lost.rollout_id == rollout_id
            assert ask.attempt_id != lost.attempt_id
            await scheduler.publish(2)
            await scheduler.grant(ask, version=2)
            (rollout,) = await ended(store, [rollout_id])
        finally:
            second.drain()
            await second.wait()
        assert rollout.status is RolloutStatus.SUCCEEDED
        assert set(await versions_of(store, rollout_id)) == {2}
        (entry,) = await scheduler.accounts([rollout_id])
        assert (entry.attempt_id, entry.account.first_version) == (ask.attempt_id, 2)
        (opening, *_) = await store.query_events(rollout_id, kind=EventKind.STEP)
        assert opening.data["observation"][1]["content"].startswith("Now:\nTurn 1:")


async def test_a_template_with_an_unknown_placeholder_is_refused_before_a_run():
    environment = EnvironmentSpec(name="FrozenLake", turn_template="{grid}")
    with pytest.raises(InvalidInput, match=r"turn_template has \{grid\}"):
        await check_episodes(EpisodeSpec(policy=PolicySpec(model="builtin:solver"), environments={"lake": environment}))


async def test_workers_beside_a_block_share_its_rollouts_and_are_gone_when_it_ends(store: Store):
    async with no_leaks():
        async with local_workers(store, kit(scripted()), n_workers=3, max_env_num_per_worker=2) as workers:
            assert len({worker.worker_id for worker in workers}) == 3
            ids = [(await store.enqueue_rollout({"question": ""}, tag="counting")).rollout_id for _ in range(12)]
            rollouts = await ended(store, ids)
        assert {rollout.status for rollout in rollouts} == {RolloutStatus.SUCCEEDED}
        assert sum(worker.n_run for worker in workers) == 12


async def test_what_stops_a_worker_ends_the_block_and_is_raised(store: Store):
    class Unusable(Watched):
        async def complete(self, messages: Sequence[Message], **_: Any) -> Completion:
            raise PolicyUnusable("wrong key")

    await store.enqueue_rollout({"question": ""}, tag="counting")
    with pytest.raises(PolicyUnusable, match="wrong key"):
        async with no_leaks(), asyncio.timeout(30), local_workers(store, kit(Unusable(scripted())), n_workers=2):
            await asyncio.Event().wait()


async def test_a_block_that_fails_hands_back_at_once_what_its_workers_run(store: Store):
    policy = Unanswering()
    rollout = await store.enqueue_rollout({"question": ""}, tag="counting")

    async def failing() -> None:
        async with no_leaks(), asyncio.timeout(30), local_workers(store, kit(policy), grace_seconds=1000):
            await policy.called.wait()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await failing()
    found = await store.get_rollout_by_id(rollout.rollout_id)
    assert found is not None
    assert found.status is RolloutStatus.REQUEUING


async def test_there_is_no_block_with_no_workers(store: Store):
    with pytest.raises(InvalidInput, match="n_workers is 0"):
        async with local_workers(store, kit(scripted()), n_workers=0):
            pass
