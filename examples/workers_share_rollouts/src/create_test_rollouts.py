"""Create 20 test rollouts in a durable store: `python -m src.create_test_rollouts`."""

import asyncio

from outrider import open_store


async def main() -> None:
    async with open_store("sqlite:///runs.db") as store:
        for i in range(1, 21):
            rollout = await store.enqueue_rollout({"prompt": f"Task {i}", "task_id": i})
            print(f"Created rollout: {rollout.rollout_id} | Input: {rollout.input}")


asyncio.run(main())
