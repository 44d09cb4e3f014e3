"""Comparing formulas by the symbolic library, in processes that can be killed; nothing of it is loaded in this one."""

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Any

from outrider.core.errors import ScoreError
from outrider.core.processes import plain_variables
from outrider.core.tasks import uninterrupted
from outrider.env.scoring import symbolic

_START_SECONDS = 60.0
_PATIENCE = 6.0
"""How many times longer than its processor time a comparison may last: on a busy machine it waits for its turn."""

_LEAST_SECONDS = 30.0
"""So long it may last in any case: who has little to do waits for a turn as long as others."""

_GRACE_SECONDS = 5.0
"""How much longer we wait for a process that should have ended by itself."""


class Verdict(StrEnum):
    """What came of a comparison."""

    EQUAL = "equal"
    DIFFERENT = "different"
    GAVE_UP = "gave up"
    """The given formula takes too much time or memory."""


class SymbolicChecker:
    """Starts processes as they are needed, at most `max_processes`, and keeps them until it is closed."""

    def __init__(self, *, check_seconds: float, max_processes: int) -> None:
        self._check_seconds = check_seconds
        self._slots = asyncio.Semaphore(max_processes)
        self._processes: set[Process] = set()
        self._idle: list[Process] = []
        self._closed = False

    async def compare(self, expected: str, given: str, said: str = "") -> Verdict:
        """Whether two formulas are equal; `said` is a longer text that may hold the given one.

        Raises `ScoreError` if the expected one cannot be read.
        """
        request = {
            "expected": expected,
            "given": given,
            "said": said,
            "cpu_seconds": self._check_seconds,
            "wall_seconds": max(self._check_seconds * _PATIENCE, _LEAST_SECONDS),
        }
        async with self._slots:
            verdict = await self._tried(request)
            if verdict is None:  # lost, perhaps by no fault of the formulas; a second loss is their fault
                verdict = await self._tried(request)
        return verdict or Verdict.GAVE_UP

    async def close(self) -> None:
        self._closed = True
        self._idle.clear()
        for process in list(self._processes):
            await self._end(process)

    async def _start(self) -> Process:
        self._refuse_if_closed()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-W", "ignore", Path(symbolic.__file__)),
            stdin=PIPE,
            stdout=PIPE,
            stderr=DEVNULL,
            env=plain_variables("PYTHONPATH", "PYTHONHOME"),
        )
        self._processes.add(process)
        problem = "it does not come up"
        try:
            self._refuse_if_closed()  # while the process was being started
            with suppress(TimeoutError):
                async with asyncio.timeout(_START_SECONDS):
                    greeting = await _reply(process)
                    problem = "it ended at once" if greeting is None else greeting.get("failed", "")
        finally:
            if problem:
                await self._end(process)
        if problem:
            raise ScoreError(f"the process that compares formulas cannot start: {problem}", stage="score")
        return process

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise ScoreError("the scorer is closed", stage="score")

    async def _tried(self, request: dict[str, Any]) -> Verdict | None:
        """The verdict of one process; None: something has ended it."""
        self._idle = [process for process in self._idle if process.returncode is None]
        process = self._idle.pop() if self._idle else await self._start()
        verdict = None
        try:
            async with asyncio.timeout(request["wall_seconds"] + _GRACE_SECONDS):
                verdict = await self._asked(process, request)
        except TimeoutError as exc:
            raise ScoreError("the process that compares formulas does not answer", stage="score") from exc
        finally:
            if verdict in (Verdict.EQUAL, Verdict.DIFFERENT) and not self._closed:
                self._idle.append(process)
            else:
                await self._end(process)
        return verdict

    async def _asked(self, process: Process, request: dict[str, Any]) -> Verdict | None:
        assert process.stdin is not None
        process.stdin.write(json.dumps(request).encode() + b"\n")
        read = await _reply(process)
        outcome = await _reply(process) if read is not None and read["read"] else None
        if outcome is not None:
            return Verdict.EQUAL if outcome["equal"] else Verdict.DIFFERENT
        if read is not None and not read["read"]:
            raise ScoreError(f"the expected answer {request['expected'][:80]!r} cannot be read", stage="score")
        match await process.wait():
            case code if code == -signal.SIGPROF and read is not None:
                return Verdict.GAVE_UP
            case code if code == -signal.SIGPROF:
                problem = f"takes more than {self._check_seconds:g} s to read"
                raise ScoreError(f"the expected answer {request['expected'][:80]!r} {problem}", stage="score")
            case code if code == -signal.SIGALRM:
                problem = f"did not end within {request['wall_seconds']:g} s; is the machine overloaded?"
                raise ScoreError(f"the comparison of two formulas {problem}", stage="score")
        return None

    async def _end(self, process: Process) -> None:
        self._processes.discard(process)
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)  # `process.kill` may take its exit code from under asyncio
        if process.stdin is not None:
            process.stdin.close()
        await uninterrupted(process.wait())


async def _reply(process: Process) -> dict[str, Any] | None:
    """The next line of the process; None: it has ended."""
    assert process.stdout is not None
    line = await process.stdout.readline()
    if not line.endswith(b"\n"):
        return None
    reply: dict[str, Any] = json.loads(line)
    return reply
