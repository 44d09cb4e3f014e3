"""Whole systems in one process on virtual time, for schedules that a seed chooses.

Workers, trainers and pools freeze, die and are started again, over a network that loses calls and answers.

Each world ends by checking what must hold; it raises if that does not.
"""

import asyncio
import random
from collections import Counter
from contextlib import suppress
from typing import Any

from outrider import Context, RolloutConfig, RolloutRequest, Runner, Store, open_store
from outrider.core.errors import OutriderError, PoolLost, StoreUnavailable
from outrider.core.status import LIVE, QUEUED, RolloutStatus
from outrider.testing import LoopClock
from outrider.testing.fake_machines import MemoryJournal
from outrider.testing.history import MemoryRecorder, calls_of, check, observe
from outrider.testing.unreliable import UnreliableStore
from outrider.train.scheduler import RolloutScheduler
from pool_world import World
from store_invariants import check_invariants
from training import Lab, Model, config_of

N_WORKERS = 3
LIMIT_SECONDS = 100_000.0


async def persistent(call: Any, *args: Any, **kwargs: Any) -> Any:
    """Repeat a call that may be repeated until it is answered."""
    while True:
        try:
            return await call(*args, **kwargs)
        except StoreUnavailable:
            await asyncio.sleep(0.1)


class WorkerProcess:
    """A worker as a process that can be frozen and killed; its supervisor may notice, or its leases expire."""

    def __init__(self, name: str, store: Store, recorder: MemoryRecorder, rng: random.Random) -> None:
        self.worker_id = name
        self._connection = UnreliableStore(store, rng)
        self._runner = Runner(
            recorder.record(self._connection.as_store),
            misbehave,
            worker_id=name,
            clock=LoopClock(),
            max_env_num_per_worker=rng.choice((1, 2, 4)),
            heartbeat_interval=1.0,
            poll_interval=2.0,
            grace_seconds=rng.choice((0.0, 2.0)),
        )
        self._task = asyncio.create_task(self._runner.iter(), name=f"process {name}")

    def freeze(self, seconds: float) -> None:
        self._connection.freeze(seconds)

    def stop(self) -> None:
        self._runner.stop()

    async def kill(self) -> None:
        self._connection.die()
        self._task.cancel()
        await self.ended()

    async def ended(self) -> None:
        await asyncio.wait([self._task])
        with suppress(asyncio.CancelledError):
            self._task.result()


async def misbehave(task: Any, ctx: Context) -> float:
    """What an agent does is said by its task and the number of its attempt."""
    rng = random.Random(f"{task['seed']}/{ctx.rollout.n_attempts}")
    for _ in range(rng.choice((0, 1, 3))):
        await asyncio.sleep(rng.expovariate(2.0))
        ctx.log("still here")
    if rng.random() < 0.1:
        raise RuntimeError("the agent has given up")
    return rng.random()


async def workers(seed: int) -> None:
    """Producers, workers, cancellations, freezes and deaths on one memory store."""
    rng = random.Random(seed)
    recorder = MemoryRecorder()
    async with open_store("memory://", clock=LoopClock()) as store:
        client = recorder.record(UnreliableStore(store, rng).as_store)
        ids = await produce(client, rng)
        processes = [WorkerProcess(f"w{i}", store, recorder, rng) for i in range(N_WORKERS)]
        numbers = iter(range(N_WORKERS, 10_000))
        for _ in range(rng.randrange(2, 8)):
            await asyncio.sleep(rng.expovariate(1.0))
            place = rng.randrange(N_WORKERS)
            victim = processes[place]
            match rng.choice(("kill", "kill", "freeze", "stop", "cancel")):
                case "kill":
                    await victim.kill()
                    if rng.random() < 0.5:
                        await persistent(client.revoke_leases, victim.worker_id, reason="it died")
                    processes[place] = WorkerProcess(f"w{next(numbers)}", store, recorder, rng)
                case "freeze":
                    victim.freeze(rng.uniform(0.0, 6.0))
                case "stop":
                    victim.stop()
                    await victim.ended()
                    processes[place] = WorkerProcess(f"w{next(numbers)}", store, recorder, rng)
                case "cancel":
                    await persistent(client.cancel_rollouts, [rng.choice(ids)])
        ended = await persistent(client.wait_for_rollouts, ids, timeout=1000.0)
        assert len(ended) == len(ids), "not everything came to an end"
        for process in processes:
            process.stop()
            await process.ended()
        await observe(recorder.record(store))
        await check_invariants(store)
    check(calls_of(recorder.lines))


async def produce(client: Store, rng: random.Random) -> list[str]:
    ids = [f"r{i}" for i in range(rng.randrange(4, 16))]
    for rollout_id in ids:
        config = RolloutConfig(
            unresponsive_seconds=rng.choice((3.0, 5.0)),
            timeout_seconds=rng.choice((None, None, 4.0)),
            max_attempts=rng.choice((1, 3, 10)),
        )
        request = RolloutRequest(
            input={"seed": f"{rng.random()}"}, rollout_id=rollout_id, priority=rng.randrange(3), config=config
        )
        await persistent(client.enqueue_many_rollouts, [request])
    return ids


BOUND = 2
N_BATCHES = 3


async def training(seed: int) -> None:
    """A scheduler that is killed and taken over while its workers go on, all over a network that loses things."""
    rng = random.Random(seed)
    recorder = MemoryRecorder()
    clock = LoopClock()
    ratio = rng.choice((0.0, 0.5, 1.0, 2.0))
    config = config_of(n_groups=4, redundancy=rng.choice((0, 1)), async_generation_ratio=ratio, max_staleness=BOUND)
    async with open_store("memory://", clock=clock) as store:
        model = Model(clock, latency=0.05)
        lab = Lab(store=recorder.record(UnreliableStore(store, rng).as_store), clock=clock, model=model)
        async with lab.workers(n_workers=2, slots=rng.choice((2, 5)), heartbeat_interval=1.0):
            version = 0
            while version < N_BATCHES:
                connection = UnreliableStore(store, rng)
                life = asyncio.ensure_future(_train(recorder.record(connection.as_store), config, clock))
                await asyncio.wait([life], timeout=rng.choice((2.0, 20.0, 1000.0)))
                if not life.done():
                    connection.die()
                    life.cancel()
                    await asyncio.wait([life])
                with suppress(asyncio.CancelledError, StoreUnavailable):
                    version = life.result()
            async with RolloutScheduler(store, config, clock=clock) as last:
                await last.stop(abort=True)
        open_ones = await store.query_rollouts(status_in=QUEUED | LIVE)
        assert not open_ones.items, "a member of a closed group is left"
        tally = await store.tally("train")
        assert tally.generated == model.n_tokens, "tokens are accounted for to the last one"
        await check_trained(store)
        await observe(recorder.record(store))
    check(calls_of(recorder.lines), max_staleness=BOUND)


async def _train(store: Store, config: Any, clock: LoopClock) -> int:
    scheduler = RolloutScheduler(store, config, clock=clock)
    await persistent(scheduler.start)
    try:
        while scheduler.version < N_BATCHES:
            batch = await persistent(scheduler.get_batch, timeout=500.0)
            assert batch.batch.staleness.max() <= BOUND
            await persistent(scheduler.publish, model=f"model-{batch.number + 1}")
        return scheduler.version
    finally:
        with suppress(OutriderError):
            await scheduler.stop()


async def check_trained(store: Store) -> None:
    entries = [entry for entry in await store.query_groups("train") if entry.batch is not None]
    batches = Counter(entry.batch for entry in entries)
    assert set(batches.values()) == {2}, batches
    for entry in entries:
        rollouts = await store.query_rollouts(rollout_ids=entry.members)
        assert {rollout.status for rollout in rollouts} == {RolloutStatus.SUCCEEDED}


class StoreJournal(MemoryJournal):
    """Does everything twice, in its own way and in a store: both must do the same."""

    def __init__(self, store: Store) -> None:
        super().__init__()
        self._store = store

    async def open_pool(self, name: str) -> int:
        epoch = await super().open_pool(name)
        assert await self._store.open_pool(name) == epoch
        return epoch

    async def write_machines(self, pool: str, epoch: int, number: int, *rows: Any) -> None:
        try:
            await super().write_machines(pool, epoch, number, *rows)
        except PoolLost:
            with suppress(PoolLost):
                await self._store.write_machines(pool, epoch, number, *rows)
                raise AssertionError("the store takes what belongs to an epoch that is over") from None
            raise
        await self._store.write_machines(pool, epoch, number, *rows)


async def pool(seed: int) -> None:
    """One pool after the other on machines that fail, hang, lie and die."""
    recorder = MemoryRecorder()
    async with open_store("memory://", clock=LoopClock()) as store:
        journal = StoreJournal(recorder.record(store))
        world = World(seed, n_leases=60, journal=journal)
        await world.run()
        assert world.wrongs == Counter(), world.wrongs
        kept = {record.machine_id: record for record in await store.query_machines("pool")}
        assert kept == journal.records
    check(calls_of(recorder.lines))
