"""The post of one process: a thread with an event loop that listens, connects and serves.

Invariants:
- There is at most one link that this post opened to an endpoint at a time; a lost one is opened again when needed.
- A peer whose node has vanished is lost within five seconds, also if nothing is being sent to it.
- After `close` no thread, task or socket of it is left.
"""

import asyncio
import os
import secrets
import socket
import sys
import threading
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from outrider.cluster.post.link import Endpoint, Handler, Link
from outrider.core.errors import ClusterError, PeerLost

T = TypeVar("T")

CONNECT_SECONDS = 5.0
START_SECONDS = 10.0
CLOSE_SECONDS = 5.0
FAREWELL_SECONDS = 0.5
KEEPALIVE_SECONDS = 1
KEEPALIVE_PROBES = 3


class Post:
    """Made and closed by the process it belongs to; `submit` and `run` are for its other threads."""

    def __init__(self, name: str, key: bytes, *, host: str = "127.0.0.1") -> None:
        self.name = name
        self.key = key
        self.services: dict[str, Handler] = {}
        self.endpoint: Endpoint
        self.loop = asyncio.SelectorEventLoop()  # uvloop knows no abstract sockets, and Ray prefers it where it is
        self._links: dict[Endpoint, asyncio.Task[Link]] = {}
        self._accepted: set[Link] = set()
        self._servers: list[asyncio.Server] = []
        self._closing = threading.Lock()
        self._is_closed = False
        self._thread = threading.Thread(target=self._live, name=f"post of {name}", daemon=True)
        self._thread.start()
        try:
            self.run(self._listen(host), timeout=START_SECONDS)
        except BaseException:
            self.close()
            raise

    def serve(self, service: str, handler: Handler) -> None:
        """Answer what others ask under this name; the handler runs on the loop and may return an awaitable."""
        self.services[service] = handler

    async def link(self, endpoint: Endpoint) -> Link:
        """The link to the post that listens there, proven and ready."""
        if self._is_closed:
            raise PeerLost(f"the post of {self.name} is closed")
        opening = self._links.get(endpoint)
        if opening is None or opening.cancelled() or (opening.done() and _is_useless(opening)):
            opening = self.loop.create_task(self._connect(endpoint), name=f"connect to {endpoint.host}")
            self._links[endpoint] = opening
        return await asyncio.shield(opening)

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> "Future[T]":
        """Run it on the loop, from any thread."""
        if self._is_closed:
            coroutine.close()
            raise ClusterError(f"the post of {self.name} is closed")
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def run(self, coroutine: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Run it on the loop and wait for it, from any other thread. What is not waited for any more is cancelled."""
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise ClusterError("a call that waits was made on the post's own event loop; use async_op=True there")
        future = self.submit(coroutine)
        try:
            return future.result(timeout)
        finally:
            future.cancel()

    def close(self) -> None:
        with self._closing:
            if self._is_closed:
                return
            self._is_closed = True
        with suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(self._end(), self.loop).result(CLOSE_SECONDS)
        self.loop.call_soon_threadsafe(self.loop.stop)
        if threading.current_thread() is not self._thread:
            self._thread.join(CLOSE_SECONDS)

    def _live(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            self.loop.close()

    async def _listen(self, host: str) -> None:
        unix = ""
        if sys.platform == "linux":
            unix = f"outrider-{os.getpid()}-{secrets.token_hex(8)}"
            self._servers.append(await self.loop.create_unix_server(self._accept, f"\0{unix}"))
        tcp = await self.loop.create_server(self._accept, host, 0)
        self._servers.append(tcp)
        port = tcp.sockets[0].getsockname()[1]
        self.endpoint = Endpoint(node=this_node(), unix=unix, host=host, port=port)

    def _accept(self) -> Link:
        link = Link(self, accepts=True)
        self._accepted.add(link)
        link.on_lost.append(lambda: self._accepted.discard(link))
        self.loop.call_later(CONNECT_SECONDS, _close_stranger, link)
        link.ready.add_done_callback(lambda _: _keep_alive(link))
        return link

    async def _connect(self, endpoint: Endpoint) -> Link:
        link = Link(self, accepts=False)
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                if endpoint.unix and endpoint.node == self.endpoint.node:
                    await self.loop.create_unix_connection(lambda: link, f"\0{endpoint.unix}")
                else:
                    await self.loop.create_connection(lambda: link, endpoint.host, endpoint.port)
                await link.ready
        except (OSError, TimeoutError) as exc:
            link.close()
            raise PeerLost(f"nobody answers at {endpoint.host}:{endpoint.port} ({exc or 'no answer'})") from exc
        except BaseException:
            link.close()
            raise
        _keep_alive(link)
        return link

    async def _end(self) -> None:
        for server in self._servers:
            server.close()
        opened = [task.result() for task in self._links.values() if task.done() and not _is_useless(task)]
        links = [*opened, *self._accepted]
        for link in links:
            link.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.wait([*others, self.loop.create_task(_let_end(links))], timeout=CLOSE_SECONDS / 2)


async def _let_end(links: Sequence[Link]) -> None:
    """Let links send what they still have, for a moment; then they end."""
    with suppress(TimeoutError):
        async with asyncio.timeout(FAREWELL_SECONDS):
            await asyncio.gather(*(link.ended for link in links))
    for link in links:
        link.abort()


def _is_useless(opening: "asyncio.Task[Link]") -> bool:
    return opening.cancelled() or opening.exception() is not None or opening.result().is_lost


def _close_stranger(link: Link) -> None:
    if not link.ready.done():
        link.close()


def _keep_alive(link: Link) -> None:
    """Have the kernel notice that the other node is gone."""
    found = link.socket
    if found is None or found.family == socket.AF_UNIX or not hasattr(socket, "TCP_USER_TIMEOUT"):
        return
    found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_SECONDS)
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_SECONDS)
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_PROBES)
    unanswered = 1000 * KEEPALIVE_SECONDS * (KEEPALIVE_PROBES + 1)
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, unanswered)


@cache
def this_node() -> str:
    """The same text in all processes that can reach each other by Unix sockets and `/proc`."""
    if sys.platform != "linux":
        return socket.gethostname()
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    spaces = [str(Path(f"/proc/self/ns/{name}").stat().st_ino) for name in ("net", "pid")]
    return "/".join([boot, *spaces])
