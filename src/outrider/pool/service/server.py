"""A pool served to other processes of its host, on a Unix socket.

Invariants:
- A lease belongs to the connection it was taken on: when that ends, however it ends, the lease is revoked.
- A call names its lease, machine and epoch; one that is over is refused here, whatever the client still believes.
- A client that sends nonsense, or takes no answers any more, loses its connection and disturbs nobody else.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, Self, assert_never

from outrider.core.errors import AttemptError, InvalidInput, MachineError, OutriderError
from outrider.pool.lease import Lease
from outrider.pool.pool import MachinePool
from outrider.pool.service.messages import (
    PROTOCOL,
    Answer,
    Call,
    Describe,
    Done,
    Failed,
    GiveUp,
    Granted,
    Hello,
    Lost,
    Question,
    Release,
    Reset,
    Standing,
    Take,
    frame,
    read_question,
)

_log = logging.getLogger(__name__)

SEND_SECONDS = 60.0
"""A client that takes no answers for so long loses its connection."""

END_SECONDS = 10.0
"""How long the calls of a client that is gone may take to stop."""

MAX_UNSENT_BYTES = 64 * 2**20
_UID_BYTES = slice(4, 8)
_CREDENTIALS_BYTES = 12


class PoolServer:
    """Serves `pool`, which its caller starts before and closes after, at `path`."""

    def __init__(self, pool: MachinePool, path: Path) -> None:
        self._pool = pool
        self._path = path
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_unix_server(self._accept, self._path)
        self._path.chmod(0o600)  # its folder is ours alone
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        assert self._server is not None
        self._server.close()
        for connection in self._connections:
            connection.cancel()
        if self._connections:
            await asyncio.wait(set(self._connections))
        self._path.unlink(missing_ok=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            if _is_ours(writer):
                await _Connection(self._pool, reader, writer).serve()
        except asyncio.CancelledError:
            return  # the server closes; asyncio would log this as an error
        finally:
            self._connections.discard(task)
            writer.transport.abort()


class _Connection:
    """One client, and the leases it has."""

    def __init__(self, pool: MachinePool, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._pool = pool
        self._reader = reader
        self._writer = writer
        self._leases: dict[tuple[str, int], Lease] = {}
        self._asked: dict[int, asyncio.Task[None]] = {}
        self._watches: dict[tuple[str, int], asyncio.Task[None]] = {}
        writer.transport.set_write_buffer_limits(high=MAX_UNSENT_BYTES)

    async def serve(self) -> None:
        try:
            self._tell(Hello())
            first = await self._next()
            if isinstance(first, Hello) and first.protocol != PROTOCOL:
                _log.warning("a client of pool %s speaks protocol %s", self._pool.name, first.protocol)
                return
            while (question := await self._next()) is not None:
                self._take_up(question)
        finally:
            self._end()
            if self._asked:
                await asyncio.wait(set(self._asked.values()), timeout=END_SECONDS)

    async def _next(self) -> Question | None:
        try:
            return await read_question(self._reader)
        except ValueError as exc:
            _log.warning("a client of pool %s is cut off: %s", self._pool.name, exc)
        except OSError:
            pass
        return None

    def _take_up(self, question: Question) -> None:
        match question:
            case Hello():
                pass
            case Release():
                self._release(question.machine_id, question.epoch)
            case GiveUp():
                if (asked := self._asked.get(question.id)) is not None:
                    asked.cancel()
            case Take() | Call() | Describe() | Reset():
                self._start(question.id, self._answer(question))
            case _:
                assert_never(question)

    def _start(self, number: int, work: Coroutine[Any, Any, None]) -> None:
        task = self._asked[number] = asyncio.create_task(work, name=f"question {number} to pool {self._pool.name}")
        task.add_done_callback(lambda _: self._asked.pop(number, None))

    async def _answer(self, question: Take | Call | Describe | Reset) -> None:
        self._tell(await self._attempt(question))
        try:
            async with asyncio.timeout(SEND_SECONDS):
                await self._writer.drain()
        except (TimeoutError, OSError):
            self._writer.transport.abort()

    async def _attempt(self, question: Take | Call | Describe | Reset) -> Done | Failed:
        """Each question has one answer, also if the client has given it up, so that it can forget it."""
        try:
            return Done(id=question.id, value=await self._value(question))
        except asyncio.CancelledError:
            self._tell(Failed(id=question.id, kind=MachineError.__name__, message="it was given up"))
            raise
        except OutriderError as exc:
            stage = exc.stage if isinstance(exc, AttemptError) else ""
            return Failed(id=question.id, kind=type(exc).__name__, message=str(exc), stage=stage)
        except Exception as exc:  # noqa: BLE001 whatever a provider raises is its machine's failure
            return Failed(id=question.id, kind=MachineError.__name__, message=f"{type(exc).__name__}: {exc}")

    async def _value(self, question: Take | Call | Describe | Reset) -> Any:
        match question:
            case Take():
                return await self._take(question)
            case Call():
                return await question.call.on(self._held(question.machine_id, question.epoch).computer)
            case Describe():
                pool = self._pool
                return Standing(name=pool.name, machines=pool.machines, statistics=pool.statistics())
            case Reset():
                act = self._pool.stop if question.replace else self._pool.reset
                act(question.machine_id, question.reason)
                return None
            case _:
                assert_never(question)

    async def _take(self, question: Take) -> tuple[Granted, ...]:
        leases = await self._pool.take(question.n, deadline=question.deadline, run=question.run, holder=question.holder)
        for lease in leases:
            key = (lease.machine_id, lease.epoch)
            self._leases[key] = lease
            self._watches[key] = asyncio.create_task(self._watch(lease), name=f"lease of {lease.machine_id}")
        return tuple(
            Granted(
                machine_id=lease.machine_id,
                epoch=lease.epoch,
                address=lease.address,
                screen_size=lease.computer.screen_size,
            )
            for lease in leases
        )

    async def _watch(self, lease: Lease) -> None:
        reason = await lease.wait_until_lost()
        self._forget(lease.machine_id, lease.epoch)
        self._tell(Lost(machine_id=lease.machine_id, epoch=lease.epoch, reason=reason))

    def _held(self, machine_id: str, epoch: int) -> Lease:
        lease = self._leases.get((machine_id, epoch))
        if lease is None:
            raise MachineError(f"the lease is over for machine {machine_id} (epoch {epoch})", stage="machine.call")
        return lease

    def _release(self, machine_id: str, epoch: int) -> None:
        if (lease := self._forget(machine_id, epoch)) is not None:
            lease.release()

    def _forget(self, machine_id: str, epoch: int) -> Lease | None:
        watch = self._watches.pop((machine_id, epoch), None)
        if watch is not None and watch is not asyncio.current_task():
            watch.cancel()
        return self._leases.pop((machine_id, epoch), None)

    def _tell(self, answer: Answer) -> None:
        """Never waits. What is too long becomes a failure."""
        if self._writer.transport.is_closing():
            return
        try:
            framed = frame(answer)
        except ValueError as exc:
            assert isinstance(answer, Done)
            framed = frame(Failed(id=answer.id, kind="MachineError", message=str(exc)))
        self._writer.write(framed)

    def _end(self) -> None:
        """The client is gone: nobody waits for its questions, and nobody holds its machines."""
        for asked in list(self._asked.values()):
            asked.cancel()
        for machine_id, epoch in list(self._leases):
            lease = self._forget(machine_id, epoch)
            if lease is not None and not lease.is_over:
                with suppress(InvalidInput, MachineError):
                    self._pool.revoke(machine_id, f"the process of its holder {lease.holder or ''} has gone".strip())


def _is_ours(writer: asyncio.StreamWriter) -> bool:
    """Whether the process at the other end has our user, or is root's."""
    peer = writer.get_extra_info("socket")
    credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS_BYTES)
    return int.from_bytes(credentials[_UID_BYTES], "little") in (0, os.geteuid())
