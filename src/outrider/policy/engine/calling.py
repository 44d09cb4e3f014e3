"""Calling an engine: as a task, or in a thread of its own where its `generate` blocks."""

import asyncio
import inspect
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any, Protocol

from outrider.core.errors import PolicyError
from outrider.policy.engine.protocol import BatchEngine, BlockingEngine, TokenRequest

CLOSE_SECONDS = 5.0
"""How long a call that is under way may take to end when the policy is closed."""


class Calls(Protocol):
    """One call at a time, on one event loop."""

    def begin(self, requests: Sequence[TokenRequest]) -> "asyncio.Future[Any]":
        """Done when the engine is free again."""

    def give_up(self) -> None:
        """Nobody waits for the reply any more; the engine may still be busy with it."""

    async def close(self) -> None: ...


def calls_of(engine: BatchEngine | BlockingEngine) -> Calls:
    generate = engine.generate
    return TaskCalls(generate) if inspect.iscoroutinefunction(generate) else ThreadCalls(generate)


class TaskCalls:
    """Of an engine whose `generate` is async."""

    def __init__(self, generate: Callable[[Sequence[TokenRequest]], Any]) -> None:
        self._generate = generate
        self._task: asyncio.Task[Any] | None = None

    def begin(self, requests: Sequence[TokenRequest]) -> "asyncio.Future[Any]":
        self._task = asyncio.get_running_loop().create_task(self._generate(requests), name="engine")
        return self._task

    def give_up(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def close(self) -> None:
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task], timeout=CLOSE_SECONDS)


class ThreadCalls:
    """Of an engine that blocks. A call that never returns holds up neither the event loop nor the exit."""

    def __init__(self, generate: Callable[[Sequence[TokenRequest]], Any]) -> None:
        self._generate = generate
        self._jobs: SimpleQueue[tuple[asyncio.Future[Any], Sequence[TokenRequest]] | None] = SimpleQueue()
        self._call: asyncio.Future[Any] | None = None
        self._thread: threading.Thread | None = None

    def begin(self, requests: Sequence[TokenRequest]) -> "asyncio.Future[Any]":
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="engine", daemon=True)
            self._thread.start()
        self._call = asyncio.get_running_loop().create_future()
        self._jobs.put((self._call, requests))
        return self._call

    def give_up(self) -> None: ...

    async def close(self) -> None:
        self._jobs.put(None)
        if self._call is not None and not self._call.done():
            await asyncio.wait([self._call], timeout=CLOSE_SECONDS)
        if self._thread is not None and self._call is not None and self._call.done():
            self._thread.join(CLOSE_SECONDS)  # it has nothing more to do

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            call, requests = job
            try:
                outcome, settle = _checked(self._generate(requests)), call.set_result
            except BaseException as exc:  # noqa: BLE001 raised again where the call is waited for
                outcome, settle = _carried(exc), call.set_exception
            try:
                call.get_loop().call_soon_threadsafe(settle, outcome)
            except RuntimeError:  # the loop has ended: nobody waits any more
                return
            del job, call, requests, outcome, settle


def _checked(replies: Any) -> Any:
    if inspect.iscoroutine(replies):
        replies.close()
        raise TypeError("generate returned a coroutine but is not async; write `async def generate`")
    return replies


def _carried(error: BaseException) -> Exception:
    """A future cannot carry StopIteration, and SystemExit in an engine must not end the worker."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    carried = PolicyError(f"the engine raised {type(error).__name__}: {error}", stage="policy.complete")
    carried.__cause__ = error
    return carried
