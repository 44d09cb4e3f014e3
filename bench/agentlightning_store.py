"""Agent Lightning's store and runner as a process under measurement, in an environment of its own."""

import asyncio
import logging
import os
import socket
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else its import waits for a download

from agentlightning import LitAgent
from agentlightning.runner.agent import LitAgentRunner
from agentlightning.store.base import LightningStore
from agentlightning.store.client_server import LightningStoreClient, LightningStoreServer
from agentlightning.store.memory import InMemoryLightningStore
from agentlightning.tracer.base import Tracer
from agentlightning.types import EnqueueRolloutRequest

from subject import Answer, Work, serve
from workload import Workload, task


class NoTracer(Tracer):
    """Records nothing: of its own tracers none lets several runners share a process."""

    @asynccontextmanager
    async def trace_context(self, *_: Any, **__: Any) -> AsyncIterator[None]:
        yield

    def get_last_trace(self) -> list[Any]:
        return []


class NoOp(LitAgent[Any]):
    """An agent that yields once and returns a reward; tells `on_start` when it was started."""

    def __init__(self, on_start: Callable[[float], None] = lambda _: None) -> None:
        super().__init__()
        self._on_start = on_start

    async def rollout_async(self, task: Any, resources: Any, rollout: Any) -> float:  # noqa: ARG002
        self._on_start(time.monotonic())
        await asyncio.sleep(0)
        return 1.0


class AgentLightningWorkload(Workload):
    """The works, by that library's own calls."""

    def __init__(self) -> None:
        self._store: LightningStore

    async def open(self, url: str) -> Answer:
        """`memory://`, or the address of a server."""
        self._store = InMemoryLightningStore() if url == "memory://" else LightningStoreClient(url)
        return {}

    async def serve_http(self) -> Answer:
        """Serve a fresh in-memory store on loopback, from a thread of this process."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        server = LightningStoreServer(InMemoryLightningStore(), host="127.0.0.1", port=port)
        await server.start()
        self._store = server
        return {"url": f"http://127.0.0.1:{port}"}

    async def close(self) -> Answer:
        if isinstance(self._store, LightningStoreServer):
            await self._store.stop()
        elif isinstance(self._store, LightningStoreClient):
            await self._store.close()
        del self._store
        return {}

    async def add(self, tasks: Sequence[Any]) -> None:
        if len(tasks) == 1:
            await self._store.enqueue_rollout(tasks[0])
        else:
            await self._store.enqueue_many_rollouts([EnqueueRolloutRequest(input=task) for task in tasks])

    async def claim(self, limit: int, worker_id: str) -> Sequence[Any]:
        if limit > 1:
            return await self._store.dequeue_many_rollouts(limit=limit, worker_id=worker_id)
        claimed = await self._store.dequeue_rollout(worker_id=worker_id)
        return () if claimed is None else (claimed,)

    async def finish(self, claimed: Any) -> None:
        await self._store.update_attempt(claimed.rollout_id, claimed.attempt.attempt_id, status="succeeded")

    async def list_rollouts(self, **query: Any) -> None:
        await self._store.query_rollouts(**query)

    async def idle(self, samples: int, pause: float) -> Answer:
        """With its default poll interval, starting at different moments of it."""
        await self._store.add_resources({})
        seconds = []
        for i in range(samples):
            started: asyncio.Future[float] = asyncio.get_running_loop().create_future()
            async with self._runner(NoOp(started.set_result), 0, 1) as runner:
                running = asyncio.ensure_future(runner.iter())
                await asyncio.sleep(pause + 5.0 * (i + 0.5) / samples)
                asked = time.monotonic()
                await self._store.enqueue_rollout(task(i), mode="train")
                seconds.append(await started - asked)
                await running
        return {"seconds": seconds}

    async def work(self, n: int, workers: int) -> Answer:
        await self._store.add_resources({})

        async def one(worker_id: int) -> None:
            async with self._runner(NoOp(), worker_id, n // workers) as runner:
                await runner.iter()

        await asyncio.gather(*[one(i) for i in range(workers)])
        return {"n": n}

    @asynccontextmanager
    async def _runner(self, agent: NoOp, worker_id: int, max_rollouts: int) -> AsyncIterator[LitAgentRunner[Any]]:
        runner: LitAgentRunner[Any] = LitAgentRunner(NoTracer(), max_rollouts=max_rollouts)
        runner.init(agent)
        runner.init_worker(worker_id, self._store)
        try:
            yield runner
        finally:
            runner.teardown_worker(worker_id)
            runner.teardown()

    def works(self) -> dict[str, Work]:
        return super().works() | {"serve_http": self.serve_http}


if __name__ == "__main__":
    logging.disable(logging.ERROR)
    serve(AgentLightningWorkload().works())
