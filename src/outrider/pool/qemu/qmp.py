"""The monitor of a QEMU process: commands with a deadline, and events, over a Unix socket."""

import asyncio
import itertools
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from outrider.core.errors import MachineError
from outrider.pool.qemu.sockets import connect

COMMAND_SECONDS = 30.0
CLOSE_SECONDS = 1.0

Event = dict[str, Any]
"""As QEMU sends it: `event` is its name, `data` what it tells."""


class QmpRefused(MachineError):
    """QEMU answered a command with an error."""


class Qmp:
    """Made by `open`; commands may be given by several tasks at once. All that wait learn when the process is gone."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, hear: Callable[[Event], None]
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._hear = hear
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._lost = ""
        self._listening: asyncio.Task[None] | None = None
        self.greeting: dict[str, Any] = {}

    @classmethod
    async def open(cls, path: Path, *, seconds: float, hear: Callable[[Event], None] = lambda _: None) -> Self:
        """Connect and agree on capabilities. `hear` is called with each event from then on."""
        try:
            async with asyncio.timeout(seconds):
                qmp = cls(*await connect(path), hear)
                try:
                    await qmp._greet(seconds)
                except BaseException:
                    await qmp.close()
                    raise
                return qmp
        except (OSError, TimeoutError, ValueError, KeyError) as exc:
            raise MachineError(f"the monitor of QEMU does not answer: {_said(exc)}", stage="qemu.monitor") from exc

    async def execute(self, command: str, *, seconds: float = COMMAND_SECONDS, **arguments: Any) -> Any:
        """What QEMU returns. Raises `QmpRefused` if it refuses, `MachineError` if it is gone or late."""
        if self._lost:
            raise MachineError(f"{command}: {self._lost}", stage="qemu.monitor")
        number = next(self._numbers)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(seconds):
                message = {"execute": command, "arguments": arguments, "id": number}
                self._writer.write(json.dumps(message).encode() + b"\n")
                await self._writer.drain()
                return await answer
        except TimeoutError as exc:
            raise MachineError(f"QEMU did not answer {command} within {seconds:g} s", stage="qemu.monitor") from exc
        except OSError as exc:
            raise MachineError(f"{command}: the connection to QEMU broke: {exc}", stage="qemu.monitor") from exc
        finally:
            del self._waiting[number]

    async def heard_out(self) -> None:
        """Until all that a process which has ended had to say was heard."""
        if self._listening is not None:
            await asyncio.wait([self._listening], timeout=CLOSE_SECONDS)

    async def close(self) -> None:
        """Let go of the connection; the process lives on."""
        self._lose("the connection to QEMU was closed")
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.wait([self._listening])
        self._writer.close()
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._writer.wait_closed()

    async def _greet(self, seconds: float) -> None:
        greeting = await self._reader.readline()
        if not greeting:
            raise MachineError("QEMU ended before it could be spoken to", stage="qemu.monitor")
        self.greeting = json.loads(greeting)["QMP"]
        self._listening = asyncio.create_task(self._listen(), name="qmp")
        await self.execute("qmp_capabilities", seconds=seconds)

    async def _listen(self) -> None:
        reason = "QEMU is gone"
        try:
            while line := await self._reader.readline():
                self._take(json.loads(line))
        except (OSError, ValueError) as exc:
            reason = f"the connection to QEMU broke: {_said(exc)}"
        finally:
            self._lose(reason)

    def _take(self, message: dict[str, Any]) -> None:
        if "event" in message:
            self._hear(message)
        elif (waiting := self._waiting.get(message.get("id", 0))) is not None and not waiting.done():
            if "error" in message:
                waiting.set_exception(QmpRefused(message["error"]["desc"], stage="qemu.monitor"))
            else:
                waiting.set_result(message["return"])

    def _lose(self, reason: str) -> None:
        self._lost = self._lost or reason
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(MachineError(self._lost, stage="qemu.monitor"))


def _said(error: BaseException) -> str:
    return str(error) or type(error).__name__
