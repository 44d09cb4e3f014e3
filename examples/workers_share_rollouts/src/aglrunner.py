"""Start 4 workers that share the rollouts of the store: `python -m src.aglrunner`."""

import asyncio
from typing import Any

from outrider import AttemptedRollout, Context, Runner, Store, open_store

num_workers = 4
max_rollouts_per_worker = 5


async def agent(task: Any, ctx: Context) -> float:
    """Stand-in for a call of a model."""
    await asyncio.sleep(0.1)
    return 1.0


async def worker_task(worker_id: int, store: Store) -> None:
    def on_claim(claimed: AttemptedRollout) -> None:
        print(f"✅ Worker-{worker_id} processing rollout: {claimed.rollout_id} | Input: {claimed.input}")

    print(f"🚀 Starting Worker-{worker_id}...")
    runner = Runner(
        store,
        agent,
        worker_id=worker_id,
        on_claim=on_claim,
        max_rollouts=max_rollouts_per_worker,
        poll_interval=2.0,
        heartbeat_interval=5.0,
    )
    await runner.iter()


async def main() -> None:
    print(f"🔧 Initializing {num_workers} workers...")
    print("📊 Workers will share rollouts from the store automatically\n")
    async with open_store("sqlite:///runs.db") as store:
        await asyncio.gather(*(worker_task(worker_id, store) for worker_id in range(num_workers)))


asyncio.run(main())
