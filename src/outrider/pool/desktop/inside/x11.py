"""A client of an X server: the few requests that eyes and hands need, each answered before the next is sent.

It may be used from several threads: one request, or one `with display:`, at a time.
"""

import socket
import struct
import threading
import time
from collections import deque
from types import TracebackType
from typing import NamedTuple, Self

ANSWER_SECONDS = 10.0

PROPERTY_NOTIFY, PROPERTY_CHANGE = 28, 1 << 22
STRING, WINDOW = 31, 33

_ERROR, _REPLY = 0, 1
_HEAD_BYTES = 32
_N_EVENTS_KEPT = 256
_ANY_PROPERTY_WORDS = 1 << 18


class XError(Exception):
    """The server refused a request, does not answer, or is gone."""


class Geometry(NamedTuple):
    """Where a window is on the screen, in pixels."""

    x: int
    y: int
    width: int
    height: int


class Display:
    """A connection to the server that listens at `path`."""

    def __init__(self, path: str) -> None:
        self._turn = threading.RLock()
        self._sequence = 0
        self._data = bytearray()
        self._events: deque[bytes] = deque(maxlen=_N_EVENTS_KEPT)
        self._atoms: dict[str, int] = {}
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(ANSWER_SECONDS)
        try:
            self._socket.connect(path)
            self._greet()
        except OSError as exc:
            self._socket.close()
            raise XError(f"the X server cannot be reached: {exc}") from exc
        except BaseException:
            self._socket.close()
            raise

    def __enter__(self) -> Self:
        """Nobody else's requests come between those of this block."""
        self._turn.acquire()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._turn.release()

    def close(self) -> None:
        self._socket.close()

    def _greet(self) -> None:
        self._socket.sendall(struct.pack("<BxHHHH2x", ord("l"), 11, 0, 0, 0))
        status, _, _, words = struct.unpack("<BxHHH", self._take(8))
        told = self._take(4 * words)
        if status != 1:
            raise XError(f"the X server refuses: {told.decode(errors='replace')}")
        n_vendor, _, _, n_formats = struct.unpack_from("<HHBB", told, 16)
        self.first_keycode, self.last_keycode = told[26], told[27]
        screen = 32 + (n_vendor + 3) // 4 * 4 + 8 * n_formats
        (self._first_id,) = struct.unpack_from("<I", told, 4)
        (self.root,) = struct.unpack_from("<I", told, screen)
        self.width, self.height = struct.unpack_from("<HH", told, screen + 20)

    def send(self, opcode: int, detail: int, body: bytes = b"") -> int:
        """A request that is not answered; its errors are not told. Returns its number."""
        body += b"\0" * (-len(body) % 4)
        with self._turn:
            try:
                self._socket.sendall(struct.pack("<BBH", opcode, detail, 1 + len(body) // 4) + body)
            except OSError as exc:
                raise XError(f"the X server cannot be reached: {exc}") from exc
            self._sequence += 1
            return self._sequence

    def ask(self, opcode: int, detail: int = 0, body: bytes = b"") -> bytes:
        """A request and its reply, head and all."""
        with self._turn:
            number = self.send(opcode, detail, body) & 0xFFFF
            while True:
                message = self._message()
                (about,) = struct.unpack_from("<H", message, 2)
                if message[0] == _REPLY and about == number:
                    return message
                if message[0] == _ERROR and about == number:
                    raise XError(f"the X server refused request {opcode} with error {message[1]}")
                if message[0] > _REPLY:
                    self._events.append(message)

    def wait_for_property(self, atom: int, seconds: float) -> None:
        """Until the property of the root window changes, if that was selected; or raise `XError`."""
        end = time.monotonic() + seconds
        with self._turn:
            while True:
                while self._events:
                    event = self._events.popleft()
                    if event[0] & 0x7F == PROPERTY_NOTIFY and struct.unpack_from("<II", event, 4) == (self.root, atom):
                        return
                self._socket.settimeout(max(end - time.monotonic(), 0.001))
                try:
                    message = self._message()
                finally:
                    self._socket.settimeout(ANSWER_SECONDS)
                if message[0] > _REPLY:
                    self._events.append(message)

    def _message(self) -> bytes:
        head = self._take(_HEAD_BYTES)
        if head[0] != _REPLY:
            return head
        (words,) = struct.unpack_from("<I", head, 4)
        return head + self._take(4 * words)

    def _take(self, length: int) -> bytes:
        while len(self._data) < length:
            try:
                more = self._socket.recv(1 << 20)
            except OSError as exc:
                raise XError(f"the X server does not answer: {exc}") from exc
            if not more:
                raise XError("the X server is gone")
            self._data += more
        taken = bytes(self._data[:length])
        del self._data[:length]
        return taken

    def sync(self) -> None:
        """Until the server has carried out all that was sent."""
        self.ask(43)

    def extension(self, name: str) -> int:
        """The number under which its requests are known."""
        reply = self.ask(98, 0, struct.pack("<H2x", len(name)) + name.encode())
        if not reply[8]:
            raise XError(f"the X server has no {name}")
        return reply[9]

    def atom(self, name: str) -> int:
        if name not in self._atoms:
            reply = self.ask(16, 0, struct.pack("<H2x", len(name)) + name.encode())
            (self._atoms[name],) = struct.unpack_from("<I", reply, 8)
        return self._atoms[name]

    def select(self, window: int, events: int) -> None:
        self.send(2, 0, struct.pack("<III", window, 1 << 11, events))

    def property(self, window: int, name: str) -> bytes:
        """Its value, of whatever type; empty if the window has none."""
        try:
            reply = self.ask(20, 0, struct.pack("<IIIII", window, self.atom(name), 0, 0, _ANY_PROPERTY_WORDS))
        except XError:
            self.sync()  # raises if it was the server and not the window that is gone
            return b""
        (n_items,) = struct.unpack_from("<I", reply, 16)
        return reply[32 : 32 + n_items * reply[1] // 8]

    def numbers(self, window: int, name: str) -> tuple[int, ...]:
        value = self.property(window, name)
        return struct.unpack(f"<{len(value) // 4}I", value[: len(value) // 4 * 4])

    def set_property(self, window: int, name: str, kind: int, value: bytes, *, bits: int = 8) -> None:
        items = len(value) * 8 // bits
        self.send(18, 0, struct.pack("<IIIB3xI", window, self.atom(name), kind, bits, items) + value)

    def open_window(self) -> int:
        """A small window that does nothing. There can be one at a time."""
        body = struct.pack("<IIhhHHHHII", self._first_id, self.root, 0, 0, 1, 1, 0, 0, 0, 0)
        self.send(1, 0, body)
        self.send(8, 0, struct.pack("<I", self._first_id))
        return int(self._first_id)

    def close_window(self, window: int) -> None:
        self.send(4, 0, struct.pack("<I", window))

    def geometry(self, window: int) -> Geometry:
        """The window without its frame."""
        with self:
            width, height = struct.unpack_from("<HH", self.ask(14, 0, struct.pack("<I", window)), 16)
            place = self.ask(40, 0, struct.pack("<IIhh", window, self.root, 0, 0))
        x, y = struct.unpack_from("<hh", place, 12)
        return Geometry(x, y, width, height)

    def pointer(self) -> tuple[int, int]:
        x, y = struct.unpack_from("<hh", self.ask(38, 0, struct.pack("<I", self.root)), 16)
        return int(x), int(y)

    def keyboard(self) -> list[tuple[int, ...]]:
        """What is on each key, from the first keycode on, by level."""
        count = self.last_keycode - self.first_keycode + 1
        reply = self.ask(101, 0, struct.pack("<BB2x", self.first_keycode, count))
        n_levels = reply[1]
        symbols = struct.unpack_from(f"<{count * n_levels}I", reply, 32)
        return [symbols[at : at + n_levels] for at in range(0, len(symbols), n_levels)]

    def set_key(self, keycode: int, symbols: tuple[int, ...]) -> None:
        body = struct.pack(f"<BB2x{len(symbols)}I", keycode, len(symbols), *symbols)
        self.send(100, 1, body)
