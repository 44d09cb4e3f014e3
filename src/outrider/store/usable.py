"""Whether a store may be used here and now."""

import asyncio
import os
import threading

from outrider.core.errors import StoreError


class Usable:
    """Made on the event loop that opens a store; refuses use after it was closed, on other loops and after a fork."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self.closed = False

    def check(self) -> None:
        if self.closed:
            raise StoreError("this store is closed")
        if os.getpid() != self._pid:
            raise StoreError(
                "a store cannot be used in a forked process; open it there again with open_store(store.url)"
            )
        # A thread runs one loop at a time. Asking for the running one would ask the system for the process again.
        if threading.get_ident() != self._thread or not self._loop.is_running():
            raise StoreError(
                "this store belongs to the event loop that opened it; give other loops and threads what store.handle() "
                "returns there, or open the store in each with open_store(store.url)"
            )
