"""The docker engine, asked through its HTTP API over a Unix socket on this host."""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec

from outrider.core.decoding import from_json
from outrider.core.errors import InvalidInput, MachineError

DEFAULT_SOCKET = "/var/run/docker.sock"
CONNECT_SECONDS = 5.0
ASK_SECONDS = 30.0
START_SECONDS = 120.0
"""How long making, starting or removing a container may take: its files may have to be copied or deleted."""

NOT_FOUND, CONFLICT = 404, 409
_FIRST_ERROR = 400
_MAX_HEAD_BYTES = 65536


def socket_at(given: str | None) -> str:
    """The path of the engine's socket: as given, as in DOCKER_HOST, or where engines have it."""
    place = given or os.environ.get("DOCKER_HOST") or DEFAULT_SOCKET
    scheme, has_scheme, path = place.rpartition("://")
    if has_scheme and scheme != "unix":
        raise InvalidInput(
            f"the docker engine at {place}: machines are containers on this host, reached over a Unix socket; "
            "set settings.socket or DOCKER_HOST to unix:///path/to/docker.sock"
        )
    return path


class Engine:
    """One engine. Each question has a connection of its own and is asked once."""

    def __init__(self, socket: str) -> None:
        self.socket = socket
        self._session: aiohttp.ClientSession | None = None

    async def ask(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        json: Any = None,
        seconds: float | None = ASK_SECONDS,
        none_if: tuple[int, ...] = (),
    ) -> Any:
        """What it answers; None for the statuses in `none_if`. `MachineError`: it refuses, or is not there."""
        limits = aiohttp.ClientTimeout(total=seconds, sock_connect=CONNECT_SECONDS)
        try:
            async with self._opened().request(method, path, params=params, json=json, timeout=limits) as response:
                status, body = response.status, await response.read()
        except TimeoutError as exc:
            raise self._error(path, "no answer in time") from exc
        except (aiohttp.ClientError, OSError) as exc:
            raise self._error(path, str(exc) or type(exc).__name__) from exc
        if status in none_if:
            return None
        if status >= _FIRST_ERROR:
            raise self._error(path, _reason(body, status))
        try:
            return from_json(body) if body.startswith((b"{", b"[")) else None
        except msgspec.DecodeError as exc:
            raise self._error(path, f"an answer that makes no sense: {exc}") from exc

    @asynccontextmanager
    async def attached(self, exec_id: str) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """Start an exec instance. First comes the engine's answer, for `accepted`, then what it writes, in frames.

        What is written to it, after it was accepted, is its standard input.
        """
        path = f"/exec/{exec_id}/start"
        body = b'{"Detach":false,"Tty":false}'
        head = (
            f"POST {path} HTTP/1.1\r\nHost: docker\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        writer = None
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                reader, writer = await asyncio.open_unix_connection(self.socket, limit=_MAX_HEAD_BYTES)
            writer.write(head.encode() + body)
            yield reader, writer
        except TimeoutError as exc:
            raise self._error(path, "no answer in time") from exc
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError) as exc:
            raise self._error(path, str(exc) or type(exc).__name__) from exc
        finally:
            if writer is not None:
                writer.transport.abort()

    async def accepted(self, reader: asyncio.StreamReader) -> None:
        """Raises `MachineError` if the instance was not started. May be cancelled and asked again."""
        answer = await reader.readuntil(b"\r\n\r\n")
        status = int(answer.split(None, 2)[1])
        if status >= _FIRST_ERROR:
            raise self._error("/exec", _reason(await reader.read(_MAX_HEAD_BYTES), status))

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.UnixConnector(self.socket, limit=0, force_close=True)
            self._session = aiohttp.ClientSession("http://docker", connector=connector)
        return self._session

    def _error(self, path: str, reason: str) -> MachineError:
        return MachineError(f"docker engine {self.socket}, {path}: {reason}", stage=f"machine.{path.split('/')[1]}")


def _reason(body: bytes, status: int) -> str:
    try:
        return str(from_json(body, dict[str, Any])["message"])
    except (msgspec.MsgspecError, KeyError):
        return f"status {status}: {body[:500].decode(errors='replace').strip()}"
