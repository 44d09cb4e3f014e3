"""The host's side of the agent in a guest: requests over a virtio-serial port, answered in any order."""

import asyncio
import itertools
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import NamedTuple, Self

from outrider.core.errors import MachineError
from outrider.pool.qemu.sockets import connect

CLOSE_SECONDS = 1.0
_SEED_BYTES = 64
_N_WORDS = 4


class Answer(NamedTuple):
    """`status` is a number, or `late` for a command that reached its limit."""

    status: str
    output: bytes
    errors: bytes


class Agent:
    """Made by `open`. Answers to requests of an earlier connection are thrown away."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._prefix = secrets.token_hex(4)
        self._numbers = itertools.count(1)
        self._waiting: dict[str, asyncio.Future[Answer]] = {}
        self._lost = ""
        self._listening = asyncio.create_task(self._listen(), name="agent")

    @classmethod
    async def open(cls, path: Path) -> Self:
        """Connect to the port. Whether somebody answers at its other end shows at the first request."""
        try:
            return cls(*await connect(path))
        except OSError as exc:
            raise MachineError(f"the guest's port cannot be opened: {exc}", stage="qemu.agent") from exc

    async def ping(self, seconds: float) -> None:
        """Return as soon as the guest answers."""
        await self.ask("ping", seconds=seconds)

    async def wake(self, name: str, seconds: float) -> None:
        """Tell a guest that was restored the time and its name, and give it chances of its own."""
        await self.ask("wake", int(time.time()), name.encode(), secrets.token_bytes(_SEED_BYTES), seconds=seconds)

    async def execute(self, script: bytes, timeout: float, *, grace_seconds: float) -> Answer:
        """Run it, and stop it after `timeout`: then its status is `late`. The answer has `grace_seconds` more."""
        key = self._new_key()
        seconds = timeout + 2 * grace_seconds
        async with self._asked(f"{key} execute 0 {len(script)} 0", script, seconds=seconds) as answer:
            done, _ = await asyncio.wait([answer], timeout=timeout)
            if not done:
                await self.ask("stop", 0, key.encode(), seconds=grace_seconds)
            return await answer

    async def ask(
        self, verb: str, number: int = 0, first: bytes = b"", second: bytes = b"", *, seconds: float
    ) -> Answer:
        """Raises `MachineError` if there is no answer in time."""
        header = f"{self._new_key()} {verb} {number} {len(first)} {len(second)}"
        async with self._asked(header, first + second, seconds=seconds) as answer:
            return await answer

    async def close(self) -> None:
        self._lose("the guest's port was closed")
        self._listening.cancel()
        await asyncio.wait([self._listening])
        self._writer.close()
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._writer.wait_closed()

    def _new_key(self) -> str:
        return f"{self._prefix}-{next(self._numbers)}"

    @asynccontextmanager
    async def _asked(self, header: str, payload: bytes, *, seconds: float) -> AsyncIterator[asyncio.Future[Answer]]:
        key, verb, *_ = header.split()
        if self._lost:
            raise MachineError(f"{verb}: {self._lost}", stage="qemu.agent")
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting[key] = answer
        try:
            async with asyncio.timeout(seconds):
                self._writer.write(
                    f"{header}\n".encode() + payload
                )  # whole at once: a request is never cut by cancellation
                await self._writer.drain()
                yield answer
        except TimeoutError as exc:
            raise MachineError(f"the guest did not answer {verb} within {seconds:g} s", stage="qemu.agent") from exc
        except OSError as exc:
            raise MachineError(f"{verb}: the guest's port broke: {exc}", stage="qemu.agent") from exc
        finally:
            del self._waiting[key]
            answer.cancel()

    async def _listen(self) -> None:
        reason = "the guest is gone"
        try:
            while line := await self._reader.readline():
                await self._take(line.split())
        except (OSError, ValueError, asyncio.IncompleteReadError) as exc:
            reason = f"the guest's port broke: {exc}"
        finally:
            self._lose(reason)

    async def _take(self, words: list[bytes]) -> None:
        if len(words) != _N_WORDS or not words[0].startswith(self._prefix.encode()):
            return  # left over from before: what we asked for comes after it, at the start of a line
        key, status, *sizes = words
        output, errors = [await self._reader.readexactly(int(size)) for size in sizes]
        waiting = self._waiting.get(key.decode())
        if waiting is not None and not waiting.done():
            waiting.set_result(Answer(status.decode(), output, errors))

    def _lose(self, reason: str) -> None:
        self._lost = self._lost or reason
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(MachineError(self._lost, stage="qemu.agent"))
