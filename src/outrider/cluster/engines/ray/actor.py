"""The actors in which workers sit. They run in Ray's worker processes."""

import asyncio
import os
from collections.abc import Callable
from typing import Any

import msgspec
import ray

from outrider.cluster.engines.protocol import SeatSpec
from outrider.cluster.failure import Failure
from outrider.cluster.seat import Seated

DO = "do_"


def actor_class(spec: SeatSpec) -> type[Any]:
    """The actor with a method `do_NAME` for each method of the user's class.

    A name that travelled as an argument would cost a quarter of a small call.
    """
    maker = _coroutine_method if spec.is_async else _plain_method
    doing = {f"{DO}{name}": maker(name) for name in spec.methods}
    return type("AsyncActor" if spec.is_async else "PlainActor", (AsyncActor if spec.is_async else PlainActor,), doing)


def _plain_method(name: str) -> Callable[..., Any]:
    def do(self: "PlainActor", *args: Any, **kwargs: Any) -> Any:
        return self._seated.call(name, args, kwargs)

    return do


def _coroutine_method(name: str) -> Callable[..., Any]:
    async def do(self: "AsyncActor", *args: Any, **kwargs: Any) -> Any:
        return await self._call(name, args, kwargs)

    return do


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

    async def _call(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
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
