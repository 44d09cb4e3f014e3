"""How a worker tells its launcher, in order, what it does and logs, line by line, and what it has used.

What is printed by code that it runs is only ever a line: records have a service of their own.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

from outrider.cluster.post import Endpoint, Link, Post
from outrider.core.errors import ClusterError
from outrider.runner.worker import LineHandler

SAID, USED = "rollouts.said", "rollouts.used"
"""Services of the launcher's post. They take the name of a worker and a line of it, or a record of what it has used."""
POOL_SAID, POOL_COUNTED = "rollouts.pool_said", "rollouts.pool_counted"
"""The same for the pools that workers borrow from, and what they have counted."""

LAST_WORDS_SECONDS = 5.0


class Voice:
    """Takes lines and records from any thread."""

    def __init__(self, post: Post, link: Link, name: str, services: tuple[str, str]) -> None:
        self._post = post
        self._link = link
        self._name = name
        self._said, self._recorded = services

    def say(self, line: str) -> None:
        self._tell(self._said, line)

    def record(self, record: bytes) -> None:
        self._tell(self._recorded, record)

    def _tell(self, service: str, what: str | bytes) -> None:
        with suppress(RuntimeError):  # the post is closed, and nobody listens any more
            self._post.loop.call_soon_threadsafe(self._link.tell, service, (self._name, what))


@asynccontextmanager
async def open_voice(
    post: Post,
    launcher: Endpoint,
    name: str,
    *,
    on_lost: Callable[[], None],
    services: tuple[str, str] = (SAID, USED),
) -> AsyncIterator[Voice]:
    """At the end of the block all that was told has been heard, if the launcher is there.

    `on_lost` is called on the post's loop when the launcher is gone.
    """
    link = await asyncio.wrap_future(post.submit(_connected(post, launcher, on_lost)))

    try:
        yield Voice(post, link, name, services)
    finally:
        with suppress(ClusterError, TimeoutError):
            async with asyncio.timeout(LAST_WORDS_SECONDS):
                await asyncio.wrap_future(post.submit(_heard_out(link, services[0], name, on_lost)))


async def _connected(post: Post, launcher: Endpoint, on_lost: Callable[[], None]) -> Link:
    link = await post.link(launcher)
    link.on_lost.append(on_lost)
    return link


async def _heard_out(link: Link, service: str, name: str, on_lost: Callable[[], None]) -> None:
    """Lines come one after the other: if an empty one is answered, all have been heard."""
    link.on_lost.remove(on_lost)
    await link.ask(service, (name, ""))


@contextmanager
def logging_to(say: LineHandler, who: str, level: str) -> Iterator[None]:
    """What is logged in this process is said too."""
    handler = _LineHandler(say)
    handler.setFormatter(logging.Formatter(f"{who} %(levelname)s %(message)s"))
    root = logging.getLogger()
    before = root.level
    root.setLevel(level)
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(before)


class _LineHandler(logging.Handler):
    def __init__(self, say: LineHandler) -> None:
        super().__init__()
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        self._say(self.format(record))
