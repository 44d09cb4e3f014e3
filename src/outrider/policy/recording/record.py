"""Recording a policy: each call is one line of a file, which several processes may share.

Invariants:
- An answer is in the file before the agent sees it, so what an agent acted on can be replayed.
- A line is written under a lock of the file that dies with its process. What a killed process left unfinished stays a
  line of its own, which readers skip.
"""

import asyncio
import fcntl
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from outrider.core.chat import Message, ToolSpec
from outrider.core.crash_points import reached
from outrider.core.errors import ContextOverflow, InvalidInput, PolicyError
from outrider.core.files import private
from outrider.core.tasks import uninterrupted
from outrider.policy.protocol import ChatPolicy, Completion, Probe, Sampling
from outrider.policy.recording.call import RecordedCall, request_of


class RecordingPolicy(ChatPolicy):
    """Passes calls on to `inner`, which it owns, and records them. Failures are not recorded, but for overflows."""

    def __init__(self, inner: ChatPolicy, descriptor: int) -> None:
        self._inner = inner
        self._lines = _Lines(descriptor)

    async def complete(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[ToolSpec] = (),
        sampling: Sampling | None = None,
        session: str = "",
    ) -> Completion:
        asked = tuple(messages)
        request = request_of(asked, tools, sampling)
        try:
            completion = await self._inner.complete(asked, tools=tools, sampling=sampling, session=session)
        except ContextOverflow as exc:
            await self._lines.append(RecordedCall(session=session, request=request, overflow=str(exc)))
            raise
        await self._lines.append(RecordedCall(session=session, request=request, completion=completion))
        return completion

    async def check(self, sampling: Sampling | None = None, probe: Probe | None = None) -> None:
        await self._inner.check(sampling, probe)

    async def close(self) -> None:
        try:
            await self._lines.close()
        finally:
            await self._inner.close()


async def open_recording(inner: ChatPolicy, path: str) -> RecordingPolicy:
    """Record `inner` at the end of the file `path`, which is made if it is not there."""
    return RecordingPolicy(inner, await asyncio.to_thread(_open, path))


def _open(path: str) -> int:
    if Path(path).exists() and not Path(path).is_file():
        raise InvalidInput(f"cannot record to {path}: it is not a plain file")
    try:
        return private(path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
    except (OSError, ValueError) as exc:
        raise InvalidInput(f"cannot record to {path}: {exc}; give a file in a folder that is there") from exc


class _Lines:
    """Lines on their way to the file: those that come while one write is under way go together with the next."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._pending: list[bytes] = []
        self._n_given = 0
        self._n_written = 0
        self._writing = asyncio.Lock()
        self._encode = msgspec.json.Encoder().encode
        self._closed = False

    async def append(self, call: RecordedCall) -> None:
        self._pending.append(self._encode(call) + b"\n")
        self._n_given += 1
        number = self._n_given
        async with self._writing:
            if self._n_written < number:
                await uninterrupted(self._write_pending())

    async def close(self) -> None:
        async with self._writing:
            if self._closed:
                return
            try:
                if self._pending:
                    await uninterrupted(self._write_pending())
            finally:
                self._closed = True
                os.close(self._descriptor)

    async def _write_pending(self) -> None:
        if self._closed:
            raise PolicyError("the recording is closed", stage="policy.record")
        batch, self._pending = self._pending, []
        try:
            await asyncio.to_thread(_write, self._descriptor, b"".join(batch))
        except OSError as exc:
            self._pending[:0] = batch
            raise PolicyError(f"cannot record a call: {exc}", stage="policy.record") from exc
        reached("recording.written")
        self._n_written += len(batch)


def _write(descriptor: int, lines: bytes) -> None:
    """Append all of it or nothing."""
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            lines = b"\n" + lines
        try:
            _write_all(descriptor, memoryview(lines))
        except OSError:
            os.ftruncate(descriptor, size)
            raise
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)


def _write_all(descriptor: int, data: memoryview) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
