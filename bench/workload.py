"""The work of the store benchmark, the same for every system: each brings the few calls it is made of."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

from subject import Answer, Work, resident_mb

QUERIES: dict[str, dict[str, Any]] = {
    "limit=20": {"limit": 20},
    "status limit=20": {"status_in": ["succeeded"], "limit": 20},
    "all": {},
}

LOOKS: dict[str, dict[str, Any] | None] = {
    "statistics": None,
    "limit=20": {"limit": 20},
    "status limit=20": {"status": "failed", "limit": 20},
    "tag limit=20": {"tag": "tag-3", "limit": 20},
    "mode limit=20": {"mode": "val", "limit": 20},
    "status tag limit=20": {"status": "failed", "tag": "tag-3", "limit": 20},
    "status mode limit=20": {"status": "failed", "mode": "val", "limit": 20},
    "status by end limit=1000": {"status": "failed", "sort_by": "ended_at", "descending": True, "limit": 1000},
    "status tag by end limit=20": {"status": "succeeded", "tag": "tag-3", "sort_by": "ended_at", "limit": 20},
}
"""Looks at a store in which much has ended; None stands for its statistics."""


def task(i: int) -> dict[str, Any]:
    return {"prompt": f"Task {i}", "task_id": i}


class Workload(ABC):
    """The works of one process under measurement."""

    @abstractmethod
    async def open(self, url: str) -> Answer: ...

    @abstractmethod
    async def close(self) -> Answer: ...

    @abstractmethod
    async def add(self, tasks: Sequence[Any]) -> None:
        """Enqueue: one by the call for one, more by the call for many."""

    @abstractmethod
    async def claim(self, limit: int, worker_id: str) -> Sequence[Any]:
        """Claim: one by the call for one, more by the call for many."""

    @abstractmethod
    async def finish(self, claimed: Any) -> None: ...

    @abstractmethod
    async def list_rollouts(self, **query: Any) -> None: ...

    @abstractmethod
    async def idle(self, samples: int, pause: float) -> Answer:
        """Seconds from an enqueue to the claim by a worker that has nothing to do, several times."""

    @abstractmethod
    async def work(self, n: int, workers: int) -> Answer:
        """Run `n` no-op rollouts, which are in the queue already, by `workers` runners."""

    async def enqueue(self, n: int, callers: int = 16, batch: int = 1) -> Answer:
        """`n` rollouts by `callers` at once, one by one or in batches."""
        starts = iter(range(0, n, batch))

        async def call() -> None:
            for start in starts:
                await self.add([task(i) for i in range(start, min(start + batch, n))])

        await asyncio.gather(*[call() for _ in range(callers)])
        return {"n": n}

    async def drain(self, claimers: int, batch: int = 1, at_most: int | None = None, *, finish: bool = True) -> Answer:
        """Claim, and finish unless told not to, until the queue is empty or `at_most` are done."""
        turns: Iterator[int] = iter(range(10**9 if at_most is None else at_most // batch))

        async def work(worker_id: str) -> int:
            done = 0
            for _ in turns:
                claimed = await self.claim(batch, worker_id)
                if not claimed:
                    break
                if finish and batch == 1:
                    await self.finish(claimed[0])
                elif finish:
                    await asyncio.gather(*map(self.finish, claimed))
                done += len(claimed)
            return done

        return {"n": sum(await asyncio.gather(*[work(f"w{i}") for i in range(claimers)]))}

    async def query(self, kind: str, repeats: int) -> Answer:
        for _ in range(repeats):
            await self.list_rollouts(**QUERIES[kind])
        return {"n": repeats}

    def works(self) -> dict[str, Work]:
        """What can be asked of the process, by name."""
        named = (self.open, self.close, self.enqueue, self.drain, self.idle, self.query, self.work)
        return {"resident_mb": resident_mb} | {work.__name__: work for work in named}
