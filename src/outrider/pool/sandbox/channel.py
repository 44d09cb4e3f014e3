"""Asking the resident of a sandbox, from outside."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from outrider.core.decoding import convert, from_json
from outrider.core.errors import MachineError, MachineRefusal
from outrider.pool.computer import Executed, Input
from outrider.pool.sandbox.resident import MAX_FILE_BYTES, PREFIX, message

ACCEPT_SECONDS = 5.0
"""How long a sound sandbox takes, at the most, to turn to a request."""

FILE_SECONDS = 120.0
GRACE_SECONDS = 10.0
"""How much later than its own limit a command may be reported."""

MAX_HEADER_BYTES = 65536


class Asker:
    """Asks at one socket. Nothing is asked twice; a request that nobody turned to in time is not carried out later."""

    def __init__(self, path: str, name: str) -> None:
        self._path = path
        self._name = name

    async def ask(self, request: dict[str, Any], *bodies: bytes, seconds: float) -> tuple[dict[str, Any], list[bytes]]:
        what = request["do"]
        try:
            async with asyncio.timeout(seconds + ACCEPT_SECONDS), self._connected() as (reader, writer):
                writer.write(message(request, *bodies))
                await writer.drain()
                header, answers = await _answer(reader)
        except TimeoutError as exc:
            raise self._error(f"no answer within {seconds:g} s", what) from exc
        except (OSError, asyncio.IncompleteReadError) as exc:
            raise self._error(f"lost: {exc}", what) from exc
        except (ValueError, TypeError, KeyError, msgspec.MsgspecError) as exc:
            raise self._error(f"an answer that makes no sense: {exc}", what) from exc
        if "error" in header:
            raise self._error(str(header["error"]), what)
        return header, answers

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        async with asyncio.timeout(ACCEPT_SECONDS):
            reader, writer = await asyncio.open_unix_connection(self._path)
        try:
            async with asyncio.timeout(ACCEPT_SECONDS):
                await reader.readexactly(1)
            yield reader, writer
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    def _error(self, reason: str, what: str) -> MachineError:
        return MachineError(f"machine {self._name}, {what}: {reason}", stage=f"machine.{what}")


async def _answer(reader: asyncio.StreamReader) -> tuple[dict[str, Any], list[bytes]]:
    (length,) = PREFIX.unpack(await reader.readexactly(PREFIX.size))
    if length > MAX_HEADER_BYTES:
        raise ValueError("its header is too long")
    header = from_json(await reader.readexactly(length), dict[str, Any])
    sizes = convert(header["sizes"], list[int])
    if any(size < 0 for size in sizes) or sum(sizes) > MAX_FILE_BYTES:
        raise ValueError("it is too long")
    return header, [await reader.readexactly(size) for size in sizes]


class SandboxComputer:
    """A sandbox in the hands of its holder. It has no screen."""

    screen_size = (0, 0)

    def __init__(self, socket: Path | str, name: str) -> None:
        self._asker = Asker(str(socket), name)
        self._name = name

    async def screenshot(self) -> bytes:
        raise self._no_screen("screenshot")

    async def input(self, events: Sequence[Input]) -> None:  # noqa: ARG002 there is nothing to give it to
        raise self._no_screen("input")

    async def execute(self, command: Sequence[str] | str, *, timeout: float = 120.0) -> Executed:
        request = {"do": "execute", "command": _plain(command), "seconds": timeout}
        header, outputs = await self._asker.ask(request, seconds=timeout + GRACE_SECONDS)
        returncode = header.get("returncode")
        if len(outputs) != 2 or not isinstance(returncode, int | None):  # noqa: PLR2004 stdout and stderr
            raise MachineError(f"machine {self._name}: an answer that makes no sense", stage="machine.execute")
        stdout, stderr = (output.decode(errors="replace") for output in outputs)
        return Executed(returncode=returncode, stdout=stdout, stderr=stderr)

    async def launch(self, command: Sequence[str] | str) -> None:
        await self._asker.ask({"do": "launch", "command": _plain(command)}, seconds=GRACE_SECONDS)

    async def read_file(self, path: str) -> bytes | None:
        header, contents = await self._asker.ask({"do": "read", "path": path}, seconds=FILE_SECONDS)
        return contents[0] if header.get("found") and contents else None

    async def write_file(self, path: str, data: bytes) -> None:
        await self._asker.ask({"do": "write", "path": path}, data, seconds=FILE_SECONDS)

    async def accessibility_tree(self) -> str:
        raise self._no_screen("accessibility_tree")

    async def terminal_text(self) -> str | None:
        return None

    def _no_screen(self, what: str) -> MachineRefusal:
        return MachineRefusal(f"machine {self._name} has no screen", stage=f"machine.{what}")


def _plain(command: Sequence[str] | str) -> list[str] | str:
    return command if isinstance(command, str) else list(command)
