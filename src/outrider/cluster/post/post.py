"""The post of one process: a thread with an event loop that listens, connects and serves.

Invariants:
- There is at most one link that this post opened to an endpoint at a time; a lost one is opened again when needed.
- A peer whose node has vanished is lost within five seconds, also if nothing is being sent to it.
- Connections within a node are Unix sockets between processes of one user; all others are TLS.
- Of connections that have not proven themselves there are at most `MAX_UNPROVEN`, each for at most `CONNECT_SECONDS`.
- After `close` no thread, task or socket of it is left.
"""

import asyncio
import errno
import logging
import os
import secrets
import socket
import ssl
import sys
import threading
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from outrider.cluster.post.endpoint import Endpoint, this_node
from outrider.cluster.post.link import UNPROVEN, Handler, Link
from outrider.cluster.post.tls import contexts
from outrider.core.errors import ClusterError, PeerLost

T = TypeVar("T")

_log = logging.getLogger(__name__)

CONNECT_SECONDS = 5.0
HANDSHAKE_SECONDS = 20.0
"""Of a client with another node: one that is gone is noticed sooner, one that greets a thousand others takes longer."""
MAX_UNPROVEN = 64
CROWDED_SECONDS = 3.0
"""When there are that many, the oldest goes after this time to let the next one in.

So many members at once need a tenth of a second, or more on a busy machine; others wait meanwhile.
"""
BACKLOG = 4096
PAUSE_SECONDS = 0.5
OUT_OF_ROOM = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
"""Errors of a process that can accept nothing for a while."""
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
        self._listeners: list[socket.socket] = []
        self._accepting: list[asyncio.Task[None]] = []
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
            unix = f"outrider-{os.getpid()}-{secrets.token_hex(16)}"
            near = socket.socket(socket.AF_UNIX)
            self._listeners.append(near)
            near.bind(f"\0{unix}")
            near.listen(BACKLOG)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        far = socket.create_server((host, 0), family=family, backlog=BACKLOG)
        self._listeners.append(far)
        port = far.getsockname()[1]
        self.endpoint = Endpoint(name=self.name, node=this_node(), unix=unix, host=host, port=port)
        for listener in self._listeners:
            listener.setblocking(False)
            self._accepting.append(self.loop.create_task(self._accept(listener), name=f"accept for {self.name}"))

    async def _accept(self, listener: socket.socket) -> None:
        unproven: dict[asyncio.Task[None], float] = {}
        while True:
            await self._make_room(unproven)
            try:
                connection, _ = await self.loop.sock_accept(listener)
            except OSError as exc:  # of the connection, which is gone by now, or of this process
                is_ours = exc.errno in OUT_OF_ROOM
                _log.log(logging.WARNING if is_ours else logging.INFO, "%s cannot accept: %s", self.name, exc)
                await asyncio.sleep(PAUSE_SECONDS if is_ours else 0.0)
                continue
            link = Link(self)
            task = self.loop.create_task(self._prove(link, connection), name=f"handshake with {self.name}")
            unproven[task] = self.loop.time()
            task.add_done_callback(unproven.pop)
            task.add_done_callback(partial(self._drop_stranger, link, connection))

    async def _make_room(self, unproven: dict[asyncio.Task[None], float]) -> None:
        """Wait until there may be one more. They are in the order in which they came."""
        while len(unproven) >= MAX_UNPROVEN:
            oldest, came_at = next(iter(unproven.items()))
            seconds = max(0.0, came_at + CROWDED_SECONDS - self.loop.time())
            await asyncio.wait(unproven, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if len(unproven) >= MAX_UNPROVEN and self.loop.time() >= came_at + CROWDED_SECONDS:
                oldest.cancel()

    async def _prove(self, link: Link, connection: socket.socket) -> None:
        try:
            _keep_alive(connection)
            async with asyncio.timeout(CONNECT_SECONDS):
                tls = None if connection.family == socket.AF_UNIX else contexts(self.key).server
                await self.loop.connect_accepted_socket(lambda: link, connection, ssl=tls)
                await link.ready
        except (OSError, TimeoutError, PeerLost) as exc:
            _log.info("a stranger did not prove itself to %s: %s", self.name, exc or "too late")
            return
        if not link.is_lost:
            self._accepted.add(link)
            link.on_lost.append(lambda: self._accepted.discard(link))

    def _drop_stranger(self, link: Link, connection: socket.socket, _: object) -> None:
        if link not in self._accepted:
            link.abort()
            connection.close()

    async def _connect(self, endpoint: Endpoint) -> Link:
        link = Link(self, endpoint)
        try:
            if endpoint.unix and endpoint.node == self.endpoint.node:
                async with asyncio.timeout(CONNECT_SECONDS):
                    await self.loop.create_unix_connection(lambda: link, f"\0{endpoint.unix}")
                    await link.ready
            else:
                await self._connect_far(link, endpoint)
        except ssl.SSLError as exc:
            link.close()
            raise PeerLost(f"{endpoint.name} at {endpoint.host}:{endpoint.port}: {UNPROVEN} ({exc})") from exc
        except (OSError, TimeoutError) as exc:
            link.close()
            raise PeerLost(f"nobody answers at {endpoint.host}:{endpoint.port} ({exc or 'no answer'})") from exc
        except BaseException:
            link.close()
            raise
        return link

    async def _connect_far(self, link: Link, endpoint: Endpoint) -> None:
        connection = socket.socket(socket.AF_INET6 if ":" in endpoint.host else socket.AF_INET)
        try:
            connection.setblocking(False)
            _keep_alive(connection)
            async with asyncio.timeout(CONNECT_SECONDS):
                await self.loop.sock_connect(connection, (endpoint.host, endpoint.port))
            async with asyncio.timeout(HANDSHAKE_SECONDS):
                tls, name = contexts(self.key).client, endpoint.host
                await self.loop.create_connection(lambda: link, sock=connection, ssl=tls, server_hostname=name)
                await link.ready
        finally:
            if link.endpoint is None:
                link.abort()
                connection.close()

    async def _end(self) -> None:
        for accepting in self._accepting:
            accepting.cancel()
        await asyncio.gather(*self._accepting, return_exceptions=True)
        for listener in self._listeners:
            listener.close()
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


def _keep_alive(found: socket.socket) -> None:
    """Have the kernel notice that the other node is gone."""
    if found.family == socket.AF_UNIX or not hasattr(socket, "TCP_USER_TIMEOUT"):
        return
    found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_SECONDS)
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_SECONDS)
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_PROBES)
    unanswered = 1000 * KEEPALIVE_SECONDS * (KEEPALIVE_PROBES + 1)
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, unanswered)
