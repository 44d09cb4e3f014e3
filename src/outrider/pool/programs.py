"""Programs of this host that are run to their end."""

import asyncio
import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from subprocess import DEVNULL
from tempfile import TemporaryFile
from typing import IO

from outrider.core.errors import MachineError
from outrider.core.processes import Child
from outrider.core.tasks import uninterrupted

SAID_BYTES = 2000
END_SECONDS = 5.0


async def output_of(command: Sequence[str], *, seconds: float, stage: str) -> str:
    """What a program has written when it ends with 0; else `MachineError` with the last of what it said.

    It is killed, with all in its process group, at the deadline and if nobody waits for it any more. What it leaves
    running in another group goes on, and is not waited for, whatever it holds open.
    """
    name = " ".join(command)
    with TemporaryFile() as out, TemporaryFile() as err:
        try:
            process = Child(command, stdin=DEVNULL, stdout=out.fileno(), stderr=err.fileno(), inherits=True)
        except (OSError, ValueError) as exc:
            raise MachineError(f"{name}: {exc}", stage=stage) from exc
        try:
            async with asyncio.timeout(seconds):
                await process.wait()
        except BaseException as exc:
            await _kill(process)
            if not isinstance(exc, TimeoutError):
                raise
            message = f"{name} did not end within {seconds:g} s and was killed; it said: {_tail(err, out)}"
            raise MachineError(message, stage=stage) from exc
        if process.returncode != 0:
            raise MachineError(f"{name} ended with {process.returncode}: {_tail(err, out)}", stage=stage)
        return _read(out, 0)


async def _kill(process: Child) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await uninterrupted(_buried(process))


async def _buried(process: Child) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(END_SECONDS):
            await process.wait()


def _tail(*files: IO[bytes]) -> str:
    pieces = [_read(file, max(0, os.fstat(file.fileno()).st_size - SAID_BYTES)).strip() for file in files]
    return "\n".join(piece for piece in pieces if piece) or "nothing"


def _read(file: IO[bytes], start: int) -> str:
    """The file from `start` on. Its offset is not moved: programs left running share it, and go on writing there."""
    size = os.fstat(file.fileno()).st_size
    return os.pread(file.fileno(), size - start, start).decode(errors="replace")
