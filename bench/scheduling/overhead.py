"""What the scheduler itself costs: processor time of its own code for each turn, with many trajectories live.

Real time; only the modelled seconds of environments, engine and trainer are a hundredth of what they are elsewhere.
Everything that runs on behalf of the scheduler counts: its tasks, those they start, and their calls to the store.
"""

import asyncio
import gc
import time
from collections.abc import Callable, Coroutine, Generator, Sequence
from dataclasses import replace
from typing import Any, ClassVar, TypeVar

from outrider.core.clock import SystemClock
from outrider.store import open_store
from outrider.train.config import EnvManagerConfig, SchedulerConfig
from outrider.train.scheduler import RolloutScheduler
from scheduling.ours import Ours
from scheduling.pool import Pool
from scheduling.workload import GROUP_SIZE, WORKLOADS, bound
from scheduling.world import Trajectory, World

T = TypeVar("T")

TIME_SCALE = 0.01
SPEED = 100.0
"""The engine's: some 4,000 turns a second in a hundredth of the time, which is about what one process can follow."""
BATCHES_LIVE = 5


class Meter:
    """Sums the processor time of the coroutines it is given, step by step, and of all tasks that they start."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self, coroutine: Coroutine[Any, Any, T]) -> "Metered[T]":
        return Metered(coroutine, self)


class Collector:
    """The time that Python's garbage collector takes, which goes by all that is live, the model's part included.

    It falls on whoever allocates at that moment, so it is taken out there and told by itself.
    """

    def __init__(self) -> None:
        self.seconds = self.seconds_metered = 0.0
        self._began = 0.0

    def __call__(self, phase: str, _info: object) -> None:
        if phase == "start":
            self._began = time.thread_time()
            return
        took = time.thread_time() - self._began
        self.seconds += took
        if Metered.current is not None:
            Metered.current.seconds -= took
            self.seconds_metered += took


class Metered(Coroutine[Any, Any, T]):
    """A coroutine each step of which is timed. One that runs inside another one's step counts there."""

    current: ClassVar[Meter | None] = None

    def __init__(self, inner: Coroutine[Any, Any, T], meter: Meter) -> None:
        self._inner = inner
        self._meter = meter

    def send(self, value: Any) -> Any:
        return self._timed(self._inner.send, value)

    def throw(self, *error: Any) -> Any:
        return self._timed(self._inner.throw, *error)

    def close(self) -> None:
        self._inner.close()

    def __await__(self) -> Generator[Any, Any, T]:
        return self

    def __iter__(self) -> "Metered[T]":
        return self

    def __next__(self) -> Any:
        return self.send(None)

    def _timed(self, step: Callable[..., Any], *arguments: Any) -> Any:
        if Metered.current is not None:
            return step(*arguments)
        Metered.current = self._meter
        began = time.thread_time()
        try:
            return step(*arguments)
        finally:
            self._meter.seconds += time.thread_time() - began
            Metered.current = None


def metered_task(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> "asyncio.Task[Any]":
    """A task factory: what metered code starts is metered too."""
    meter = Metered.current
    return asyncio.Task(coroutine if meter is None else meter(coroutine), loop=loop, **options)


class MeteredOurs(Ours):
    """The trainer's calls are metered as well: batches are read from the store in them."""

    def __init__(self, scheduler: RolloutScheduler, pool: Pool, world: World, meter: Meter) -> None:
        super().__init__(scheduler, pool, world)
        self._meter = meter

    async def get_batch(self) -> Sequence[Trajectory]:
        return await self._meter(super().get_batch())

    async def publish(self) -> None:
        await self._meter(super().publish())


async def overhead(n_live: int, n_steps: int) -> dict[str, float]:
    """Processor microseconds of the scheduler and of the whole process for each turn, with so many live."""
    workload = replace(WORKLOADS["heavy"], scales=(("heavy", TIME_SCALE),))
    n_groups = n_live // GROUP_SIZE // BATCHES_LIVE
    config = SchedulerConfig(
        train_env_manager=EnvManagerConfig(num_env_groups=n_live // GROUP_SIZE, group_size=GROUP_SIZE, tags=("heavy",)),
        rollout_batch_size=n_groups * GROUP_SIZE,
        async_generation_ratio=BATCHES_LIVE,
        max_staleness=2 * BATCHES_LIVE,
    )
    ideal = n_groups * GROUP_SIZE / bound(workload, slots=n_live, speed=SPEED).by_engine
    deciding, delivering, clock = Meter(), Meter(), SystemClock()
    asyncio.get_running_loop().set_task_factory(metered_task)
    collector = Collector()
    gc.callbacks.append(collector)
    async with open_store("memory://", clock=clock) as store:
        scheduler = RolloutScheduler(store, config, clock=clock)
        await deciding(scheduler.start())
        world = World(workload, speed=SPEED)
        pool = Pool(world, store, clock, n_slots=n_live, step_limit=config.turn_seconds)
        wall, cpu = time.perf_counter(), time.process_time()
        try:
            async with asyncio.TaskGroup() as group:
                working = group.create_task(pool.run())
                trainer = MeteredOurs(scheduler, pool, world, delivering)
                await world.train(trainer, n_steps, train_seconds=0.7 * ideal, sync_seconds=0.02)
                working.cancel()
        finally:
            gc.callbacks.remove(collector)
            await scheduler.stop()
    own = deciding.seconds + delivering.seconds
    seconds = {
        "us_per_event": own,
        "us_per_event_delivering": delivering.seconds,
        "us_per_event_with_collector": own + collector.seconds_metered,
        "us_per_event_process": time.process_time() - cpu,
        "us_per_event_process_collector": collector.seconds,
    }
    counts = {"live": pool.n_live_most, "turns": pool.n_turns, "wall_seconds": time.perf_counter() - wall}
    return {name: value / pool.n_turns * 1e6 for name, value in seconds.items()} | counts
