"""A command in a container, by an exec instance.

The engine neither ends an exec instance nor tells, while something in the background still has its output, that it has
ended. So a shell runs the command: it tells its own process first, and at the end sets a mark with the exit code in
both outputs. It leads a session, by which all that the command has started is found and killed.
"""

import asyncio
import re
import secrets
import struct
from collections.abc import Sequence
from contextlib import suppress

from msgspec import Struct

from outrider.core.errors import MachineError
from outrider.core.tasks import uninterrupted
from outrider.pool.docker.engine import Engine

OUTPUT_BYTES = 8 * 2**20
"""What is kept of each output of a command; the rest is read and dropped."""

BEGIN_SECONDS = 20.0
"""How long a sound container takes, at the most, to begin with a command."""

KILL_SECONDS = 5.0
KILLED = 137
_STDERR = 2
_FRAME = struct.Struct(">BxxxI")
_MARK_BYTES = 64
_READ_BYTES = 1 << 18

_WRAPPED = 'echo $$ >&2; (exec "$@"); set -- $?; printf "%s %s\\n" "$0" "$1"; printf "%s %s\\n" "$0" "$1" >&2'
_KILL = """\
leader=$1 n=0 found=1
while [ $found = 1 ] && [ $n -lt 50 ]; do
    found=0 n=$((n + 1))
    for each in /proc/[0-9]*; do
        { read -r line < $each/stat; } 2>/dev/null || continue
        set -- ${line##*) }
        if [ "$4" = $leader ] && [ "$1" != Z ]; then found=1; kill -9 ${each#/proc/}; fi
    done
done 2>/dev/null"""


class Ended(Struct, frozen=True):
    """How a command ended. `returncode` is None if it was stopped at its time limit."""

    returncode: int | None
    stdout: bytes
    stderr: bytes
    is_cut: bool
    """Whether an output was longer than what is kept of it."""


class Output:
    """One output of a command, up to the mark."""

    def __init__(self, mark: str, most: int) -> None:
        self.kept = bytearray()
        self.n_bytes = 0
        self.returncode: int | None = None
        self._most = most
        self._mark = re.compile(rb"%b (\d+)\n" % mark.encode())
        self._recent = b""

    def hear(self, chunk: bytes) -> None:
        if self.returncode is not None:
            return
        self.kept += chunk[: max(0, self._most - len(self.kept))]
        self.n_bytes += len(chunk)
        recent = self._recent + chunk
        if found := self._mark.search(recent):
            self.n_bytes += found.start() - len(recent)
            del self.kept[self.n_bytes :]
            self.returncode = int(found[1])
        self._recent = recent[-_MARK_BYTES:]


class Command:
    """A command that was started. The engine sends what it writes in frames: which output, how much, and what."""

    def __init__(self, engine: Engine, reader: asyncio.StreamReader, mark: str, most: int) -> None:
        self._engine = engine
        self._reader = reader
        self._is_accepted = False
        self._received = bytearray()
        self._stdout, self._stderr = Output(mark, most), Output(mark, most)
        self._opening = b""
        self.leader: int | None = None
        """The process of its shell, as the container counts, once it has begun."""
        self.is_over = False

    @property
    def returncode(self) -> int | None:
        """Set when both outputs have come to their mark."""
        return self._stdout.returncode if self._stderr.returncode is not None else None

    async def begun(self) -> None:
        """Raises `MachineError` if there is no shell that could run it. May be cancelled and asked again."""
        if not self._is_accepted:
            try:
                await self._engine.accepted(self._reader)
            except MachineError:
                self.is_over = True
                raise
            self._is_accepted = True
        while self.leader is None and await self._hear():
            pass
        if self.leader is None:
            self.is_over = True
            said = bytes(self._stdout.kept + self._opening).decode(errors="replace").strip()
            reason = said or "its container has ended"
            raise MachineError(f"a command could not be begun: {reason}", stage="machine.execute")

    async def ended(self) -> None:
        """Until it has ended, or been ended from outside: then there is no exit code."""
        while self.returncode is None and await self._hear():
            pass
        self.is_over = True

    def outcome(self, returncode: int | None) -> Ended:
        outputs = (self._stdout, self._stderr)
        is_cut = any(output.n_bytes > len(output.kept) for output in outputs)
        return Ended(returncode, bytes(self._stdout.kept), bytes(self._stderr.kept), is_cut)

    async def _hear(self) -> bool:
        """Take what has come; False: nothing will come any more."""
        received = await self._reader.read(_READ_BYTES)
        self._received += received
        while len(self._received) >= _FRAME.size:
            stream, length = _FRAME.unpack_from(self._received)
            if len(self._received) < _FRAME.size + length:
                break
            self._take(stream, bytes(self._received[_FRAME.size : _FRAME.size + length]))
            del self._received[: _FRAME.size + length]
        return bool(received)

    def _take(self, stream: int, chunk: bytes) -> None:
        if stream == _STDERR and self.leader is None:
            first, newline, chunk = (self._opening + chunk).partition(b"\n")
            if not newline or not first.isdigit():
                self._opening = first + newline + chunk
                return
            self.leader = int(first)
        (self._stderr if stream == _STDERR else self._stdout).hear(chunk)


async def run(
    engine: Engine,
    container: str,
    words: Sequence[str],
    *,
    seconds: float,
    stdin: bytes | None = None,
    most: int = OUTPUT_BYTES,
) -> Ended:
    """Run a command to its end, or kill it after so many seconds, or when nobody waits for it any more."""
    mark = secrets.token_hex(16)
    streams = ("Stdout", "Stderr") if stdin is None else ("Stdin", "Stdout", "Stderr")
    exec_id = await _instance(engine, container, ("/bin/sh", "-c", _WRAPPED, mark, *words), streams)
    async with engine.attached(exec_id) as (reader, writer):
        command = Command(engine, reader, mark, most)
        is_late = False
        try:
            async with asyncio.timeout(BEGIN_SECONDS):
                await command.begun()
            if stdin:
                writer.write(stdin)  # not waited for: a command that does not read it must not hold us up
            is_late = not await _ended_within(seconds, command)
        finally:
            if not command.is_over:
                await uninterrupted(_kill(engine, container, command))
    if is_late or command.returncode is not None:
        return command.outcome(None if is_late else command.returncode)
    await run(engine, container, ("true",), seconds=BEGIN_SECONDS)  # raises if the container has ended
    return command.outcome(KILLED)


async def start_detached(engine: Engine, container: str, words: Sequence[str]) -> None:
    """Raises `MachineError` if there is no such program."""
    exec_id = await _instance(engine, container, words)
    await engine.ask("POST", f"/exec/{exec_id}/start", json={"Detach": True})


async def _instance(engine: Engine, container: str, words: Sequence[str], streams: tuple[str, ...] = ()) -> str:
    asked: dict[str, object] = {"Cmd": list(words)} | {f"Attach{stream}": True for stream in streams}
    return str((await engine.ask("POST", f"/containers/{container}/exec", json=asked))["Id"])


async def _ended_within(seconds: float, command: Command) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await command.ended()
    except TimeoutError:
        return False
    return True


async def _kill(engine: Engine, container: str, command: Command) -> None:
    """Kill all that the command's shell leads, and hear its last words."""
    with suppress(MachineError, OSError, EOFError, TimeoutError):
        async with asyncio.timeout(KILL_SECONDS):
            await command.begun()
            await start_detached(engine, container, ("/bin/sh", "-c", _KILL, "sh", str(command.leader)))
            await command.ended()
