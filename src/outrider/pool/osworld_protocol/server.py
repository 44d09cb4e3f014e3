"""OSWorld's in-guest HTTP protocol in front of any computer, so that what drives OSWorld's images drives ours too.

Mouse and keyboard come as PyAutoGUI code. Where that only names events one after the other, it is turned into events,
and the machine needs neither Python nor PyAutoGUI; any other code is run in the machine as it stands.
"""

from collections.abc import Awaitable, Callable, Iterable
from types import TracebackType
from typing import Self

import msgspec
from aiohttp import web

from outrider.core.errors import MachineError
from outrider.core.loopback import refusing_pages
from outrider.pool.computer import Computer
from outrider.pool.osworld_protocol import commands, files, looks, recording, windows
from outrider.pool.osworld_protocol.client import OURS
from outrider.pool.osworld_protocol.front import FRONT, Front, Reset

MAX_REQUEST_BYTES = 256 * 2**20


class OsworldServer:
    """`async with OsworldServer(computer) as server:` serves it at `server.port` while the block runs.

    It knows no passwords, as the protocol has none: every program that reaches the port has the machine. Web pages do
    not: what they send is refused. Clients ask for an address, for localhost, for `host` or for one of `names`.
    With `reset`, `POST /reset` brings the machine back to its clean state, which is not part of OSWorld's protocol.
    """

    def __init__(
        self,
        computer: Computer,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        names: Iterable[str] = (),
        platform: str = "Linux",
        reset: Reset | None = None,
    ) -> None:
        self.host = host
        self.port = port
        middlewares = [refusing_pages((host, *names)), _answer_errors]
        self._app = web.Application(client_max_size=MAX_REQUEST_BYTES, middlewares=middlewares)
        self._app[FRONT] = Front(computer, platform, reset)
        self._app[recording.RECORDING] = []
        self._app.on_shutdown.append(recording.end_all)
        self._app.add_routes(ROUTES)
        self._app.on_response_prepare.append(_sign)
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        self._runner = web.AppRunner(self._app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, self.host, self.port).start()
        except BaseException:
            await self.stop()
            raise
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None


async def _sign(_: web.Request, response: web.StreamResponse) -> None:
    response.headers["Server"] = OURS


@web.middleware
async def _answer_errors(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    try:
        return await handler(request)
    except MachineError as exc:
        return web.json_response({"status": "error", "message": str(exc)}, status=500)
    except (msgspec.MsgspecError, KeyError, ValueError) as exc:
        return web.json_response({"status": "error", "message": f"{type(exc).__name__}: {exc}"}, status=400)


async def _reset(request: web.Request) -> web.Response:
    front = request.app[FRONT]
    if front.reset is None:
        raise web.HTTPNotFound
    await front.reset()
    front.forget()
    return web.Response(text="reset")


ROUTES = (
    *looks.ROUTES,
    *commands.ROUTES,
    *files.ROUTES,
    *windows.ROUTES,
    *recording.ROUTES,
    web.post("/reset", _reset),
)
