"""Where the holder of a browser speaks to it: a web socket on loopback with a secret in its address.

Invariants:
- The secret is another one after each `cut`; whoever was connected is cut off, and nothing of what it says after that,
  or has said and was not heard yet, reaches the browser.
- Nobody who does not read, such as a process that was stopped, holds up the browser or the pool.
"""

import asyncio
import hmac
import secrets
from collections import deque
from contextlib import suppress

from aiohttp import WSMsgType, web

from outrider.core.errors import MachineError
from outrider.core.loopback import refusing_pages
from outrider.pool.browser.line import MAX_MESSAGE_BYTES, Line

HOST = "127.0.0.1"
MAX_UNREAD_BYTES = 256 * 2**20
"""How much may wait for a holder that does not read, before it is cut off."""

_SECRET_BYTES = 32
_CLOSE_SECONDS = 5.0


class _Visitor:
    """One connection. `deliver` never waits; what is delivered is sent by `send`."""

    def __init__(self, request: web.Request, socket: web.WebSocketResponse) -> None:
        self._request = request
        self._socket = socket
        self._unread: deque[bytes] = deque()
        self._n_unread = 0
        self._more = asyncio.Event()

    def deliver(self, message: bytes) -> None:
        self._unread.append(message)
        self._n_unread += len(message)
        self._more.set()
        if self._n_unread > MAX_UNREAD_BYTES:
            self.cut_off()

    def cut_off(self) -> None:
        self._unread.clear()
        if self._request.transport is not None:
            self._request.transport.abort()

    async def send(self) -> None:
        """Until it is cancelled, or the other side is gone."""
        with suppress(ConnectionError):
            while True:
                self._more.clear()
                while self._unread:
                    message = self._unread.popleft()
                    self._n_unread -= len(message)
                    await self._socket.send_frame(message, WSMsgType.TEXT)
                await self._more.wait()


class Relay:
    """Open from `open` to `close`; leads nowhere until it is told where."""

    def __init__(self) -> None:
        self._line: Line | None = None
        self._secret = ""
        self._port = 0
        self._visitors: set[_Visitor] = set()
        self._runner: web.AppRunner | None = None

    @property
    def address(self) -> str:
        return f"ws://{HOST}:{self._port}/{self._secret}"

    async def open(self) -> None:
        app = web.Application(middlewares=[refusing_pages()])
        app.router.add_get("/{secret}", self._serve)
        self._runner = web.AppRunner(app, handle_signals=False, access_log=None, shutdown_timeout=_CLOSE_SECONDS)
        await self._runner.setup()
        await web.TCPSite(self._runner, HOST, 0).start()
        self._port = self._runner.addresses[0][1]

    def lead_to(self, line: Line) -> None:
        """Whoever knows the new address speaks to this browser."""
        self._line = line
        self._secret = secrets.token_urlsafe(_SECRET_BYTES)

    def cut(self) -> None:
        """At once: nobody who is connected, or knows an address from before, is heard any more."""
        line, self._line = self._line, None
        for visitor in self._visitors:
            if line is not None:
                line.dismiss(visitor)
            visitor.cut_off()
        self._visitors.clear()

    async def close(self) -> None:
        self.cut()
        if self._runner is not None:
            await self._runner.cleanup()

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        if not self._admits(request):
            return web.Response(status=web.HTTPForbidden.status_code, text="the lease of this browser is over\n")
        socket = web.WebSocketResponse(max_msg_size=MAX_MESSAGE_BYTES, compress=False)
        await socket.prepare(request)
        visitor = _Visitor(request, socket)
        if self._line is not None and self._admits(request):
            await self._attend(visitor, socket, self._line)
        visitor.cut_off()
        return socket

    def _admits(self, request: web.Request) -> bool:
        told = request.match_info["secret"].encode()
        return self._line is not None and hmac.compare_digest(told, self._secret.encode())

    async def _attend(self, visitor: _Visitor, socket: web.WebSocketResponse, line: Line) -> None:
        """Until one side hangs up, or it is cut."""
        self._visitors.add(visitor)
        try:
            await line.welcome(visitor)
            if visitor not in self._visitors:  # cut meanwhile
                return
            async with asyncio.TaskGroup() as tasks:
                sending = tasks.create_task(visitor.send())
                with suppress(ValueError):  # a message that is none ends the conversation
                    async for message in socket:
                        if message.type is WSMsgType.TEXT:
                            await line.say(visitor, message.data)
                sending.cancel()
        except MachineError:
            return
        finally:
            line.dismiss(visitor)
            self._visitors.discard(visitor)
