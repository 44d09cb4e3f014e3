"""A scheduler that dies at any of its calls to the store, and the next one that goes on."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from outrider.core.account import Fate
from outrider.core.errors import BatchLate, StoreUnavailable
from outrider.core.ledger import GroupEntry, GroupState
from outrider.core.status import LIVE, QUEUED, RolloutStatus
from outrider.store import Store
from outrider.train.config import SchedulerConfig
from outrider.train.delivery import RolloutBatch
from outrider.train.scheduler import RolloutScheduler
from soaking import seeds
from training import Lab, config_of, members_of, play

BOUND = 2
N_BATCHES = 6
N_STARTS = 200
"""How often a scheduler may be started again in one run before that is taken for no progress."""


class Killed(Exception):
    """The process is gone."""


class MortalStore:
    """A store as seen by a process that is killed in its n-th call, which is then carried out or not."""

    def __init__(self, store: Store, n_calls: int, *, is_carried_out: bool) -> None:
        self._store = store
        self._left = n_calls
        self._is_carried_out = is_carried_out

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        return self._mortal(found) if asyncio.iscoroutinefunction(found) else found

    def _mortal(self, call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def made(*args: Any, **kwargs: Any) -> Any:
            self._left -= 1
            if self._left > 0:
                return await call(*args, **kwargs)
            if self._left == 0 and self._is_carried_out:
                await call(*args, **kwargs)
            raise Killed

        return made


class FlakyStore(MortalStore):
    """A store that cannot be reached now and then: the call was carried out all the same, or it was not."""

    def __init__(self, store: Store, rng: random.Random) -> None:
        super().__init__(store, 0, is_carried_out=False)
        self._rng = rng

    def _mortal(self, call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def made(*args: Any, **kwargs: Any) -> Any:
            choice = self._rng.random()
            if choice < 0.05:
                raise StoreUnavailable("no route to the store")
            answer = await call(*args, **kwargs)
            if choice < 0.1:
                raise StoreUnavailable("the connection was lost before the answer came")
            return answer

        return made


class Journal:
    """What a trainer has seen of its batches."""

    def __init__(self) -> None:
        self.batches: dict[int, dict[str, tuple[str, ...]]] = {}

    def note(self, batch: RolloutBatch) -> None:
        assert batch.version == batch.number
        assert 0 <= batch.batch.staleness.min() <= batch.batch.staleness.max() <= BOUND
        assert list(self.batches.setdefault(batch.number, members_of(batch)).items()) == list(
            members_of(batch).items()
        ), "a batch comes again as it was"
        assert batch.number in (len(self.batches) - 1, len(self.batches) - 2)


async def train(scheduler: RolloutScheduler, journal: Journal, rng: random.Random) -> None:
    """Until all batches are done, with pauses and waits that are given up now and then."""
    while scheduler.version < N_BATCHES:
        asking = asyncio.ensure_future(scheduler.get_batch())
        if rng.random() < 0.2:
            await asyncio.sleep(rng.uniform(0, 0.05))
            asking.cancel()
            await asyncio.wait([asking])
        if asking.cancelled():
            continue
        journal.note(await asking)
        if rng.random() < 0.2:
            await scheduler.pause()
            await scheduler.resume()
        await scheduler.publish(model=f"model-{scheduler.version + 1}")


async def live(lab: Lab, config: SchedulerConfig, journal: Journal, rng: random.Random, n_calls: int) -> bool:
    """One life of a scheduler, which ends in its n-th call; whether it had done all before."""
    store: Any = MortalStore(lab.store, n_calls, is_carried_out=rng.random() < 0.5)
    scheduler = RolloutScheduler(store, config, clock=lab.clock)
    try:
        await scheduler.start()
        await train(scheduler, journal, rng)
    except Killed:
        return False
    finally:
        with suppress(Killed):
            await scheduler.stop()
    return True


async def check(lab: Lab, journal: Journal) -> None:
    entries = list(await lab.store.query_groups("train"))
    assert [entry.number for entry in entries] == list(range(len(entries)))
    check_batches(entries, journal)
    unfinished = await lab.store.query_rollouts(status_in=QUEUED | LIVE)
    assert not unfinished.items, "no member of a closed group is left in a queue or a slot"
    for entry in entries:
        if entry.state is GroupState.ACKNOWLEDGED:
            rollouts = await lab.store.query_rollouts(rollout_ids=entry.members)
            assert {rollout.status for rollout in rollouts} == {RolloutStatus.SUCCEEDED}
            assert {(rollout.seed, rollout.tag) for rollout in rollouts} == {(entry.seed, entry.tag)}
    tally = await lab.store.tally("train")
    assert tally.generated == lab.model.n_tokens
    assert tally.tokens[None] == 0, "each attempt has its fate"
    assert tally.tokens[Fate.TRAINED] > 0


def check_batches(entries: list[GroupEntry], journal: Journal) -> None:
    states = Counter(entry.state for entry in entries)
    assert states[GroupState.ACKNOWLEDGED] == 2 * N_BATCHES
    assert set(states) <= {GroupState.ACKNOWLEDGED, GroupState.DROPPED}
    for entry in entries:
        if entry.batch is not None:
            assert journal.batches[entry.batch][entry.group_id] == entry.members
        else:
            assert (entry.reason or "").partition(":")[0] in {"filtered", "aborted"}
    groups = Counter(group_id for batch in journal.batches.values() for group_id in batch)
    assert set(groups.values()) == {1}


@pytest.mark.parametrize("seed", seeds(10, 60))
def test_whoever_is_killed_in_any_call_nothing_is_lost_or_trained_on_twice(seed: int):
    rng = random.Random(seed)
    config = config_of(
        n_groups=5,
        redundancy=1,
        async_generation_ratio=rng.choice((0.5, 1.0, 2.0)),
        max_staleness=BOUND,
        filters=("walking:is_unlucky",),
        seed=seed,
    )

    async def main(lab: Lab) -> None:
        journal = Journal()
        async with lab.workers(n_workers=2, slots=rng.choice((2, 5, 10))):
            for _ in range(N_STARTS):
                if await live(lab, config, journal, rng, int(rng.choice((5, 20, 60)) * rng.uniform(0.2, 2)) + 8):
                    break
            else:
                raise AssertionError("it comes no further")
            async with lab.scheduler(config) as scheduler:
                await scheduler.stop(abort=True)
        await check(lab, journal)

    play("memory://", main)


@pytest.mark.parametrize("seed", seeds(5, 30))
def test_whatever_call_to_the_store_fails_nothing_is_lost_or_trained_on_twice(seed: int):
    rng = random.Random(seed)
    config = config_of(n_groups=5, redundancy=1, async_generation_ratio=1.0, max_staleness=BOUND)

    async def main(lab: Lab) -> None:
        journal = Journal()
        store: Any = FlakyStore(lab.store, rng)
        async with lab.workers(slots=5):
            scheduler = RolloutScheduler(store, config, clock=lab.clock)
            while True:
                try:
                    await scheduler.start()
                    break
                except StoreUnavailable:
                    continue
            async with scheduler_stopped(scheduler):
                while scheduler.version < N_BATCHES:
                    try:
                        journal.note(await scheduler.get_batch(timeout=20.0))
                    except (StoreUnavailable, BatchLate):  # while its batch was read, or with a wait of its own
                        continue
                    await scheduler.publish()
            async with lab.scheduler(config) as last:
                await last.stop(abort=True)
        await check(lab, journal)

    play("memory://", main)


@asynccontextmanager
async def scheduler_stopped(scheduler: RolloutScheduler) -> AsyncIterator[None]:
    try:
        yield
    finally:
        await scheduler.stop()
