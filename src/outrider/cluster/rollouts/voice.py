"""How a worker tells its launcher, line by line and in order, what it does, what it has used, and what it logs."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

from outrider.cluster.post import Endpoint, Link, Post
from outrider.core.errors import ClusterError
from outrider.runner.worker import LineHandler

SAID = "rollouts.said"
"""The service of the launcher's post: it takes the name of a worker, and one line of it."""
POOL_SAID = "rollouts.pool_said"
"""The same for the pools that workers borrow from."""

LAST_WORDS_SECONDS = 5.0


@asynccontextmanager
async def open_voice(
    post: Post, launcher: Endpoint, name: str, *, on_lost: Callable[[], None], service: str = SAID
) -> AsyncIterator[LineHandler]:
    """Takes lines from any thread. At the end of the block all of them have been heard, if the launcher is there.

    `on_lost` is called on the post's loop when the launcher is gone.
    """
    link = await asyncio.wrap_future(post.submit(_connected(post, launcher, on_lost)))

    def say(line: str) -> None:
        with suppress(RuntimeError):  # the post is closed, and nobody listens any more
            post.loop.call_soon_threadsafe(link.tell, service, (name, line))

    try:
        yield say
    finally:
        with suppress(ClusterError, TimeoutError):
            async with asyncio.timeout(LAST_WORDS_SECONDS):
                await asyncio.wrap_future(post.submit(_heard_out(link, service, name, on_lost)))


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
