"""Attackers on sockets: they relay what others say, change it, keep it, and never know a key."""

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial

HEADER = struct.Struct("<BIIQ")
ASK, REFUSAL, TELL = 1, 3, 4
SECONDS = 20.0

Meddle = Callable[[bytes, Callable[[bytes], None]], list[bytes]]
"""Is given what a client said, and a way to answer it; returns what is passed on."""


def as_it_is(data: bytes, _: object = None) -> list[bytes]:
    return [data]


class Relay:
    """Listens at one place, and for each that connects opens a connection to another, with `meddle` on its words.

    `there` is all that went to the other place, `back` all that came from it.
    """

    def __init__(self, listener: socket.socket, target: Callable[[], socket.socket], meddle: Meddle = as_it_is) -> None:
        self.there: list[bytes] = []
        self.back: list[bytes] = []
        self.meddle = meddle
        self._target = target
        self._listener = listener
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def close(self) -> None:
        for one in (self._listener, *self._sockets):
            _end(one)
        for thread in self._threads:
            thread.join(SECONDS)
        for one in (self._listener, *self._sockets):
            one.close()

    def _start(self, work: Callable[[], None]) -> None:
        self._threads.append(threading.Thread(target=work, daemon=True))
        self._threads[-1].start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                ours, _ = self._listener.accept()
                theirs = self._target()
                self._sockets += [ours, theirs]
                self._start(partial(_pump, ours, theirs, self.there, self.meddle))
                self._start(partial(_pump, theirs, ours, self.back, as_it_is))


def _pump(source: socket.socket, sink: socket.socket, kept: list[bytes], meddle: Meddle) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            for piece in meddle(data, source.sendall):
                kept.append(piece)
                sink.sendall(piece)
    _end(source)
    _end(sink)


def _end(one: socket.socket) -> None:
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)


def at_abstract(name: str) -> socket.socket:
    """Listens under a name that nobody has (any more)."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"\0{name}")
    listener.listen()
    return listener


def to_abstract(name: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(SECONDS)
    connection.connect(f"\0{name}")
    return connection


@contextmanager
def relay(listener: socket.socket, target: Callable[[], socket.socket], meddle: Meddle = as_it_is) -> Iterator[Relay]:
    made = Relay(listener, target, meddle)
    try:
        yield made
    finally:
        made.close()


def frame(kind: int, number: int, head: bytes, *parts: bytes) -> bytes:
    lengths = struct.pack(f"<{len(parts)}Q", *map(len, parts))
    return HEADER.pack(kind, len(parts), len(head), number) + lengths + head + b"".join(parts)


def read_frame(connection: socket.socket) -> tuple[int, int, bytes]:
    """Kind, number and head of the next frame that has no parts."""
    kind, n_parts, n_head, number = HEADER.unpack(_exactly(connection, HEADER.size))
    lengths = struct.unpack(f"<{n_parts}Q", _exactly(connection, 8 * n_parts))
    head = _exactly(connection, n_head)
    _exactly(connection, sum(lengths))
    return kind, number, head


def _exactly(connection: socket.socket, n: int) -> bytes:
    data = b""
    while len(data) < n:
        more = connection.recv(n - len(data))
        if not more:
            raise ConnectionError("it ended")
        data += more
    return data
