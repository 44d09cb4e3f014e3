"""Steps on the connections of one process, which survive the loss of a connection or of the whole server.

Invariants:
- A step that failed for a reason that may pass is repeated on a fresh connection for `RETRY_SECONDS`, then given
  up; once the store is being closed, after a moment.
- `run` tells the step that it is a repetition, since its first run may have been committed; `transact` and
  `execute_once` find out whether what was not confirmed was committed, and repeat only what was not.
- A connection on which anything unusual happened is not used again.
"""

import asyncio
import math
import random
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

from outrider.core.crash_points import reached
from outrider.store.postgres.address import READ_PLANS, Plans, explained
from outrider.store.postgres.connections import Connections
from outrider.store.postgres.driver import LOST, Link, asyncpg
from outrider.store.postgres.receipts import Receipt, Receipts
from outrider.store.usable import Usable

R = TypeVar("R")

RETRY_SECONDS = 10.0
FIRST_PAUSE, LONGEST_PAUSE = 0.02, 1.0


class Links:
    """Carries out steps under one set of planner settings. Use it on one event loop."""

    def __init__(self, connections: Connections, plans: Plans, *, shown: str) -> None:
        self._connections = connections
        self._plans = plans
        self._shown = shown
        self._receipts = Receipts()
        self._usable = Usable()
        self._give_up_at = math.inf

    def check(self) -> None:
        """Refuse what can no longer be done."""
        self._usable.check()

    async def open(self) -> None:
        """Open the first connection. A server that starts up or has no room is waited for, one that is away is not."""
        try:
            await self._patiently(self._touch, asyncpg.CannotConnectNowError, asyncpg.TooManyConnectionsError)
        except (*LOST, asyncpg.PostgresError, ValueError) as exc:
            raise explained(exc, self._shown) from (None if isinstance(exc, ValueError) else exc)

    def hurry(self) -> None:
        """The store is being closed: wait for the server no longer than a moment."""
        self._give_up_at = asyncio.get_running_loop().time() + LONGEST_PAUSE

    def close(self) -> None:
        self._usable.closed = True

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

    async def execute_once(self, query: str, *values: Any) -> None:
        """Carry out one statement exactly once: it writes its own receipt, and returns a row if that was there."""
        unconfirmed: Receipt | None = None

        async def once() -> None:
            nonlocal unconfirmed
            async with self._link() as link:
                if unconfirmed is not None and await self._receipts.stands(link, unconfirmed):
                    return
                await self._receipts.open(link)
                unconfirmed = self._receipts.next(link)
                if await link.fetchval(query, unconfirmed.receipt_id, unconfirmed.number, *values) is None:
                    raise self._receipts.lost(link)

        await self._carried_out(once)

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
                if loop.time() + pause > min(deadline, self._give_up_at):
                    raise
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _touch(self) -> None:
        async with self._link():
            pass

    def _link(self) -> AbstractAsyncContextManager[Link]:
        take = self._connections.reading if self._plans is READ_PLANS else self._connections.using
        return take(self._plans)
