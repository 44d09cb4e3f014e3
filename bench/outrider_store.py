"""Outrider's store and runner as a process under measurement; `bench/store.py` starts it and asks."""

import asyncio
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from outrider.core.rollout import AttemptedRollout, RolloutConfig, RolloutRequest
from outrider.core.status import AttemptStatus
from outrider.store import Store, open_store
from subject import Answer, Work, serve
from workload import LOOKS, Workload, task

sys.path.append(str(Path(__file__).parents[1] / "tests"))


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

    async def fill(self, url: str, n_ended: int, n_queued: int, n_tags: int) -> Answer:
        """Make a store by SQL and open it."""
        from many_rollouts import Many, fill_postgres, fill_sqlite  # noqa: PLC0415 in tests/; no other work needs it

        many = Many(n_ended=n_ended, n_queued=n_queued, n_tags=n_tags)
        if url.startswith("sqlite"):
            await asyncio.to_thread(fill_sqlite, Path(url.removeprefix("sqlite:///")), many)
        else:
            await fill_postgres(url, many)
        return await self.open(url)

    async def look(self, kind: str, repeats: int) -> Answer:
        """Look at a store in which much has ended, in one of the ways of `LOOKS`."""
        for _ in range(repeats):
            if (query := LOOKS[kind]) is None:
                await self._store.statistics()
            else:
                await self._store.query_rollouts(**query)
        return {"n": repeats}

    async def claim_tagged(self, repeats: int, tags: Sequence[str] | None) -> Answer:
        """Claim one by one, of these tags or of all."""
        for _ in range(repeats):
            if await self._store.dequeue_rollout(worker_id="w", tags=tags) is None:
                raise RuntimeError("nothing waits any more")
        return {"n": repeats}

    def works(self) -> dict[str, Work]:
        named = self.enqueue_one, self.claim_one, self.fill, self.look, self.claim_tagged
        return super().works() | {work.__name__: work for work in named}


if __name__ == "__main__":
    serve(OutriderWorkload().works())
