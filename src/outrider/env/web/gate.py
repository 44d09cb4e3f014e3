"""The gate: the only way out of an episode's browser, a proxy on loopback that belongs to that episode.

Invariants:
- Every request of the browser comes through here: pages, what they load, redirects, fetches, web sockets. The browser
  resolves no names and opens no other connection (see `pool.browser.flags`).
- The task's own pages are answered here; they need no port and have the same address in every episode.
- A connection goes to one address, checked after its name was resolved, whatever is sent on it.
"""

import asyncio
import html
import socket
from collections.abc import Sequence
from contextlib import suppress
from http import HTTPStatus
from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit

from outrider.env.web.hosts import AllowedHosts, plain_host
from outrider.env.web.site import Response, Site

_HEAD_SECONDS = 30.0
_CONNECT_SECONDS = 10.0
_BLOCK = 1 << 16
_MAX_NOTES = 50
_MAX_SHOWN = 300
_NOT_PASSED_ON = frozenset({"connection", "keep-alive", "te", "trailer", "host"})
_WEB_PORTS = {"http": 80, "https": 443}
_ICON = "/favicon.ico"
"""The browser asks for it by itself, so nobody wants to know what became of it."""


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _Head(NamedTuple):
    """The head of a request as a proxy gets it. `is_tunnel`: the browser wants a bare connection to the host."""

    method: str
    target: str
    url: SplitResult
    headers: tuple[tuple[str, str], ...]

    @property
    def is_tunnel(self) -> bool:
        return self.method == "CONNECT"

    @property
    def host(self) -> str:
        return plain_host(self.url.hostname or "")

    @property
    def port(self) -> int:
        return _WEB_PORTS["https" if self.is_tunnel else "http"] if self.url.port is None else self.url.port

    @property
    def n_body(self) -> int:
        """How many bytes follow. Browsers say it to proxies; what does not is turned away."""
        named = {name.lower(): value for name, value in self.headers}
        length = named.get("content-length", "0")
        if "transfer-encoding" in named or not length.isdecimal():
            raise _Refused(HTTPStatus.LENGTH_REQUIRED, "the length of the request is not given")
        return int(length)

    @property
    def shown(self) -> str:
        """The address as the model may read it."""
        return f"{self.url.hostname}:{self.port}" if self.is_tunnel else self.url.geturl()[:_MAX_SHOWN]


class _Refused(Exception):
    """The request goes nowhere."""

    def __init__(self, status: HTTPStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Gate:
    """Serves `site`, if there is one, and lets through what `hosts` allow. Notes what it turned away."""

    def __init__(self, hosts: AllowedHosts, site: Site | None = None) -> None:
        self._hosts = hosts
        self._site = site
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._notes: dict[str, None] = {}

    async def open(self) -> str:
        """Begin to serve; the address to give to the browser."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=_BLOCK)
        return "http://{}:{}".format(*self._server.sockets[0].getsockname())

    async def close(self) -> None:
        if self._server is None:
            return
        self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._server.wait_closed()

    def allows(self, url: str) -> bool:
        """Whether a request for `url`, of the web, would be let through, as far as its name tells."""
        parts = urlsplit(url)
        port = _WEB_PORTS[parts.scheme] if parts.port is None else parts.port
        host = plain_host(parts.hostname or "")
        return self._is_own(host, port, parts.scheme) or self._hosts.allow(host, port)

    @property
    def reach(self) -> str:
        """The hosts that can be visited, as the model may read it."""
        own = () if self._site is None else (self._site.host,)
        return ", ".join([*own, *self._hosts.names]) or "none"

    def take_notes(self) -> tuple[str, ...]:
        """What was turned away or could not be reached since this was last called, each address once."""
        notes, self._notes = tuple(self._notes), {}
        return notes

    def _is_own(self, host: str, port: int, scheme: str) -> bool:
        return self._site is not None and (scheme, host, port) == ("http", self._site.host, 80)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.create_task(self._serve(reader, writer), name="web gate")
        self._connections.add(connection)
        connection.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
                await self._answer(reader, writer)
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_HEAD_SECONDS):
                head = _parse(await reader.readuntil(b"\r\n\r\n"))
            if not head.is_tunnel and self._is_own(head.host, head.port, head.url.scheme):
                await _send(writer, await self._own_page(head), only_head=head.method == "HEAD")
                return
            n_body = None if head.is_tunnel else head.n_body
            upstream = await self._connect(head)
        except (_Refused, asyncio.LimitOverrunError) as exc:
            status = exc.status if isinstance(exc, _Refused) else HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
            page = (
                f"<!doctype html><title>{status.phrase}</title><h1>{status.phrase}</h1><p>{html.escape(str(exc))}</p>"
            )
            await _send(writer, Response(status, page.encode()))
            return
        await _pass_on(head, n_body, (reader, writer), upstream)

    async def _own_page(self, head: _Head) -> Response:
        assert self._site is not None
        if head.method not in ("GET", "HEAD"):
            raise _Refused(HTTPStatus.METHOD_NOT_ALLOWED, "this site only shows pages")
        return await self._site.get(head.target)

    async def _connect(self, head: _Head) -> Streams:
        """A connection to where the request wants to go, if it may."""
        if not self._hosts.allow(head.host, head.port):
            raise self._turned_away(f"blocked: {head.shown} is not on an allowed host")
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                loop = asyncio.get_running_loop()
                found = await loop.getaddrinfo(head.host, head.port, type=socket.SOCK_STREAM)
                addresses = [str(address[4][0]) for address in found]
                if not all(self._hosts.allow_address(address, head.host, head.port) for address in addresses):
                    raise self._turned_away(f"blocked: {head.shown} is in a private network")
                return await _connection(addresses, head.port)
        except (OSError, UnicodeError) as exc:  # TimeoutError is an OSError
            reason = "it did not answer in time" if isinstance(exc, TimeoutError) else str(exc)
            raise self._turned_away(f"{head.shown} cannot be reached: {reason}", HTTPStatus.BAD_GATEWAY) from exc

    def _turned_away(self, reason: str, status: HTTPStatus = HTTPStatus.FORBIDDEN) -> _Refused:
        if len(self._notes) < _MAX_NOTES and _ICON not in reason:
            self._notes[reason] = None
        return _Refused(status, reason)


def _parse(raw: bytes) -> _Head:
    try:
        request, *lines = raw.decode("latin-1").rstrip("\r\n").split("\r\n")
        method, target, _ = request.split(" ")
        url = urlsplit(f"//{target}" if method == "CONNECT" else target)
        pairs = [line.partition(":") for line in lines]
        head = _Head(method, target, url, tuple((name.strip(), value.strip()) for name, _, value in pairs))
        is_whole = bool(head.host and head.port)
    except ValueError as exc:
        raise _Refused(HTTPStatus.BAD_REQUEST, "not a request that a proxy can read") from exc
    if not is_whole or url.scheme != ("" if head.is_tunnel else "http"):
        raise _Refused(HTTPStatus.BAD_REQUEST, "not a request that a proxy can answer")
    return head


async def _send(writer: asyncio.StreamWriter, response: Response, *, only_head: bool = False) -> None:
    head = (
        f"HTTP/1.1 {response.status.value} {response.status.phrase}\r\nContent-Type: {response.media_type}\r\n"
        f"Content-Length: {len(response.body)}\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n"
    )
    writer.write(head.encode() + (b"" if only_head else response.body))
    await writer.drain()


async def _connection(addresses: Sequence[str], port: int) -> Streams:
    """To the first address that answers."""
    *others, last = dict.fromkeys(addresses)
    for address in others:
        with suppress(OSError):
            return await asyncio.open_connection(address, port, limit=_BLOCK)
    return await asyncio.open_connection(last, port, limit=_BLOCK)


async def _pass_on(head: _Head, n_body: int | None, browser: Streams, upstream: Streams) -> None:
    """Connect the two sides until one of them has had enough.

    Of the browser's side only this request is passed on: what follows it may be meant for another host. The server is
    asked to close after its answer, and a tunnel is passed on as it is.
    """
    try:
        if head.is_tunnel:
            browser[1].write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        else:
            upstream[1].write(_rewritten(head))
        there, back = _copy(browser[0], upstream[1], n_body), _copy(upstream[0], browser[1])
        ways = [asyncio.ensure_future(there), asyncio.ensure_future(back)]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
    finally:
        upstream[1].close()
        with suppress(OSError):
            await upstream[1].wait_closed()


def _rewritten(head: _Head) -> bytes:
    """The head of the request as a server wants it, which is not how a proxy gets it."""
    kept = [pair for pair in head.headers if not pair[0].lower().startswith("proxy-")]
    headers = [f"{name}: {value}" for name, value in kept if name.lower() not in _NOT_PASSED_ON]
    authority, _, path = head.target.partition("://")[2].partition("/")
    first = [f"{head.method} /{path} HTTP/1.1", f"Host: {authority.rpartition('@')[2]}", "Connection: close"]
    return "\r\n".join([*first, *headers, "", ""]).encode("latin-1")


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, n_bytes: int | None = None) -> None:
    """All that comes, or `n_bytes`; and return when anything else comes, or the end."""
    left = n_bytes
    while data := await reader.read(_BLOCK if left is None else min(_BLOCK, max(left, 1))):
        if left is not None:
            if left == 0:
                return
            left -= len(data)
        writer.write(data)
        await writer.drain()
