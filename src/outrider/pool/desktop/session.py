"""One life of a desktop, from its start to its reset: its walls, and the line to the program inside."""

import asyncio
import itertools
from collections.abc import Mapping
from typing import Any, NamedTuple, cast

from outrider.core.errors import MachineError, MachineRefusal
from outrider.core.tasks import uninterrupted
from outrider.pool.desktop import walls
from outrider.pool.desktop.inside.frames import BadFrame, Frames, frame
from outrider.pool.desktop.walls import Shape, Walls

START_SECONDS = 20.0
CALL_SECONDS = 15.0


class Reply(NamedTuple):
    """What the program inside answered. It is not to be trusted: others run beside it."""

    head: Mapping[str, Any]
    body: bytes


class Line(asyncio.Protocol):
    """Requests, each answered once, in any order; all fail when the line is lost."""

    def __init__(self, machine_id: str) -> None:
        self.last_words = ""
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._machine_id = machine_id
        self._frames = Frames()
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Reply]] = {}
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.WriteTransport", transport)  # other event loops have their own kind

    def data_received(self, data: bytes) -> None:
        try:
            for head, body in self._frames.feed(data):
                self._take(head, body)
        except BadFrame as exc:
            self.last_words = f"an answer that makes no sense: {exc}"
            self.close()

    def _take(self, head: dict[str, Any], body: bytes) -> None:
        if "dying" in head:
            self.last_words = f"{head['dying']}\n{head.get('log', '')}".strip()
        elif head.get("ready") is True:
            if not self.ready.done():
                self.ready.set_result(None)
        elif isinstance(number := head.get("id"), int):
            waiting = self._waiting.pop(number, None)
            if waiting is not None and not waiting.done():
                waiting.set_result(Reply(head, body))

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 the desktop told why, if it could
        self._transport = None
        lost = self._lost("connection")
        everyone: list[asyncio.Future[Any]] = [self.ready, *self._waiting.values()]
        for waiting in everyone:
            if not waiting.done():
                waiting.set_exception(lost)
                waiting.exception()  # whoever waited may be gone
        self._waiting.clear()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    async def call(self, call: str, *, body: bytes = b"", seconds: float = CALL_SECONDS, **arguments: Any) -> Reply:
        """Ask once. Whatever becomes of it, it is not asked again."""
        if self._transport is None:
            raise self._lost(call)
        number = next(self._numbers)
        try:
            message = frame({"id": number, "call": call, **arguments}, body)
        except BadFrame as exc:
            raise self._error(call, str(exc)) from exc
        waiting: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._waiting[number] = waiting
        try:
            self._transport.write(message)
            async with asyncio.timeout(seconds):
                reply = await waiting
        except TimeoutError as exc:
            raise self._error(call, f"no answer within {seconds:g} s") from exc
        finally:
            self._waiting.pop(number, None)
        if "refused" in reply.head:
            raise MachineRefusal(
                f"desktop {self._machine_id}, {call}: {reply.head['refused']}", stage=f"machine.{call}"
            )
        if "error" in reply.head:
            raise self._error(call, str(reply.head["error"]))
        return reply

    def _lost(self, call: str) -> MachineError:
        return self._error(call, f"the desktop is gone{': ' if self.last_words else ''}{self.last_words}")

    def _error(self, call: str, reason: str) -> MachineError:
        return MachineError(f"desktop {self._machine_id}, {call}: {reason}", stage=f"machine.{call}")


class Session:
    """A desktop that runs."""

    def __init__(self, machine_id: str, built: Walls, line: Line) -> None:
        self.line = line
        self._machine_id = machine_id
        self._walls = built

    @property
    def pid(self) -> int:
        """The first process, as the host knows it."""
        return self._walls.first.pid

    async def wait_until_dead(self) -> str:
        await self._walls.first.ended.wait()
        return self.line.last_words or f"the first process ({self.pid}) of desktop {self._machine_id} has ended"

    async def end(self) -> None:
        """Nothing of it is left when this returns."""
        self.line.close()
        await self._walls.end()


async def start(shape: Shape, machine_id: str, label: str) -> Session:
    """A desktop that is ready to be used. Cancelling leaves nothing."""
    begun: list[Session] = []
    try:
        await uninterrupted(_begin(shape, machine_id, label, begun))
        session = begun[0]
        async with asyncio.timeout(START_SECONDS):
            await session.line.ready
    except BaseException as exc:
        for session in begun:
            await uninterrupted(session.end())
        if isinstance(exc, TimeoutError):
            reason = f"desktop {machine_id} was not ready within {START_SECONDS:g} s"
            raise MachineError(reason, stage="machine.create") from exc
        raise
    return session


async def _begin(shape: Shape, machine_id: str, label: str, begun: list[Session]) -> None:
    built = await walls.build(shape, label)
    try:
        loop = asyncio.get_running_loop()
        _, line = await loop.create_unix_connection(lambda: Line(machine_id), sock=built.line)
    except BaseException:
        await built.end()
        raise
    begun.append(Session(machine_id, built, line))
