"""A pool in another process of this host, as a worker uses it.

Invariants:
- When the connection ends, every lease on it is lost at once, and no call is made twice.
- Asking for a machine outlives the pool's process: it is asked again when there is another, until the deadline.
"""

import asyncio
import itertools
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from outrider.core import errors
from outrider.core.decoding import convert
from outrider.core.errors import InvalidInput, MachineError, OutriderError
from outrider.pool.computer import Executed, Input
from outrider.pool.lease import Lease
from outrider.pool.service.messages import (
    PROTOCOL,
    AccessibilityTree,
    Answer,
    Call,
    ComputerCall,
    Describe,
    Done,
    Execute,
    Failed,
    GiveUp,
    Granted,
    Hello,
    Launch,
    Lost,
    Question,
    ReadFile,
    Release,
    Reset,
    Screenshot,
    SendInput,
    Standing,
    Take,
    TerminalText,
    WriteFile,
    frame,
    read_answer,
)

T = TypeVar("T")

CALL_SECONDS = 300.0
"""Beyond what any call may take by itself: its answer is lost, not late."""

GRACE_SECONDS = 30.0
HELLO_SECONDS = 10.0
TRY_AGAIN_SECONDS = 0.2
GONE = "the process of the pool is gone"


class PoolClient:
    """Give it to episodes as their `Machines`. Connects when it is first asked."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: _Connection | None = None
        self._connecting = asyncio.Lock()

    async def take(self, n: int = 1, *, deadline: float, run: str = "", holder: str = "") -> tuple[Lease, ...]:
        """See `MachinePool.take`."""
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + deadline
        while True:
            connection = await self._connected(ends_at)
            left = max(round(ends_at - loop.time(), 3), 0.0)
            try:
                return await connection.take(n, deadline=left, run=run, holder=holder)
            except MachineError:
                if not connection.is_lost or loop.time() >= ends_at:
                    raise

    async def standing(self) -> Standing:
        connection = await self._connected(asyncio.get_running_loop().time())
        return convert(await connection.ask(Describe(id=connection.new_id())), Standing)

    async def reset(self, machine_id: str, reason: str, *, replace: bool = False) -> None:
        """Reset the machine, or end it and make another; whoever holds it loses it."""
        connection = await self._connected(asyncio.get_running_loop().time())
        number = connection.new_id()
        await connection.ask(Reset(id=number, machine_id=machine_id, reason=reason, replace=replace))

    async def close(self) -> None:
        """Leases that are still held go back."""
        if self._connection is not None:
            await self._connection.close()

    async def _connected(self, ends_at: float) -> "_Connection":
        """The connection, or a new one; waits for the pool's process until then."""
        async with self._connecting:
            while self._connection is None or self._connection.is_lost:
                if self._connection is not None:
                    await self._connection.close()
                try:
                    self._connection = await _Connection.open(self._path)
                except OSError as exc:
                    if asyncio.get_running_loop().time() >= ends_at:
                        raise MachineError(f"no pool answers at {self._path}: {exc}", stage="pool.connect") from exc
                    await asyncio.sleep(TRY_AGAIN_SECONDS)  # nobody tells when it is back
            return self._connection


class _Connection:
    """One connection, from its greeting to its end."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._given_up: set[int] = set()
        self._leases: dict[tuple[str, int], Lease] = {}
        self.is_lost = False
        self._listening = asyncio.create_task(self._listen(), name="answers of the pool")

    @classmethod
    async def open(cls, path: Path) -> "_Connection":
        reader, writer = await asyncio.open_unix_connection(path)
        try:
            writer.write(frame(Hello()))
            async with asyncio.timeout(HELLO_SECONDS):
                hello = await read_answer(reader)
        except BaseException as exc:
            writer.transport.abort()
            if isinstance(exc, TimeoutError | ValueError):
                raise OSError(f"it does not greet as a pool does: {exc}") from exc
            raise
        if not isinstance(hello, Hello):
            writer.transport.abort()
            raise OSError("it ended the connection")
        if hello.protocol != PROTOCOL:
            writer.transport.abort()
            raise InvalidInput(
                f"the pool at {path} speaks protocol {hello.protocol}, this process {PROTOCOL}; "
                "start both from the same version of Outrider"
            )
        return cls(reader, writer)

    def new_id(self) -> int:
        return next(self._numbers)

    async def take(self, n: int, *, deadline: float, run: str, holder: str) -> tuple[Lease, ...]:
        question = Take(id=self.new_id(), n=n, deadline=deadline, run=run, holder=holder)
        found = await self.ask(question, seconds=deadline + GRACE_SECONDS)
        return tuple(self._lease(one, holder) for one in convert(found, tuple[Granted, ...]))

    async def call(self, machine_id: str, epoch: int, call: ComputerCall, seconds: float) -> Any:
        question = Call(id=self.new_id(), machine_id=machine_id, epoch=epoch, call=call)
        return await self.ask(question, seconds=seconds)

    async def ask(self, question: Take | Call | Describe | Reset, *, seconds: float = CALL_SECONDS) -> Any:
        if self.is_lost:
            raise MachineError(GONE, stage="pool")
        waiting = self._waiting[question.id] = asyncio.get_running_loop().create_future()
        try:
            self._tell(question)
            async with asyncio.timeout(seconds):
                await self._writer.drain()
                return await waiting
        except BaseException as exc:
            if waiting.done() and not waiting.cancelled():
                if isinstance(question, Take) and waiting.exception() is None:
                    self._hand_back(waiting.result())
            elif not self.is_lost:
                self._given_up.add(question.id)
                self._tell(GiveUp(id=question.id))
            if isinstance(exc, TimeoutError):
                raise MachineError(f"the pool has not answered for {seconds:g} s", stage="pool") from exc
            if isinstance(exc, OSError):
                raise MachineError(f"{GONE}: {exc}", stage="pool") from exc
            raise
        finally:
            self._waiting.pop(question.id, None)

    async def close(self) -> None:
        self._listening.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.wait([self._listening])
        self._lose("the connection to the pool was closed")
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()

    def _lease(self, granted: Granted, holder: str) -> Lease:
        key = (granted.machine_id, granted.epoch)
        lease = self._leases[key] = Lease(
            *key,
            holder=holder,
            address=granted.address,
            computer=RemoteComputer(partial(self.call, *key), granted.screen_size),
            on_release=self._released,
        )
        if self.is_lost:
            lease.lose(GONE)
        return lease

    def _released(self, lease: Lease) -> None:
        self._leases.pop((lease.machine_id, lease.epoch), None)
        self._tell(Release(machine_id=lease.machine_id, epoch=lease.epoch))

    def _hand_back(self, value: Any) -> None:
        """Whoever asked for these has left."""
        for one in convert(value, tuple[Granted, ...]):
            self._tell(Release(machine_id=one.machine_id, epoch=one.epoch))

    def _tell(self, question: Question) -> None:
        try:
            framed = frame(question)
        except ValueError as exc:
            raise errors.MachineRefusal(str(exc), stage="pool") from exc
        if not self.is_lost:
            self._writer.write(framed)

    async def _listen(self) -> None:
        reason = GONE
        try:
            while (answer := await read_answer(self._reader)) is not None:
                self._hear(answer)
        except (OSError, ValueError) as exc:
            reason = f"{GONE}: {exc}"
        self._lose(reason)

    def _hear(self, answer: Answer) -> None:
        match answer:
            case Lost():
                lease = self._leases.pop((answer.machine_id, answer.epoch), None)
                if lease is not None:
                    lease.lose(answer.reason)
            case Done() | Failed():
                self._settle(answer)
            case Hello():
                pass

    def _settle(self, answer: Done | Failed) -> None:
        waiting = self._waiting.get(answer.id)
        if answer.id in self._given_up:
            self._given_up.discard(answer.id)
            if isinstance(answer, Done) and isinstance(answer.value, list):
                with suppress(msgspec.ValidationError):
                    self._hand_back(answer.value)
        elif waiting is None or waiting.done():
            return
        elif isinstance(answer, Done):
            waiting.set_result(answer.value)
        else:
            waiting.set_exception(_error_of(answer))

    def _lose(self, reason: str) -> None:
        self.is_lost = True
        self._writer.transport.abort()
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(MachineError(reason, stage="pool"))
                waiting.exception()
        for lease in self._leases.values():
            lease.lose(reason)
        self._leases.clear()


class RemoteComputer:
    """A computer at the other end. What it does is fenced there, by the lease's epoch."""

    def __init__(self, call: Any, screen_size: tuple[int, int]) -> None:
        self._call = call
        self.screen_size = screen_size

    async def screenshot(self) -> bytes:
        return await self._ask(Screenshot(), bytes)

    async def input(self, events: Sequence[Input]) -> None:
        await self._ask(SendInput(tuple(events)), None)

    async def execute(self, command: Sequence[str] | str, *, timeout: float = 120.0) -> Executed:
        return await self._ask(Execute(_plain(command), timeout), Executed, seconds=timeout + CALL_SECONDS)

    async def launch(self, command: Sequence[str] | str) -> None:
        await self._ask(Launch(_plain(command)), None)

    async def read_file(self, path: str) -> bytes | None:
        return await self._ask(ReadFile(path), bytes | None)  # type: ignore[arg-type]

    async def write_file(self, path: str, data: bytes) -> None:
        await self._ask(WriteFile(path, data), None)

    async def accessibility_tree(self) -> str:
        return await self._ask(AccessibilityTree(), str)

    async def terminal_text(self) -> str | None:
        return await self._ask(TerminalText(), str | None)  # type: ignore[arg-type]

    async def _ask(self, call: ComputerCall, kind: type[T] | None, *, seconds: float = CALL_SECONDS) -> T:
        return convert(await self._call(call, seconds), kind)


def _plain(command: Sequence[str] | str) -> str | tuple[str, ...]:
    return command if isinstance(command, str) else tuple(command)


def _error_of(answer: Failed) -> OutriderError:
    kind = getattr(errors, answer.kind, MachineError)
    if issubclass(kind, errors.AttemptError):
        return kind(answer.message, stage=answer.stage)
    return InvalidInput(answer.message) if kind is InvalidInput else MachineError(answer.message, stage=answer.stage)
