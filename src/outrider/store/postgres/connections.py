"""The connections of one process to the server: one, and a second one if the server has room for it.

Invariants:
- There are never more than `size`, however much is asked at once. What finds none idle waits its turn.
- The second is opened for a read that finds none idle, or a step that has waited `PATIENCE_SECONDS` for one: most
  steps are over sooner than a connection is made. If the server refuses it, all share the first, and it is tried again
  only after `CROWDED_SECONDS`.
- Reads leave one to the steps where there are two: a long read delays no claim and no heartbeat.
- A connection keeps the planner settings of what it carried out last, and gets others when it must.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from outrider.core.errors import OutriderError
from outrider.store.postgres.address import Plans
from outrider.store.postgres.driver import LOST, Link, asyncpg

PATIENCE_SECONDS = 0.02
"""How long a step waits for its turn on the first connection before it asks for a second one."""

CROWDED_SECONDS = 30.0
"""How long a process that was refused a second connection goes without one before it asks again."""

CLOSE_SECONDS = 5.0


class Connections:
    """At most `size` connections that `connect` opens when they are needed. Use it on one event loop."""

    def __init__(self, connect: Callable[[], Awaitable[Link]], *, size: int) -> None:
        self._connect = connect
        self._size = size
        self._n_open = 0
        self._idle: list[tuple[Link, Plans]] = []
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._reading = asyncio.Semaphore(max(size - 1, 1))
        self._loop = asyncio.get_running_loop()
        self._crowded_until = 0.0

    @asynccontextmanager
    async def reading(self, plans: Plans) -> AsyncIterator[Link]:
        """A connection for a read."""
        async with self._reading, self.using(plans, is_read=True) as link:
            yield link

    @asynccontextmanager
    async def using(self, plans: Plans, *, is_read: bool = False) -> AsyncIterator[Link]:
        """A connection with these planner settings, for one step."""
        link = await self._take(plans, 0.0 if is_read else PATIENCE_SECONDS)
        try:
            yield link
        except (asyncpg.PostgresError, OutriderError):
            self._put_back(link, plans)
            raise
        except BaseException:
            self._drop(link)
            raise
        self._put_back(link, plans)

    async def close(self) -> None:
        """Let steps under way end, soon, then let go of the connections."""
        deadline = self._loop.time() + CLOSE_SECONDS
        while self._n_open and self._loop.time() < deadline:
            while self._idle:
                link, _ = self._idle.pop()
                await let_go(link)
                self._n_open -= 1
            if self._n_open:
                await asyncio.wait([self._turn()], timeout=deadline - self._loop.time())

    async def _take(self, plans: Plans, patience: float) -> Link:
        turn: asyncio.Future[None] | None = None
        opens_at = self._loop.time() + patience
        while True:
            if (link := self._idle_one(plans)) is not None:
                return link
            if self._idle:
                return await self._changed(*self._idle.pop(), plans)
            may_open = self._may_open()
            if may_open and (self._n_open == 0 or self._loop.time() >= opens_at):
                if (link := await self._open(plans)) is not None:
                    return link
                may_open = False
            turn = self._turn(is_next=turn is not None)
            timer = self._loop.call_at(opens_at, _end, turn) if may_open else None
            try:
                await turn
            except asyncio.CancelledError:
                if not turn.cancelled():
                    self._wake()
                raise
            finally:
                if timer is not None:
                    timer.cancel()

    def _idle_one(self, plans: Plans) -> "Link | None":
        """An idle connection that has these settings already."""
        for place in range(len(self._idle) - 1, -1, -1):
            link, its_plans = self._idle[place]
            if link.is_closed():
                del self._idle[place]
                self._n_open -= 1
            elif its_plans is plans:
                del self._idle[place]
                return link
        return None

    def _may_open(self) -> bool:
        return self._n_open == 0 or (self._n_open < self._size and self._loop.time() >= self._crowded_until)

    async def _open(self, plans: Plans) -> "Link | None":
        """A new connection; None if the server has none to spare and there is another one to wait for."""
        self._n_open += 1
        try:
            link = await self._connect()
        except asyncpg.TooManyConnectionsError:
            self._n_open -= 1
            if self._n_open == 0:
                raise
            self._crowded_until = self._loop.time() + CROWDED_SECONDS
            return None
        except BaseException:
            self._n_open -= 1
            self._wake()
            raise
        return await self._changed(link, {}, plans)

    async def _changed(self, link: Link, before: Plans, plans: Plans) -> Link:
        """The connection with other planner settings."""
        changes = [f"RESET {name}" for name in before if name not in plans]
        changes += [f"SET {name} TO {value}" for name, value in plans.items()]
        try:
            if changes:
                await link.execute("; ".join(changes))
        except BaseException:
            self._drop(link)
            raise
        return link

    def _put_back(self, link: Link, plans: Plans) -> None:
        if link.is_closed() or link.is_in_transaction():
            self._drop(link)
        else:
            self._idle.append((link, plans))
            self._wake()

    def _drop(self, link: Link) -> None:
        link.terminate()
        self._n_open -= 1
        self._wake()

    def _turn(self, *, is_next: bool = False) -> "asyncio.Future[None]":
        """Done when a connection may be had; `is_next`: somebody else was quicker the last time."""
        turn: asyncio.Future[None] = self._loop.create_future()
        if is_next:
            self._waiting.appendleft(turn)
        else:
            self._waiting.append(turn)
        return turn

    def _wake(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return


def _end(turn: asyncio.Future[None]) -> None:
    if not turn.done():
        turn.set_result(None)


async def let_go(link: Link) -> None:
    """Close a connection politely, or at least soon."""
    try:
        await link.close(timeout=CLOSE_SECONDS)
    except (*LOST, asyncpg.PostgresError):
        link.terminate()
