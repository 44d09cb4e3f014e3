"""Whether a store may be used here and now."""

import os

from outrider.core.errors import StoreError


class Usable:
    """Made when a store is opened; refuses use after it was closed, and in a process that was forked off since."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self.closed = False

    def check(self) -> None:
        if self.closed:
            raise StoreError("this store is closed")
        if os.getpid() != self._pid:
            raise StoreError(
                "a store cannot be used in a forked process; open it there again with open_store(store.url)"
            )
