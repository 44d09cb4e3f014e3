"""No state is for ever: with all processes dead but one, time or that process leads out of each that is not an end.

Each table names every state there is, so that a new one cannot be added without a way out of it.
"""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from machine_journal import STEPS_TO, owner_of
from outrider import Runner, open_store
from outrider.agent import Context
from outrider.core.ledger import LEDGER_KEY, PIN_KEY, GroupState, LedgerWrite, NewGroup
from outrider.core.machine import MachineState
from outrider.core.published import POLICY_KEY
from outrider.core.rollout import AttemptedRollout, Rollout, RolloutConfig, RolloutRequest
from outrider.core.status import FINAL, AttemptStatus, RolloutStatus, WorkerStatus
from outrider.policy.scripted.policy import ScriptedPolicy, ScriptOptions
from outrider.pool import MachinePool, PoolConfig
from outrider.runner import StageLimits
from outrider.store import Revoked, Store
from outrider.testing import FakeClock, eventually
from outrider.testing.fake_machines import FakeProvider
from outrider.train.config import EnvManagerConfig, SchedulerConfig
from outrider.train.scheduler import RolloutScheduler
from store_moves import claim, finish, the, until

LEASE = RolloutConfig(unresponsive_seconds=5.0)


async def queuing(store: Store) -> Rollout:
    return await store.enqueue_rollout("task", config=LEASE)


async def preparing(store: Store) -> AttemptedRollout:
    await queuing(store)
    return await claim(store, "dead")


async def running(store: Store) -> Rollout:
    claimed = await preparing(store)
    await store.update_attempt(claimed.rollout_id, claimed.attempt.attempt_id, status="running")
    return claimed


async def requeuing(store: Store) -> Rollout:
    return await finish(store, await preparing(store), "failed")


async def by_a_worker(store: Store, rollout: Rollout, clock: FakeClock) -> RolloutStatus:
    """The one process left is a worker."""
    await in_time(clock, Runner(store, solve, worker_id="alive", clock=clock, max_rollouts=1).iter())
    return (await the(store, rollout.rollout_id)).status


async def set_aside(store: Store) -> Rollout:
    """One that may have killed its worker: only who looks for such rollouts claims it."""
    rollout, _ = await preparing(store), await preparing(store)
    await store.revoke_leases("dead", reason="killed", how=Revoked.ISOLATED)
    assert await store.dequeue_rollout(worker_id="alive") is None
    return rollout


async def solve(task: object, ctx: object) -> float:
    return 1.0


async def in_time(clock: FakeClock, working: Awaitable[object]) -> None:
    """See it to its end; time passes meanwhile."""
    ends_at = clock.monotonic() + 30.0
    task = asyncio.ensure_future(working)
    while not task.done():
        assert clock.monotonic() < ends_at
        await clock.advance(0.5)
        await asyncio.wait([task], timeout=0.02)
    task.result()


async def by_time(store: Store, rollout: Rollout, clock: FakeClock) -> RolloutStatus:
    """The one process left merely has the store open."""
    before = (await the(store, rollout.rollout_id)).status
    await clock.advance(6.0)
    return (await until(store, rollout.rollout_id, lambda rollout: rollout.status is not before)).status


Way = Callable[[Store, Rollout, FakeClock], Awaitable[RolloutStatus]]
Into = Callable[[Store], Awaitable[Rollout]]

ROLLOUTS: dict[RolloutStatus, tuple[Into, Way, RolloutStatus]] = {
    RolloutStatus.QUEUING: (queuing, by_a_worker, RolloutStatus.SUCCEEDED),
    RolloutStatus.REQUEUING: (requeuing, by_a_worker, RolloutStatus.SUCCEEDED),
    RolloutStatus.PREPARING: (preparing, by_time, RolloutStatus.REQUEUING),
    RolloutStatus.RUNNING: (running, by_time, RolloutStatus.REQUEUING),
}


def test_every_state_of_a_rollout_or_attempt_that_is_no_end_has_a_way_out():
    assert set(ROLLOUTS) == set(RolloutStatus) - FINAL
    assert {status for status in AttemptStatus if status.is_live} <= {AttemptStatus(s) for s in ROLLOUTS if s.is_live}


@pytest.mark.parametrize("status", ROLLOUTS)
async def test_a_rollout_leaves_every_state_that_is_no_end(store: Store, clock: FakeClock, status: RolloutStatus):
    into, way, after = ROLLOUTS[status]
    rollout = await into(store)
    assert (await the(store, rollout.rollout_id)).status is status
    assert await way(store, rollout, clock) is after


async def test_a_worker_in_a_process_of_the_users_finds_what_was_set_aside(store: Store, clock: FakeClock):
    rollout = await set_aside(store)
    assert (await the(store, rollout.rollout_id)).status is RolloutStatus.REQUEUING
    await in_time(clock, Runner(store, solve, worker_id="alive", clock=clock, max_rollouts=2).iter())
    assert {one.status for one in await store.query_rollouts()} == {RolloutStatus.SUCCEEDED}


async def test_a_member_that_waits_for_the_leave_of_a_dead_trainer_goes_back(store: Store, clock: FakeClock):
    member = RolloutRequest(
        input="task", rollout_id="member", group_id="g", metadata={LEDGER_KEY: "train"}, config=LEASE
    )
    group = NewGroup(group_id="g", number=0, tag="walk", seed=0, size=1, members=(member,))
    await store.write_ledger(await store.open_ledger("train"), LedgerWrite(opened=(group,)))

    limits = StageLimits(leave_seconds=2.0)
    await in_time(clock, Runner(store, solve, worker_id="alive", clock=clock, limits=limits, max_rollouts=1).iter())

    left = await the(store, "member")
    assert (left.status, left.n_attempts, left.n_failures) == (RolloutStatus.REQUEUING, 1, 0)


async def test_an_attempt_in_the_pause_of_a_dead_trainer_goes_back(store: Store, clock: FakeClock):
    await store.put_resources({POLICY_KEY: {"version": 1, "paused": True}})
    rollout = await store.enqueue_rollout("task", metadata={PIN_KEY: 1}, config=LEASE)

    async def calls_a_model(task: object, ctx: Context) -> float:
        await ctx.lender.lend(ScriptedPolicy({}, name="builtin:none", options=ScriptOptions()), None, pin=1, seconds=60)
        return 1.0

    limits = StageLimits(leave_seconds=2.0)
    worker = Runner(store, calls_a_model, worker_id="alive", clock=clock, limits=limits, max_rollouts=1)
    await in_time(clock, worker.iter())

    left = await the(store, rollout.rollout_id)
    assert (left.status, left.n_attempts, left.n_failures) == (RolloutStatus.REQUEUING, 1, 0), left.failure


async def test_a_worker_that_is_heard_of_no_more_becomes_unknown(store: Store, clock: FakeClock):
    await preparing(store)
    assert [worker.status for worker in await store.query_workers()] == [WorkerStatus.BUSY]

    async def is_unknown() -> bool:
        return [worker.status for worker in await store.query_workers()] == [WorkerStatus.UNKNOWN]

    await clock.advance(6.0)
    await clock.advance(600.0)
    await eventually(is_unknown)


@pytest.mark.parametrize("state", [state for state in MachineState if state.exists])
async def test_a_machine_leaves_every_state_with_the_next_owner_of_its_pool(store: Store, state: MachineState):
    host = FakeProvider()
    made = await host.create("m1", "a process that is dead")
    await made.write_file("left", b"behind")
    dead = await owner_of(store)
    await dead.go("m1", *STEPS_TO[state], address=made.address)
    async with MachinePool(host, PoolConfig(name="p", n_machines=1, quarantine_seconds=0.0), journal=store) as pool:
        await pool.wait_until_ready(deadline=30)
        assert not any(machine.is_dirty for machine in host.machines.values())
    assert host.machines == {}
    assert {record.state for record in await store.query_machines()} == {MachineState.GONE}


CONFIG = SchedulerConfig(
    train_env_manager=EnvManagerConfig(num_env_groups=2, group_size=2, tags=("walk",)),
    rollout_batch_size=2,
    async_generation_ratio=1.0,
)


async def opened(store: Store, dead: RolloutScheduler) -> None: ...


async def complete(store: Store, dead: RolloutScheduler) -> None:
    await play(store, 4)


async def delivered(store: Store, dead: RolloutScheduler) -> None:
    await asyncio.gather(dead.get_batch(timeout=30), play(store, 4))


GROUPS = {GroupState.OPENED: opened, GroupState.COMPLETE: complete, GroupState.DELIVERED: delivered}


async def play(store: Store, n_rollouts: int) -> None:
    """A worker that plays so many members, asking for leave first as each of them must."""

    await Runner(store, solve, max_rollouts=n_rollouts, max_env_num_per_worker=n_rollouts).iter()


def test_every_state_of_a_group_that_is_no_end_has_a_way_out():
    assert set(GROUPS) == set(GroupState) - {GroupState.ACKNOWLEDGED, GroupState.DROPPED}


@pytest.mark.parametrize("state", GROUPS)
async def test_a_group_leaves_every_state_with_the_next_trainer(url: str, state: GroupState):
    async with open_store(url) as store:
        dead = RolloutScheduler(store, CONFIG)
        await dead.start()
        await GROUPS[state](store, dead)

        async def is_reached() -> bool:
            return (await store.query_groups("train", states=[state], limit=0)).total > 0

        await eventually(is_reached)
        (first, *_) = (await store.query_groups("train", states=[state])).items
        async with RolloutScheduler(store, CONFIG) as alive:
            batch = asyncio.ensure_future(alive.get_batch(timeout=30))
            if state is GroupState.OPENED:
                await play(store, 4)
            await batch
            await alive.publish()
            await alive.stop(abort=True)
        (group,) = (await store.query_groups("train", group_ids=[first.group_id])).items
        assert group.state in {GroupState.ACKNOWLEDGED, GroupState.DROPPED}
        await dead.stop()
