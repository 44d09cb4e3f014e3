"""A bell between machines: NOTIFY in the transaction that changes something, LISTEN on a connection of its own.

Invariants:
- The connection that listens does nothing else: after a `prepare` a connection hears nothing until its next query.
- It is opened when somebody first waits and kept until the store is closed; whenever it becomes active or is lost,
  everybody who waits here is woken, so that no ring falls into the gap.
- A process does not hear its own rings from the database: it wakes itself at once.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection

from outrider.core.clock import Clock
from outrider.core.ids import new_id
from outrider.store.bell import Bell, Topic
from outrider.store.postgres.driver import LOST, Link, asyncpg
from outrider.store.postgres.links import FIRST_PAUSE, LONGEST_PAUSE, let_go

_log = logging.getLogger(__name__)

PROBE_SECONDS = 15.0
"""How often to make sure that a silent connection is alive, since a cut network closes nothing."""


class PostgresBell(Bell):
    """Rings in every process that listens on the same channel."""

    net_seconds = 1.0

    def __init__(self, clock: Clock, connect: Callable[[], Awaitable[Link]], channel: str) -> None:
        super().__init__(clock)
        self._connect = connect
        self.channel = channel
        self._name = new_id("bell")
        self._task: asyncio.Task[None] | None = None

    def on_first_listener(self, topic: Topic) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._listen(), name=f"listen on {self.channel} for {topic}")

    async def stop(self) -> None:
        """Stop listening."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    def message(self, topics: Collection[Topic]) -> str:
        """What a transaction that changes these topics must notify."""
        return " ".join([self._name, *sorted(topics)])

    def ring_all_here(self, topics: Collection[Topic] = tuple(Topic)) -> None:
        for topic in topics:
            self.ring_here(topic)

    async def _listen(self) -> None:
        pause = FIRST_PAUSE
        while True:
            try:
                link = await self._connect()
                try:
                    lost = asyncio.Event()
                    link.add_termination_listener(lambda _, lost=lost: lost.set())
                    await link.add_listener(self.channel, self._heard)
                    self.ring_all_here()
                    pause = FIRST_PAUSE
                    await self._watch(link, lost)
                finally:
                    await let_go(link)
            except (*LOST, asyncpg.PostgresError) as exc:
                _log.warning("cannot listen on %s, will try again: %s", self.channel, exc)
            self.ring_all_here()
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    @staticmethod
    async def _watch(link: Link, lost: asyncio.Event) -> None:
        """Return when the connection is lost."""
        while not lost.is_set():
            try:
                async with asyncio.timeout(PROBE_SECONDS):
                    await lost.wait()
            except TimeoutError:
                await link.execute("SELECT 1", timeout=PROBE_SECONDS)

    def _heard(self, _link: object, _pid: int, _channel: str, message: object) -> None:
        name, *topics = str(message).split()
        if name != self._name:
            self.ring_all_here([topic for topic in Topic if topic in topics])
