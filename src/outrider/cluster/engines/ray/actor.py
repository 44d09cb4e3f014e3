"""The actors in which workers sit. They run in Ray's worker processes."""

import asyncio
import os
from typing import Any

import msgspec
import ray

from outrider.cluster.engines.protocol import SeatSpec
from outrider.cluster.failure import Failure
from outrider.cluster.seat import Seated


class PlainActor:
    """For classes without coroutine methods: they are called on the actor's own threads."""

    _address = "a worker"

    def __init__(self, spec: SeatSpec) -> None:
        self._address = spec.address
        self._spec = msgspec.structs.replace(spec, gpus=tuple(int(gpu) for gpu in ray.get_gpu_ids()))
        self._seated = self._seat()
        self._failure = self._seated.open()
        if self._failure is None:
            self._seated.desk.staff(spec.max_concurrency or 1, f"desk of {spec.address}")

    def open(self) -> Failure | None:
        """None, since the worker is up; or why it could not be made."""
        return self._failure

    def pid(self) -> int:
        return os.getpid()

    def call(self, method: str, /, *args: Any, **kwargs: Any) -> Any:
        return self._seated.call(method, args, kwargs)

    def end(self) -> None:
        """Say goodbye to the others; what runs is cancelled where that can be."""
        self._seated.close()

    def __repr__(self) -> str:
        """What Ray puts before each line that the worker prints."""
        return self._address

    def _seat(self) -> Seated:
        return Seated(self._spec)


class AsyncActor(PlainActor):
    """For classes with coroutine methods: those run on the actor's event loop, on which the instance is made too."""

    def __init__(self, spec: SeatSpec) -> None:
        self._calls: set[asyncio.Task[Any]] = set()
        super().__init__(spec)

    async def call(self, method: str, /, *args: Any, **kwargs: Any) -> Any:
        task = asyncio.current_task()
        assert task is not None
        self._calls.add(task)
        try:
            return await self._seated.acall(method, args, kwargs)
        finally:
            self._calls.discard(task)

    def end(self) -> None:
        for task in list(self._calls):
            task.cancel()
        super().end()

    def _seat(self) -> Seated:
        return Seated(self._spec, loop=asyncio.get_running_loop())
