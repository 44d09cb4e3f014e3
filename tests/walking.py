"""A training run for tests that kill its processes: what it trains on, and its workers as a program."""

import asyncio
import sys
from typing import Any

from outrider import open_store
from outrider.cli.leases import take_leases_of_the_dead
from outrider.policy.spec import PolicySpec
from outrider.runner import RunnerConfig
from outrider.runner.kit import EnvironmentSpec, EpisodeSpec
from outrider.runner.supervisor import Scale, Supervisor, process_launcher
from outrider.runner.worker import WorkerSpec
from outrider.train.config import EnvManagerConfig, SchedulerConfig

LEDGER = "train"
BATCH_GROUPS = 3
GROUP_SIZE = 2
MAX_STALENESS = 2
N_WORKERS = 2

CONFIG = SchedulerConfig(
    train_env_manager=EnvManagerConfig(
        num_env_groups=6, group_size=GROUP_SIZE, group_size_redundancy=1, tags=("walk",), max_env_num_per_worker=10
    ),
    rollout_batch_size=BATCH_GROUPS * GROUP_SIZE,
    async_generation_ratio=1.0,
    max_staleness=MAX_STALENESS,
    filters=("walking:is_unlucky",),
    hedge_seconds=3.0,
    batch_seconds=60.0,
    max_refills=100,
)


def is_unlucky(group: Any) -> bool | str:
    """A filter that drops some groups, always the same."""
    return "its seed ends in 7" if group.seed % 10 == 7 else False


def worker_spec(url: str) -> WorkerSpec:
    walk = EnvironmentSpec(name="fault_environments:Walk", config={"reset_seconds": 0.02, "step_seconds": 0.02})
    return WorkerSpec(
        store_url=url,
        episodes=EpisodeSpec(policy=PolicySpec(model="builtin:random"), environments={"walk": walk}),
        config=RunnerConfig(max_env_num_per_worker=10, grace_seconds=0.2),
        tells_claims=False,
    )


async def work(url: str) -> None:
    """Keep workers; what those of a run that was killed still hold goes back at once."""
    async with open_store(url) as store:
        await take_leases_of_the_dead(store)
        scale = Scale(minimum=N_WORKERS, maximum=N_WORKERS)
        await Supervisor(store, worker_spec(url), scale=scale, launcher=process_launcher(print), on_line=print).run()


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1]))
