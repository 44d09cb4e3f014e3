"""A desktop in the hands of its holder."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from outrider.core.errors import MachineError
from outrider.pool.computer import Executed, Input, Pause, Text
from outrider.pool.desktop.session import CALL_SECONDS, Line

FILE_SECONDS = 60.0
GRACE_SECONDS = 10.0
"""How much later than its own limit a command may be reported."""

SECONDS_A_SIGN = 0.05
"""What typing takes at the most, on a busy host, with keys that get new signs."""


class DesktopComputer:
    """A screen, a mouse and a keyboard, and whatever the host has installed. `line` gives the line to use now."""

    def __init__(self, line: Callable[[], Line], size: tuple[int, int]) -> None:
        self.screen_size = size
        self._line = line

    async def screenshot(self) -> bytes:
        """The screen as PNG, pointer included."""
        return (await self._line().call("screenshot")).body

    async def input(self, events: Sequence[Input]) -> None:
        """As told. If one of the events makes no sense, none is carried out."""
        paused = sum(event.seconds for event in events if isinstance(event, Pause))
        typed = sum(len(event.text) for event in events if isinstance(event, Text))
        seconds = CALL_SECONDS + paused + typed * SECONDS_A_SIGN
        await self._line().call("input", seconds=seconds, events=msgspec.to_builtins(list(events)))

    async def execute(self, command: Sequence[str] | str, *, timeout: float = 120.0) -> Executed:
        """As told; what it leaves in the background goes on. Of each output 16 MiB are kept."""
        seconds = timeout + GRACE_SECONDS
        reply = await self._line().call("execute", seconds=seconds, command=_words(command), limit=timeout)
        returncode, n_stdout = reply.head.get("returncode"), reply.head.get("n_stdout")
        if not isinstance(returncode, int | None) or not isinstance(n_stdout, int):
            raise MachineError(f"an answer that makes no sense: {reply.head}", stage="machine.execute")
        stdout, stderr = (part.decode(errors="replace") for part in (reply.body[:n_stdout], reply.body[n_stdout:]))
        return Executed(returncode=returncode, stdout=stdout, stderr=stderr)

    async def launch(self, command: Sequence[str] | str) -> None:
        await self._line().call("launch", command=_words(command))

    async def read_file(self, path: str) -> bytes | None:
        reply = await self._line().call("read", path=path, seconds=FILE_SECONDS)
        return reply.body if reply.head.get("found") else None

    async def write_file(self, path: str, data: bytes) -> None:
        await self._line().call("write", body=data, path=path, seconds=FILE_SECONDS)

    async def accessibility_tree(self) -> str:
        """The windows, not what is in them: program, title, place, focus."""
        return (await self._line().call("tree")).body.decode(errors="replace")

    async def terminal_text(self) -> str | None:
        """What stands in the xterm in front, scrolled lines included; None if none is. Other terminals are not read."""
        reply = await self._line().call("terminal")
        return reply.body.decode(errors="replace") if reply.head.get("found") else None

    async def pointer(self) -> tuple[int, int]:
        """Where the mouse pointer is."""
        match (await self._line().call("pointer")).head.get("at"):
            case [int(x), int(y)]:
                return x, y
            case told:
                raise MachineError(f"an answer that makes no sense: {told}", stage="machine.pointer")

    async def windows(self) -> list[dict[str, Any]]:
        """The windows, the lowest first: number, title, program, pid, place, focused, hidden."""
        return list((await self._line().call("windows")).head.get("windows", ()))


def _words(command: Sequence[str] | str) -> list[str] | str:
    return command if isinstance(command, str) else list(command)
