"""A scheduler among all troubles at once: environments, the model and the workers all fail now and then."""

import asyncio
import random
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from outrider.core.errors import PolicyError
from outrider.core.ledger import GroupState
from outrider.env.registry import environments_of
from outrider.train.config import EnvManagerConfig, SchedulerConfig
from outrider.train.scheduler import RolloutScheduler
from soaking import seeds
from training import Lab, config_of, play

BOUND = 2
N_STEPS = 12
TROUBLES: Mapping[str, Mapping[str, Any]] = {
    "sound": {},
    "slow": {"step_seconds": 5.0},
    "shaky": {"trouble": "broken_step", "n_times": 30},
    "hung at first": {"trouble": "hung_reset", "n_times": 5},
    "hung later": {"trouble": "hung_step", "n_times": 5},
}


class Troubled:
    """A run whose troubles follow from its seed."""

    def __init__(self, lab: Lab, seed: int, folder: Path) -> None:
        self._lab = lab
        self._rng = random.Random(seed)
        self._seed = seed
        self._seen: Counter[str] = Counter()
        lab.model.before = self._ask
        for tag, trouble in TROUBLES.items():
            tickets = folder / tag
            tickets.mkdir()
            lab.games[tag] = environments_of("fault_environments:Walk", {**trouble, "tickets": str(tickets)})

    async def play(self) -> None:
        crews = [asyncio.ensure_future(self._work()) for _ in range(2)]
        try:
            async with self._lab.scheduler(self._config()) as scheduler:
                for _ in range(N_STEPS):
                    await self._step(scheduler)
                await scheduler.stop(abort=True)
        finally:
            for crew in crews:
                crew.cancel()
            await asyncio.wait(crews)
        assert set(self._seen.values()) == {1}, "no member is trained on twice, by a hedge or otherwise"
        entries = list(await self._lab.store.query_groups("train"))
        assert [entry.number for entry in entries] == list(range(len(entries)))
        assert all(entry.state is GroupState.ACKNOWLEDGED or entry.reason for entry in entries)

    def _config(self) -> SchedulerConfig:
        return config_of(
            n_groups=10,
            redundancy=self._rng.choice((0, 1)),
            tags=tuple(TROUBLES),
            batch_groups=3,
            async_generation_ratio=self._rng.choice((0.0, 0.5, 1.0, 2.0)),
            max_staleness=BOUND,
            hedge_seconds=self._rng.choice((20.0, 60.0)),
            max_refills=2,
            val_env_manager=EnvManagerConfig(num_env_groups=3, tags=("sound",)),
            seed=self._seed,
        )

    async def _step(self, scheduler: RolloutScheduler) -> None:
        batch = await scheduler.get_batch(timeout=10_000)
        assert 0 <= batch.batch.staleness.min() <= batch.batch.staleness.max() <= BOUND
        assert [len(group.trajectories) for group in batch.batch.groups] == [2, 2, 2]
        self._seen.update(one.rollout_id.partition("+")[0] for one in batch.batch.trajectories)
        await asyncio.sleep(self._rng.choice((0, 0, 5, 30)))
        for _ in range(self._rng.choice((1, 1, 1, 1, 3))):
            await scheduler.publish()
        if self._rng.random() < 0.1:
            assert (await scheduler.validate(timeout=1000)).version == scheduler.version

    async def _ask(self, session: str) -> None:
        await asyncio.sleep(self._rng.uniform(0, 3))
        if self._rng.random() < 0.03:
            raise PolicyError("503 from the server", stage="policy.complete")

    async def _work(self) -> None:
        """A worker that is cut off now and then, and another one after it."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._rng.uniform(30, 300)), self._lab.workers(n_workers=1, slots=12):
                    await asyncio.Event().wait()


@pytest.mark.parametrize("seed", seeds(7, 40))
def test_batches_are_whole_and_fresh_and_nothing_is_trained_on_twice(seed: int, tmp_path: Path):
    async def main(lab: Lab) -> None:
        await Troubled(lab, seed, tmp_path).play()

    play("memory://", main)
