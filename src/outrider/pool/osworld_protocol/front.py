"""What the handlers of the server share: the computer behind it, and how requests are read and answered."""

import shlex
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from aiohttp import web

from outrider.core.decoding import from_json
from outrider.pool.computer import Computer, Executed, Input, MoveTo

LOOK_SECONDS = 10.0

Reset = Callable[[], Awaitable[None]]


class Front:
    """The computer, and what is remembered of it from one request to the next."""

    def __init__(self, computer: Computer, platform: str, reset: Reset | None) -> None:
        self.computer = computer
        self.platform = platform
        self.reset = reset
        self.pointer = (0, 0)
        """Where it was last sent."""
        self.wallpaper: str | None = None
        """The file that was last made the wallpaper."""
        self._home: str | None = None

    def forget(self) -> None:
        """The machine was reset."""
        self.pointer, self.wallpaper, self._home = (0, 0), None, None

    async def input(self, events: Sequence[Input]) -> None:
        await self.computer.input(events)
        for event in events:
            if isinstance(event, MoveTo):
                self.pointer = (event.x, event.y)

    async def place(self, path: str) -> str:
        """A path as the machine knows it: `~` and `$HOME` stand for its user's folder."""
        if path == "~" or path.startswith("~/"):
            return await self._user_folder() + path[1:]
        return await self._user_folder() + path[5:] if path.startswith("$HOME/") else path

    async def words(self, command: list[str] | str) -> list[str] | str:
        """A command as the machine takes it."""
        if isinstance(command, str):
            return command
        return [await self.place(word) if word.startswith("~/") else word for word in command]

    async def ask(self, *words: str) -> Executed:
        """Ask a program that the machine may not have: the shell says so."""
        return await self.computer.execute(shlex.join(words), timeout=LOOK_SECONDS)

    async def _user_folder(self) -> str:
        if self._home is None:
            self._home = (await self.computer.execute('printf %s "$HOME"', timeout=LOOK_SECONDS)).stdout
        return self._home


FRONT = web.AppKey("front", Front)


async def asked(request: web.Request) -> Mapping[str, Any]:
    """What a request says, as JSON. A page could send it as anything else without asking first."""
    if request.content_type != "application/json":
        raise web.HTTPUnsupportedMediaType(text="send JSON, with the header `Content-Type: application/json`\n")
    return from_json(await request.read(), dict[str, Any])


def failure(message: str, status: int = 500) -> web.Response:
    return web.json_response({"status": "error", "message": message}, status=status)
