"""A store for the threads and event loops beside the one that opened it.

Every call is carried to the loop that owns the store and awaited from wherever it was made, so the engines need no
locks. A call is cancelled there if its caller is, and ends with a `StoreError` if that loop ends first.
"""

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable, KeysView
from typing import TYPE_CHECKING, Any, Self, cast

from outrider.core.errors import StoreError

if TYPE_CHECKING:
    from outrider.store.protocol import Store


class StoreHandle:
    """Has all methods of the store it stands for. Closing it closes the store."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self._loop = asyncio.get_running_loop()

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
        if not self._loop.is_running():
            raise StoreError(_ENDED.format(self._store.url))
        # A live view may change in the caller's thread while it is read in the other.
        args = tuple(map(_still, args))
        kwargs = {name: _still(value) for name, value in kwargs.items()}
        carried = asyncio.run_coroutine_threadsafe(_awaited(method, args, kwargs), self._loop)
        try:
            return await asyncio.wrap_future(carried)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise StoreError(_ENDED.format(self._store.url)) from None


_ENDED = (
    "the event loop that opened the store {} has ended, and with it this call, which may have been carried out; "
    "open the store again with open_store(store.url)"
)


async def _awaited(method: Callable[..., Awaitable[Any]], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return await method(*args, **kwargs)


def _still(value: Any) -> Any:
    return tuple(value) if isinstance(value, KeysView) else value


def _function(method: Any) -> Any:
    """What a method that is recorded or partly applied comes down to."""
    while isinstance(method, functools.partial):
        method = method.func
    return method
