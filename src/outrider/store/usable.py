"""Whether a store may be used here and now."""

import asyncio
import os

from outrider.core.errors import StoreError


class Usable:
    """Made on the event loop that opens a store; refuses use after it was closed, on other loops and after a fork."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._loop = asyncio.get_running_loop()
        self.closed = False

    def check(self) -> None:
        # One question for all: in another thread, on another loop and in a forked process another loop runs, or none.
        if self.closed or asyncio._get_running_loop() is not self._loop:  # noqa: SLF001 the public one raises
            self._refuse()

    def _refuse(self) -> None:
        if self.closed:
            raise StoreError("this store is closed")
        if os.getpid() != self._pid:
            raise StoreError(
                "a store cannot be used in a forked process; open it there again with open_store(store.url)"
            )
        raise StoreError(
            "this store belongs to the event loop that opened it; give other loops and threads what store.handle() "
            "returns there, or open the store in each with open_store(store.url)"
        )
