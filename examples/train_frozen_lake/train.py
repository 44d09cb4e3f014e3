"""Train a policy on frozen lakes by GRPO: `python train.py`, or `python train.py 1` to generate a batch ahead.

Extra: `train`.
"""

import asyncio
import sys
import time
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from outrider import local_workers, open_store
from outrider.agent import ChatAgent, EpisodeKit
from outrider.env.registry import environments_of
from outrider.runner import StageLimits
from outrider.train import RolloutScheduler, SchedulerConfig, read_scheduler_config
from policy import LinearPolicy

CONFIG = Path(__file__).parent / "frozen_lake.yaml"


class Step(NamedTuple):
    """One step of training: the means over the batch that it learnt from, and the seconds since the beginning."""

    number: int
    success: float
    staleness: float
    seconds: float


async def train(config: SchedulerConfig, policy: LinearPolicy, n_steps: int) -> list[Step]:
    kit = EpisodeKit(policy=policy, environments={"FrozenLake": environments_of("FrozenLake")}, agent=ChatAgent())
    limits = StageLimits(turn_seconds=config.turn_seconds, trajectory_seconds=config.trajectory_seconds)
    n_slots = config.train_env_manager.max_env_num_per_worker
    steps, began = [], time.monotonic()
    async with (
        open_store("memory://") as store,
        local_workers(store, kit, max_env_num_per_worker=n_slots, limits=limits),
        RolloutScheduler(store, config) as scheduler,
    ):
        for number in range(1, n_steps + 1):
            batch = await scheduler.get_batch()
            await asyncio.to_thread(policy.update, batch.batch.to_numpy())
            await scheduler.publish()
            success, staleness = batch.metrics["env/FrozenLake/success"], batch.metrics["staleness/mean"]
            steps.append(Step(number, success, staleness, time.monotonic() - began))
            print("step {:2}   success {:4.0%}   staleness {:.2f}   {:5.1f} s".format(*steps[-1]))
        result = await scheduler.validate()
        print(f"on {result.tags['FrozenLake'].n} other lakes, greedily: {result.tags['FrozenLake'].reward:.0%}")
    return steps


if __name__ == "__main__":
    ratio = float(sys.argv[1]) if len(sys.argv) > 1 else 0.0
    config = replace(read_scheduler_config(CONFIG), async_generation_ratio=ratio)
    asyncio.run(train(config, LinearPolicy(), n_steps=15))
