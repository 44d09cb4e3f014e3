"""A few connections to one database, and steps that survive the loss of a connection or of the whole server.

Invariants:
- A step that failed for a reason that may pass is repeated on a fresh connection for `RETRY_SECONDS`, then given up.
- `run` tells the step that it is a repetition, since its first run may have been committed; `transact` finds out
  whether a transaction whose commit was not confirmed was committed, and repeats only what was not.
- A connection on which anything unusual happened is not used again.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from outrider.core.crash_points import reached
from outrider.core.errors import OutriderError
from outrider.store.postgres.address import explained
from outrider.store.postgres.driver import LOST, Link, asyncpg
from outrider.store.postgres.receipts import Receipt, Receipts
from outrider.store.usable import Usable

R = TypeVar("R")

RETRY_SECONDS = 10.0
CLOSE_SECONDS = 5.0
FIRST_PAUSE, LONGEST_PAUSE = 0.02, 1.0


class Links:
    """At most `size` connections that `connect` opens when they are needed. Use it on one event loop."""

    def __init__(self, connect: Callable[[], Awaitable[Link]], *, size: int, shown: str) -> None:
        self._connect = connect
        self._size = size
        self._shown = shown
        self._free = asyncio.Semaphore(size)
        self._idle: list[Link] = []
        self._receipts = Receipts()
        self._usable = Usable()

    def check(self) -> None:
        """Refuse what can no longer be done."""
        self._usable.check()

    async def open(self) -> None:
        """Open the first connection. A server that is starting up is waited for, one that is not there is not."""
        try:
            await self._patiently(self._touch, asyncpg.CannotConnectNowError)
        except (*LOST, asyncpg.PostgresError, ValueError) as exc:
            raise explained(exc, self._shown) from (None if isinstance(exc, ValueError) else exc)

    async def close(self) -> None:
        """Let steps under way end, then let go of the connections."""
        self._usable.closed = True
        for _ in range(self._size):
            await self._free.acquire()
        while self._idle:
            await let_go(self._idle.pop())

    async def run(self, step: Callable[[Link, bool], Awaitable[R]]) -> R:
        """Carry out a step of one statement; `step` also hears whether it may have been carried out before."""
        repeated = False

        async def once() -> R:
            nonlocal repeated
            again, repeated = repeated, True
            async with self._link() as link:
                result = await step(link, again)
                reached("postgres.stepped")
                return result

        return await self._carried_out(once)

    async def read(self, look: Callable[[Link], Awaitable[R]]) -> R:
        """Look at the database as it is at one moment."""

        async def once() -> R:
            async with self._link() as link, link.transaction(isolation="repeatable_read", readonly=True):
                return await look(link)

        return await self._carried_out(once)

    async def transact(self, step: Callable[[Link], Awaitable[R]]) -> R:
        """Carry out a step of several statements in one transaction, exactly once."""
        unconfirmed: tuple[Receipt, R] | None = None

        async def once() -> R:
            nonlocal unconfirmed
            async with self._link() as link:
                if unconfirmed is not None and await self._receipts.stands(link, unconfirmed[0]):
                    return unconfirmed[1]
                unconfirmed = None
                await self._receipts.open(link)
                async with link.transaction():
                    result = await step(link)
                    unconfirmed = await self._receipts.write(link), result
                    reached("postgres.before_commit")
                reached("postgres.committed")
                return result

        return await self._carried_out(once)

    async def _carried_out(self, once: Callable[[], Awaitable[R]]) -> R:
        self.check()
        try:
            return await self._patiently(once, *LOST)
        except (*LOST, asyncpg.PostgresError) as exc:
            raise explained(exc, self._shown) from exc

    async def _patiently(self, once: Callable[[], Awaitable[R]], *passing: type[Exception]) -> R:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + RETRY_SECONDS
        pause = FIRST_PAUSE
        while True:
            try:
                return await once()
            except passing:
                if loop.time() + pause > deadline:
                    raise
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _touch(self) -> None:
        async with self._link():
            pass

    @asynccontextmanager
    async def _link(self) -> AsyncIterator[Link]:
        async with self._free:
            link = await self._fresh()
            try:
                yield link
            except (asyncpg.PostgresError, OutriderError):
                self._put_back(link)
                raise
            except BaseException:
                link.terminate()
                raise
            self._put_back(link)

    async def _fresh(self) -> Link:
        while self._idle:
            link = self._idle.pop()
            if not link.is_closed():
                return link
        return await self._connect()

    def _put_back(self, link: Link) -> None:
        if link.is_closed() or link.is_in_transaction():
            link.terminate()
        else:
            self._idle.append(link)


async def let_go(link: Link) -> None:
    """Close a connection politely, or at least soon."""
    try:
        await link.close(timeout=CLOSE_SECONDS)
    except (*LOST, asyncpg.PostgresError):
        link.terminate()
