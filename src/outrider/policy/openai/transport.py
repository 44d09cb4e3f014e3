"""One HTTP exchange with a server, over connections that are kept. What comes back is bounded in size."""

import errno
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Protocol
from urllib.request import getproxies, proxy_bypass

import aiohttp
from msgspec import Struct
from yarl import URL

from outrider.core.clock import Clock
from outrider.core.secret import Secret
from outrider.policy.openai.deadline import Deadline
from outrider.policy.openai.failure import Setback
from outrider.policy.openai.reply import MalformedReply
from outrider.policy.openai.stream import Assembly, EventReader

MAX_BODY_BYTES = 64 * 2**20
MAX_ERROR_BYTES = 64 * 2**10
CONNECT_SECONDS = 10.0
SILENCE_SECONDS = 120.0
"""A stream that has begun and then says nothing for so long is dead."""

LAST_MOMENT_SECONDS = 1.0
KEEP_SECONDS = 4.0
"""Idle connections are closed before common servers (5 s) close them on us in the middle of a request."""

_PLAIN = frozenset({"localhost", "127.0.0.1", "::1"})
_OUT_OF_FILES = frozenset({errno.EMFILE, errno.ENFILE})


class Exchange(Struct, frozen=True, kw_only=True):
    """What came back: a body, or the pieces of a stream put together."""

    status: int
    headers: Mapping[str, str]
    body: bytes = b""
    stream: Assembly | None = None


Heard = Callable[[], None]


def _unheard() -> None:
    pass


class Transport(Protocol):
    """Sends requests. Raises `Setback` where no whole answer came. Each piece of an answer is told to `heard`."""

    async def get(self, url: URL) -> Exchange: ...

    async def post(self, url: URL, body: bytes, heard: Heard = ...) -> Exchange: ...

    async def close(self) -> None: ...


class HttpTransport:
    """aiohttp, told to add nothing of its own: no cookies, no redirects, no limits beside ours.

    `keys` are sent to the servers of these origins, and to no other; `headers` to all. `secrets` are what must not be
    seen of an error besides the keys.
    """

    def __init__(
        self,
        keys: Mapping[URL, Secret],
        clock: Clock,
        *,
        headers: Mapping[str, str] | None = None,
        secrets: Sequence[Secret] = (),
        max_body_bytes: int = MAX_BODY_BYTES,
    ) -> None:
        own = {"Content-Type": "application/json", "Accept-Encoding": "identity", "User-Agent": "outrider"}
        self._secrets = tuple(secrets)
        given = {name.lower() for name in headers or ()}
        self._has_authorization = "authorization" in given
        self._keys = keys
        self._clock = clock
        self._max_body_bytes = max_body_bytes
        self._proxies: dict[URL, str | None] = {}
        self._session = aiohttp.ClientSession(
            headers={**{name: value for name, value in own.items() if name.lower() not in given}, **(headers or {})},
            cookie_jar=aiohttp.DummyCookieJar(),
            connector=aiohttp.TCPConnector(
                limit=0, keepalive_timeout=KEEP_SECONDS, ttl_dns_cache=300, socket_factory=_socket
            ),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
        )

    async def get(self, url: URL) -> Exchange:
        return await self._exchange("GET", url, None, _unheard)

    async def post(self, url: URL, body: bytes, heard: Heard = _unheard) -> Exchange:
        return await self._exchange("POST", url, body, heard)

    async def close(self) -> None:
        await self._session.close()

    async def _exchange(self, method: str, url: URL, body: bytes | None, heard: Heard) -> Exchange:
        key = self._keys.get(url.origin())
        try:
            async with self._session.request(
                method,
                url,
                data=body,
                headers={"Authorization": f"Bearer {key.reveal()}"} if key and not self._has_authorization else None,
                allow_redirects=False,
                proxy=self._proxy(url),
            ) as response:
                return await self._read(response, key, heard)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as exc:
            is_ours = isinstance(exc, OSError) and exc.errno in _OUT_OF_FILES
            said = f"no connection to {url.origin()}: {_reason(exc)}"
            raise Setback(said, is_overload=is_ours, is_gone=not is_ours) from exc
        except (aiohttp.ClientError, ConnectionError) as exc:
            reason = str(exc) or type(exc).__name__
            raise Setback(f"the connection to {url.origin()} broke: {reason}", is_fault=True) from exc

    async def _read(self, response: aiohttp.ClientResponse, key: Secret | None, heard: Heard) -> Exchange:
        if response.status == 200 and response.content_type == "text/event-stream":  # noqa: PLR2004
            stream = await self._read_stream(response, heard)
            return Exchange(status=response.status, headers=response.headers, stream=stream)
        is_error = response.status >= 400  # noqa: PLR2004
        most = MAX_ERROR_BYTES if is_error else self._max_body_bytes
        body = await self._read_body(response, most, heard, cut=is_error)
        if is_error:
            for secret in (*((key,) if key else ()), *self._secrets):
                body = body.replace(secret.reveal().encode(), b"***")  # some servers tell the key they refuse
        return Exchange(status=response.status, headers=response.headers, body=body)

    async def _read_body(self, response: aiohttp.ClientResponse, most: int, heard: Heard, *, cut: bool) -> bytes:
        pieces: list[bytes] = []
        size = 0
        while piece := await response.content.readany():
            heard()
            pieces.append(piece)
            size += len(piece)
            if size > most:
                if cut:
                    break
                raise MalformedReply(f"an answer of more than {most} bytes")
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def _read_stream(self, response: aiohttp.ClientResponse, heard: Heard) -> Assembly:
        reader, assembly = EventReader(), Assembly()
        n_bytes = 0
        try:
            async with Deadline(self._clock) as silence:
                while not assembly.is_done and (piece := await response.content.readany()):
                    silence.start(SILENCE_SECONDS)
                    heard()
                    n_bytes += len(piece)
                    if n_bytes > self._max_body_bytes:
                        raise MalformedReply(f"a stream of more than {self._max_body_bytes} bytes")
                    for event in reader.feed(piece):
                        assembly.add(event)
        except TimeoutError as exc:
            where = response.url.origin()
            raise Setback(f"{where} was silent for {SILENCE_SECONDS:g} s in a stream", is_fault=True) from exc
        await self._await_end(response)
        return assembly

    async def _await_end(self, response: aiohttp.ClientResponse) -> None:
        """After the last event: a connection is kept only if its response has ended, as it does at once."""
        with suppress(TimeoutError, aiohttp.ClientError):
            async with Deadline(self._clock) as last_moment:
                last_moment.start(LAST_MOMENT_SECONDS)
                while not response.content.at_eof():
                    await response.content.readany()

    def _proxy(self, url: URL) -> str | None:
        """From the environment, as other programs do; looked up once for each address."""
        origin = url.origin()
        if origin not in self._proxies:
            self._proxies[origin] = proxy_for(url)
        return self._proxies[origin]


def proxy_for(url: URL) -> str | None:
    host = url.host or ""
    if host in _PLAIN or proxy_bypass(host):
        return None
    return getproxies().get(url.scheme)


def _reason(error: aiohttp.ClientError) -> str:
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else None
    return os.strerror(cause.errno) if isinstance(cause, ConnectionError) and cause.errno else str(error)


def _socket(info: aiohttp.AddrInfoType) -> socket.socket:
    """A socket that notices within a minute or so that the other machine is gone, however long an answer may take."""
    family, kind, protocol, _, _ = info
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return made
