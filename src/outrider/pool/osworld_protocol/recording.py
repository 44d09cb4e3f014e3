"""Recording the machine's screen: an animated PNG, where OSWorld's own server has a film."""

import asyncio
from contextlib import suppress

from aiohttp import web

from outrider.core.animation import MEDIA_TYPE, Animation
from outrider.core.errors import MachineError
from outrider.pool.computer import Computer
from outrider.pool.osworld_protocol.front import FRONT, failure

MAX_BYTES = 32 << 20
MAX_SECONDS = 1800.0
INTERVAL_SECONDS = 0.25


class Recording:
    """Looks at the screen now and then, from when it is made until `end`. A look that fails is left out."""

    def __init__(self, computer: Computer) -> None:
        self._computer = computer
        self._animation = Animation(MAX_BYTES)
        self._looking = asyncio.create_task(self._look(), name="recording of a screen")

    async def end(self) -> bytes | None:
        """The recording as a file; None if nothing was ever seen."""
        self._looking.cancel()
        await asyncio.wait([self._looking])
        return self._animation.png()

    async def _look(self) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + MAX_SECONDS
        while loop.time() < until:
            with suppress(MachineError):
                self._animation.add(await self._computer.screenshot(), loop.time())
            await asyncio.sleep(INTERVAL_SECONDS)


RECORDING = web.AppKey("recording", list[Recording])
"""The one that goes on, if one does."""


async def _start(request: web.Request) -> web.Response:
    computer, going_on = request.app[FRONT].computer, request.app[RECORDING]
    if 0 in computer.screen_size:
        return failure("this machine has no screen to record", status=501)
    if going_on:
        return failure("Recording is already in progress.", status=400)
    going_on.append(Recording(computer))
    return web.json_response({"status": "success", "message": "Started recording."})


async def _end(request: web.Request) -> web.Response:
    going_on = request.app[RECORDING]
    if not going_on:
        return failure("No recording in progress to stop.", status=400)
    recorded = await going_on.pop().end()
    if recorded is None:
        return failure("the screen was never seen while it was recorded")
    return web.Response(body=recorded, content_type=MEDIA_TYPE)


async def end_all(app: web.Application) -> None:
    """The server stops."""
    while app[RECORDING]:
        await app[RECORDING].pop().end()


ROUTES = (web.post("/start_recording", _start), web.post("/end_recording", _end))
