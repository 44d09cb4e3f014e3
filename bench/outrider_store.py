"""Outrider's store and runner as a process under measurement; `bench/store.py` starts it and asks."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from outrider.core.rollout import AttemptedRollout, RolloutConfig, RolloutRequest
from outrider.core.status import AttemptStatus
from outrider.store import Store, open_store
from subject import Answer, Work, serve
from workload import Workload, task


class OutriderWorkload(Workload):
    """The works, on one store at a time."""

    def __init__(self) -> None:
        self._store: Store

    async def open(self, url: str) -> Answer:
        self._store = await open_store(url)
        return {}

    async def close(self) -> Answer:
        await self._store.close()
        return {}

    async def add(self, tasks: Sequence[Any]) -> None:
        if len(tasks) == 1:
            await self._store.enqueue_rollout(tasks[0])
        else:
            await self._store.enqueue_many_rollouts([RolloutRequest(input=task) for task in tasks])

    async def claim(self, limit: int, worker_id: str) -> Sequence[AttemptedRollout]:
        if limit > 1:
            return await self._store.dequeue_many_rollouts(limit, worker_id=worker_id)
        claimed = await self._store.dequeue_rollout(worker_id=worker_id)
        return () if claimed is None else (claimed,)

    async def finish(self, claimed: AttemptedRollout) -> None:
        attempt = claimed.attempt
        await self._store.update_attempt(attempt.rollout_id, attempt.attempt_id, status=AttemptStatus.SUCCEEDED)

    async def list_rollouts(self, **query: Any) -> None:
        await self._store.query_rollouts(**query)

    async def enqueue_one(self, unresponsive_seconds: float = 30.0) -> Answer:
        """Enqueue one; `at` is the machine's monotonic time before the call."""
        config = RolloutConfig(unresponsive_seconds=unresponsive_seconds)
        at = time.monotonic()
        await self._store.enqueue_rollout(task(0), config=config)
        return {"at": at}

    async def claim_one(self, wait: float, finish: bool = True) -> Answer:
        """Wait for one as an idle worker does; `at` is the machine's monotonic time when it had it."""
        claimed = await self._store.dequeue_rollout(worker_id="idle", wait=wait)
        at = time.monotonic()
        if claimed is None:
            return {"at": None}
        if finish:
            await self.finish(claimed)
        return {"at": at}

    async def idle(self, samples: int, pause: float) -> Answer:
        seconds = []
        for _ in range(samples):
            worker = asyncio.ensure_future(self.claim_one(wait=30.0))
            await asyncio.sleep(pause)
            asked = await self.enqueue_one()
            seconds.append((await worker)["at"] - asked["at"])
        return {"seconds": seconds}

    async def work(self, n: int, workers: int) -> Answer:
        from outrider.runner import Runner  # noqa: PLC0415 no other work needs it

        async def no_op(task: Any, ctx: Any) -> float:  # noqa: ARG001
            await asyncio.sleep(0)
            return 1.0

        runners = [Runner(self._store, no_op, worker_id=i, max_rollouts=n // workers) for i in range(workers)]
        return {"n": sum(await asyncio.gather(*[runner.iter() for runner in runners]))}

    def works(self) -> dict[str, Work]:
        return super().works() | {"enqueue_one": self.enqueue_one, "claim_one": self.claim_one}


if __name__ == "__main__":
    serve(OutriderWorkload().works())
