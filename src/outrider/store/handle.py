"""A store for the threads and event loops beside the one that opened it.

Invariants:
- Every call is carried out on the loop that owns the store, so the engines need no locks.
- A call whose caller is cancelled is cancelled too; what it had claimed by then goes back to the queue.
- A call ends with a `StoreError` if that loop ends first: nobody waits for a loop that is gone.
"""

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable, KeysView
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self, cast

from outrider.core.errors import StoreError
from outrider.core.rollout import AttemptedRollout
from outrider.core.status import AttemptStatus

if TYPE_CHECKING:
    from outrider.store.protocol import Store

LOOK_SECONDS = 1.0
"""How often a call that waits looks whether the loop is still there."""


class StoreHandle:
    """Has all methods of the store it stands for, which `loop` owns; closing it closes the store."""

    def __init__(self, store: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._store = store
        self._loop = loop
        self._tasks: set[asyncio.Task[None]] = set()

    def handle(self) -> "Store":
        return cast("Store", self)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        return functools.partial(self._carried, found) if inspect.iscoroutinefunction(_function(found)) else found

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._carried(self._store.close)

    async def _carried(self, method: Callable[..., Awaitable[Any]], *args: Any, **kwargs: Any) -> Any:
        if asyncio.get_running_loop() is self._loop:
            return await method(*args, **kwargs)
        # A live view may change in the caller's thread while it is read in the other.
        still = {name: _still(value) for name, value in kwargs.items()}
        answer: Future[Any] = Future()
        self._hand_over(functools.partial(method, *map(_still, args), **still), answer)
        waiting = asyncio.wrap_future(answer)
        try:
            while not (await asyncio.wait([waiting], timeout=LOOK_SECONDS))[0] and self._loop.is_running():
                pass
        except asyncio.CancelledError:
            if not answer.cancel() and answer.exception() is None:
                self._hand_over(functools.partial(self._give_back, answer.result()), Future())
            raise
        if answer.cancel() or answer.cancelled():
            raise self._ended()
        return answer.result()

    def _hand_over(self, call: Callable[[], Awaitable[Any]], answer: "Future[Any]") -> None:
        try:
            self._loop.call_soon_threadsafe(self._begin, call, answer)
        except RuntimeError:
            raise self._ended() from None

    def _begin(self, call: Callable[[], Awaitable[Any]], answer: "Future[Any]") -> None:
        if answer.cancelled():
            return
        task = self._loop.create_task(self._serve(call, answer), name=f"call on {self._store.url} from another loop")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        answer.add_done_callback(functools.partial(self._unless_cancelled, task))

    def _unless_cancelled(self, task: "asyncio.Task[None]", answer: "Future[Any]") -> None:
        if answer.cancelled():
            with suppress(RuntimeError):  # the loop has ended, and the task with it
                self._loop.call_soon_threadsafe(task.cancel)

    async def _serve(self, call: Callable[[], Awaitable[Any]], answer: "Future[Any]") -> None:
        try:
            result = await call()
        except asyncio.CancelledError:
            answer.cancel()
            raise
        except Exception as exc:  # noqa: BLE001 raised again in the caller
            with suppress(InvalidStateError):
                answer.set_exception(exc)
            return
        try:
            answer.set_result(result)
        except InvalidStateError:  # the caller is gone
            await self._give_back(result)

    async def _give_back(self, result: object) -> None:
        for one in result if isinstance(result, tuple) else (result,):
            if isinstance(one, AttemptedRollout):
                with suppress(StoreError):  # then it ends with its lease
                    await self._store.update_attempt(
                        one.rollout_id, one.attempt.attempt_id, status=AttemptStatus.CANCELLED
                    )

    def _ended(self) -> StoreError:
        return StoreError(
            f"the event loop that opened the store {self._store.url} does not run any more; this call may have been "
            "carried out; open the store again with open_store(store.url)"
        )


def _still(value: Any) -> Any:
    return tuple(value) if isinstance(value, KeysView) else value


def _function(method: Any) -> Any:
    """What a method that is recorded or partly applied comes down to."""
    while isinstance(method, functools.partial):
        method = method.func
    return method
