"""What the process of a pool and its clients say to each other: frames of msgpack, each with its length before it.

A client asks, each question with an id of its own; the pool answers each once, in any order. Unasked it only tells that
a lease is lost.
"""

import asyncio
from collections.abc import Awaitable, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from outrider.core.decoding import msgpack_decoder
from outrider.core.machine import MachineRecord
from outrider.pool.computer import Computer, Executed, Input
from outrider.pool.statistics import PoolStatistics

PROTOCOL = 1
"""Raised whenever a message changes its meaning."""

MAX_FRAME_BYTES = 256 * 2**20
_LENGTH_BYTES = 4


class Screenshot(Struct, frozen=True, tag=True):
    """See `Computer`, as for all calls that follow."""

    def on(self, computer: Computer) -> Awaitable[bytes]:
        return computer.screenshot()


class SendInput(Struct, frozen=True, tag=True):
    """Mouse and keyboard."""

    events: tuple[Input, ...]

    def on(self, computer: Computer) -> Awaitable[None]:
        return computer.input(self.events)


class Execute(Struct, frozen=True, tag=True):
    """A command, to its end."""

    command: str | tuple[str, ...]
    timeout: float

    def on(self, computer: Computer) -> Awaitable[Executed]:
        return computer.execute(self.command, timeout=self.timeout)


class Launch(Struct, frozen=True, tag=True):
    """A program that is left running."""

    command: str | tuple[str, ...]

    def on(self, computer: Computer) -> Awaitable[None]:
        return computer.launch(self.command)


class ReadFile(Struct, frozen=True, tag=True):
    """A file of the machine."""

    path: str

    def on(self, computer: Computer) -> Awaitable[bytes | None]:
        return computer.read_file(self.path)


class WriteFile(Struct, frozen=True, tag=True):
    """A file for the machine."""

    path: str
    data: bytes

    def on(self, computer: Computer) -> Awaitable[None]:
        return computer.write_file(self.path, self.data)


class AccessibilityTree(Struct, frozen=True, tag=True):
    """What is on the screen, as XML."""

    def on(self, computer: Computer) -> Awaitable[str]:
        return computer.accessibility_tree()


class TerminalText(Struct, frozen=True, tag=True):
    """What stands in the terminal."""

    def on(self, computer: Computer) -> Awaitable[str | None]:
        return computer.terminal_text()


ComputerCall = Screenshot | SendInput | Execute | Launch | ReadFile | WriteFile | AccessibilityTree | TerminalText


class Hello(Struct, frozen=True, tag=True, kw_only=True):
    """The first message of each side."""

    protocol: int = PROTOCOL


class Take(Struct, frozen=True, tag=True, kw_only=True):
    """`MachinePool.take`."""

    id: int
    n: int
    deadline: float
    run: str
    holder: str


class Call(Struct, frozen=True, tag=True, kw_only=True):
    """Something that the holder of a lease does with its machine."""

    id: int
    machine_id: str
    epoch: int
    call: ComputerCall


class Release(Struct, frozen=True, tag=True, kw_only=True):
    """The holder is done. No answer."""

    machine_id: str
    epoch: int


class GiveUp(Struct, frozen=True, tag=True, kw_only=True):
    """Nobody waits for the answer any more. No answer."""

    id: int


class Describe(Struct, frozen=True, tag=True, kw_only=True):
    """Asks how the pool stands."""

    id: int


class Reset(Struct, frozen=True, tag=True, kw_only=True):
    """`MachinePool.reset`, or `stop` if the machine is to be replaced."""

    id: int
    machine_id: str
    reason: str
    replace: bool = False


Question = Hello | Take | Call | Release | GiveUp | Describe | Reset


class Granted(Struct, frozen=True, kw_only=True):
    """One lease."""

    machine_id: str
    epoch: int
    address: Mapping[str, Any]
    screen_size: tuple[int, int]


class Standing(Struct, frozen=True, kw_only=True):
    """How a pool stands."""

    name: str
    machines: tuple[MachineRecord, ...]
    statistics: PoolStatistics


class Done(Struct, frozen=True, tag=True, kw_only=True):
    """The answer; its type follows from the question."""

    id: int
    value: Any = None


class Failed(Struct, frozen=True, tag=True, kw_only=True):
    """The question failed. `kind` is the name of the error."""

    id: int
    kind: str
    message: str
    stage: str = ""


class Lost(Struct, frozen=True, tag=True, kw_only=True):
    """A lease of this client is over, and not because it was released."""

    machine_id: str
    epoch: int
    reason: str


Answer = Hello | Done | Failed | Lost

_encoder = msgspec.msgpack.Encoder()


def frame(message: Any) -> bytes:
    """Raises `ValueError` if it is too long for the other side."""
    body = _encoder.encode(message)
    if len(body) > MAX_FRAME_BYTES:
        raise ValueError(f"{len(body):,} bytes are too many for one message; at most {MAX_FRAME_BYTES:,} are taken")
    return len(body).to_bytes(_LENGTH_BYTES) + body


async def read_question(reader: asyncio.StreamReader) -> Question | None:
    """As `read_answer`, at the other end."""
    question: Question | None = await _read(reader, Question)
    return question


async def read_answer(reader: asyncio.StreamReader) -> Answer | None:
    """The next message; None at the end. Raises `ValueError` if the other side makes no sense."""
    answer: Answer | None = await _read(reader, Answer)
    return answer


async def _read(reader: asyncio.StreamReader, kind: Any) -> Any:
    try:
        length = int.from_bytes(await reader.readexactly(_LENGTH_BYTES))
        if length > MAX_FRAME_BYTES:
            raise ValueError(f"a message of {length:,} bytes is too long")
        return msgpack_decoder(kind).decode(await reader.readexactly(length))
    except asyncio.IncompleteReadError:
        return None
    except msgspec.MsgspecError as exc:
        raise ValueError(f"a message makes no sense: {exc}") from exc
