"""A handle of an operation that goes on elsewhere."""

import asyncio
from collections.abc import Callable, Generator
from concurrent.futures import CancelledError, Future
from typing import Any, Generic, TypeVar

from outrider.core.errors import CallLate

T = TypeVar("T")


class Pending(Generic[T]):
    """The outcome of an asynchronous operation: wait for it in a thread, or await it in any event loop.

    `what` completes the sentence of a deadline that passed: "… did not end within 5 s".
    """

    def __init__(self, future: "Future[T]", what: str = "the operation") -> None:
        self._future = future
        self._what = what

    def wait(self, timeout: float | None = None) -> T:
        """Its result, or its error. At the deadline `CallLate` is raised, and the operation goes on."""
        try:
            return self._future.result(timeout)
        except TimeoutError:
            if self._future.done():
                raise
            raise CallLate(f"{self._what} did not end within {timeout:g} s") from None

    async def async_wait(self) -> T:
        """Its result, without blocking the event loop. Cancelling the wait lets the operation go on."""
        return await asyncio.shield(asyncio.wrap_future(self._future))

    def __await__(self) -> Generator[Any, None, T]:
        return self.async_wait().__await__()

    def done(self) -> bool:
        return self._future.done()

    def cancel(self) -> bool:
        """Give the operation up, if it has not ended; whether it had not."""
        return self._future.cancel()

    def then(self, callback: Callable[["Pending[T]"], None]) -> None:
        """Call back when it has ended, on the thread that ended it."""
        self._future.add_done_callback(lambda _: callback(self))


__all__ = ["CancelledError", "Pending"]
