"""The real scheduler in the modelled world: `RolloutScheduler`, the memory store, and a worker that only takes time."""

import asyncio
from collections.abc import Sequence

from outrider.core.ledger import GroupState
from outrider.store import Store, open_store
from outrider.testing.clock import START
from outrider.testing.virtual_time import LoopClock
from outrider.train.config import UNBOUNDED, EnvManagerConfig, SchedulerConfig
from outrider.train.scheduler import RolloutScheduler
from scheduling.pool import Pool
from scheduling.workload import BATCH, BATCH_GROUPS, GROUP_SIZE, SLOTS, Workload
from scheduling.world import Trajectory, World

LEDGER = "train"


def config_of(workload: Workload, max_staleness: int | None, ahead: float | None = None) -> SchedulerConfig:
    """What a user would write for this workload; about half the bound ahead, as the configuration advises."""
    if ahead is None:
        ahead = 2.0 if max_staleness is None else min(max_staleness, (max_staleness + 1) / 2)
    return SchedulerConfig(
        train_env_manager=EnvManagerConfig(num_env_groups=BATCH_GROUPS, group_size=GROUP_SIZE, tags=workload.tags),
        rollout_batch_size=BATCH,
        async_generation_ratio=ahead,
        max_staleness=UNBOUNDED if max_staleness is None else max_staleness,
        filters=("zero_variance",) if workload.filtered else (),
    )


class Ours:
    """The trainer's side of it."""

    def __init__(self, scheduler: RolloutScheduler, pool: Pool, world: World) -> None:
        self._scheduler = scheduler
        self._pool = pool
        self._world = world

    async def get_batch(self) -> Sequence[Trajectory]:
        batch = await self._scheduler.get_batch()
        assert batch.version == self._world.version
        return [self._pool.succeeded[one.rollout_id] for one in batch.batch.trajectories]

    def gate_closed(self) -> None:
        """Calls under way are kept."""

    async def publish(self) -> None:
        version = await self._scheduler.publish()
        await self._pool.publications.reached(version)
        self._world.version = version


async def run_ours(world: World, config: SchedulerConfig, n_steps: int, *, n_slots: int = SLOTS) -> None:
    """So many steps of training, and then what was not trained on is counted as waste."""
    clock = LoopClock()
    async with (
        open_store("memory://", clock=clock) as store,
        RolloutScheduler(store, config, name=LEDGER, clock=clock) as scheduler,
        asyncio.TaskGroup() as group,
    ):
        pool = Pool(world, store, clock, n_slots=n_slots, step_limit=config.turn_seconds)
        working = group.create_task(pool.run(), name="pool")
        await world.train(Ours(scheduler, pool, world), n_steps)
        working.cancel()
        await _count_waste(store, world, pool)


async def _count_waste(store: Store, world: World, pool: Pool) -> None:
    """What ended well and is not in a batch: the filter dropped its group, or the group was full without it."""
    closed = [state for state in GroupState if state.is_closed]
    entries = {entry.group_id: entry for entry in await store.query_groups(LEDGER, states=closed)}
    rollouts = await store.query_rollouts(rollout_ids=list(pool.succeeded))
    for rollout in rollouts:
        entry = entries.get(rollout.group_id or "")
        if entry is not None and rollout.rollout_id not in entry.members:
            one = pool.succeeded[rollout.rollout_id]
            found = world.record.filtered if world.workload.is_filtered(one.group) else world.record.waste
            found.append((entry.moved_at.timestamp() - START, one.work_done))
