"""What a worker process and its supervisor tell each other, over a socket of their own.

Nothing that an agent prints, closes or reads gets in between: standard input, output and error are the agent's.

Invariants:
- The worker writes in a thread, so a supervisor that does not listen blocks no event loop.
- A worker that has nothing to tell says that it is alive. One that says nothing for long is stopped, or code in it
  holds the interpreter's lock.
"""

import asyncio
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import cast

import msgspec
from msgspec import Struct, structs

from outrider.core import wire
from outrider.core.errors import InvalidInput
from outrider.runner.loop_watch import Blockage
from outrider.runner.meter import Reading

ALIVE_SECONDS = 1.0
MAX_WAITING = 10_000
"""Reports that wait for a supervisor which does not listen; beyond that the oldest are dropped."""

DRAIN = b"d"
SIZE_BYTES = 4
MAX_RECORD_BYTES = 1 << 20
"""What a worker tells at once. A greater size was written by code that it runs, and all after it is lost."""

MAX_CHARACTERS = 100_000
"""What is told of a line, and of how the worker ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerExit:
    """How a worker ended: by itself or by dying (`failed`).

    `invalid`: it would die again at once. `stops_run`: every other worker would come to the same end. `blockage`: it
    was ended since code blocked its event loop for too long. `late`: it was ended since it did not end in time when it
    was asked to.
    """

    failed: bool
    description: str
    invalid: bool = False
    stops_run: bool = False
    blockage: Blockage | None = None
    late: bool = False


class Report(Struct, frozen=True, kw_only=True):
    """What a worker tells: a line, what it has used, that its loop is blocked, its end; without any, that it lives."""

    line: str | None = None
    reading: Reading | None = None
    blockage: Blockage | None = None
    ended: WorkerExit | None = None


def _cut(report: Report) -> Report:
    """The report, short enough for a record."""
    line, ended = report.line, report.ended
    if ended is not None:
        ended = replace(ended, description=ended.description[:MAX_CHARACTERS])
    return structs.replace(report, line=line and line[:MAX_CHARACTERS], ended=ended)


def framed(record: bytes) -> bytes:
    """A record with its size before it."""
    return len(record).to_bytes(SIZE_BYTES) + record


class WorkerEnd:
    """The worker's end of the channel."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._waiting: deque[Report] = deque(maxlen=MAX_WAITING)
        self._news = threading.Condition()
        self._is_idle = True
        self._is_lost = False
        threading.Thread(target=self._write, name="tell the supervisor", daemon=True).start()

    def receive(self) -> bytes:
        """The record that the supervisor sends first."""
        return self._read(int.from_bytes(self._read(SIZE_BYTES)))

    def _read(self, size: int) -> bytes:
        read = bytearray()
        while len(read) < size:
            if not (more := self._socket.recv(size - len(read))):
                raise InvalidInput("the supervisor is gone before it has said what to do")
            read += more
        return bytes(read)

    def listen(self, drain: Callable[[], object]) -> None:
        """Call `drain`, in a thread, when the supervisor says so or is gone."""

        def wait() -> None:
            with suppress(OSError):
                self._socket.recv(len(DRAIN))
            with suppress(RuntimeError):  # the loop has ended meanwhile
                drain()

        threading.Thread(target=wait, name="listen to the supervisor", daemon=True).start()

    def tell(self, report: Report) -> None:
        """Tell it soon; from any thread."""
        with self._news:
            self._waiting.append(report)
            self._news.notify_all()

    def flush(self, seconds: float) -> None:
        """Wait until all has been told, or nobody listens."""
        with self._news:
            self._news.wait_for(lambda: self._is_lost or (self._is_idle and not self._waiting), timeout=seconds)

    def _write(self) -> None:
        with suppress(OSError):  # the supervisor is gone, or code that the worker runs has closed the socket
            while True:
                self._socket.sendall(b"".join(framed(wire.to_record(_cut(report))) for report in self._next()))
        with self._news:
            self._is_lost = True
            self._news.notify_all()

    def _next(self) -> tuple[Report, ...]:
        with self._news:
            self._is_idle = True
            self._news.notify_all()
            self._news.wait_for(lambda: self._waiting, timeout=ALIVE_SECONDS)
            reports = tuple(self._waiting) or (Report(),)
            self._waiting.clear()
            self._is_idle = False
            return reports


class SupervisorEnd(asyncio.Protocol):
    """The supervisor's end: what the worker has told so far. `n_heard` grows with each report that it sends.

    `is_broken`: code that the worker runs has written to the channel, and nothing more can be read from it.
    """

    def __init__(self, on_line: Callable[[str], None], on_reading: Callable[[Reading], None]) -> None:
        self._on_line = on_line
        self._on_reading = on_reading
        self._unread = bytearray()
        self._transport: asyncio.WriteTransport | None = None
        self.n_heard = 0
        self.is_broken = False
        self.blockage: Blockage | None = None
        self.ended: WorkerExit | None = None
        self.has_news = asyncio.Event()
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.WriteTransport", transport)

    def data_received(self, data: bytes) -> None:
        if self.is_broken:
            return
        self._unread += data
        for record in self._records():
            with suppress(msgspec.MsgspecError, InvalidInput):  # code that the worker runs has written to our socket
                self._take(wire.from_record(record, Report))

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 asyncio's signature
        self.closed.set_result(None)

    def _records(self) -> Iterator[bytes]:
        while len(self._unread) >= SIZE_BYTES:
            size = int.from_bytes(self._unread[:SIZE_BYTES])
            if size > MAX_RECORD_BYTES:
                self._break()
                return
            end = SIZE_BYTES + size
            if len(self._unread) < end:
                return
            yield bytes(self._unread[SIZE_BYTES:end])
            del self._unread[:end]

    def _break(self) -> None:
        self.is_broken = True
        self._unread.clear()
        self.has_news.set()

    def _take(self, report: Report) -> None:
        self.n_heard += 1
        if report.line is not None:
            self._on_line(report.line)
        if report.reading is not None:
            self._on_reading(report.reading)
        self.blockage = self.blockage or report.blockage
        self.ended = self.ended or report.ended
        if report.blockage is not None or report.ended is not None:
            self.has_news.set()

    def send(self, record: bytes) -> None:
        """What the worker reads first."""
        self._write(framed(record))

    def drain(self) -> None:
        """Let it claim nothing more, finish what runs, and end."""
        self._write(DRAIN)

    def _write(self, data: bytes) -> None:
        assert self._transport is not None
        if not self._transport.is_closing():
            self._transport.write(data)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
