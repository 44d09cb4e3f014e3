"""A process under measurement: it serves one request after another, a JSON line each, and measures its own CPU time.

Both sides of a comparison run in such processes, started alike, so that neither pays for the other or for the
benchmark around it. Only the standard library is used: the programs of the baselines run in their own environments.
"""

import asyncio
import contextlib
import ctypes
import gc
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

HERE = Path(__file__).parent

Answer = dict[str, Any]
Work = Callable[..., Awaitable[Answer]]


class SubjectFailed(Exception):
    """The process has ended, or the work it was asked for has failed."""


class Subject:
    """The side that asks. `send` and `receive` let several subjects work at the same time."""

    def __init__(
        self, program: str, *, python: Path = Path(sys.executable), environment: Mapping[str, str] | None = None
    ) -> None:
        self._process = subprocess.Popen(
            [python, HERE / program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(HERE)} | dict(environment or {}),
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, work: str, **arguments: Any) -> Answer:
        self.send(work, **arguments)
        return self.receive()

    def send(self, work: str, **arguments: Any) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"work": work, "arguments": arguments}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError as exc:
            raise SubjectFailed(f"process {self.pid} has ended") from exc

    def receive(self) -> Answer:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SubjectFailed(f"process {self.pid} ended with code {self._process.wait()} before it answered")
        answer: Answer = json.loads(line)
        if "error" in answer:
            raise SubjectFailed(answer["error"])
        return answer

    def kill(self) -> None:
        """SIGKILL, as a machine that fails would."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.kill()
        self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()


def serve(works: Mapping[str, Work]) -> None:
    """The side that answers, until its input ends. What libraries print goes to standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    with asyncio.Runner() as runner:
        for line in sys.stdin:
            request = json.loads(line)
            if request["work"] == "open":
                gc.collect()  # what the store before it has left is no part of the next measurement
            try:
                answer = runner.run(_timed(works[request["work"]](**request["arguments"])))
            except Exception as exc:  # noqa: BLE001 raised again in the process that asked
                answer = {"error": f"{type(exc).__name__}: {exc}"}
            answers.write(json.dumps(answer) + "\n")
            answers.flush()


async def _timed(work: Awaitable[Answer]) -> Answer:
    """The answer, with the CPU and wall seconds of all of this process while it was made."""
    wall, cpu = time.perf_counter(), time.process_time()
    answer = await work
    return {"cpu_seconds": time.process_time() - cpu, "wall_seconds": time.perf_counter() - wall} | answer


async def resident_mb() -> Answer:
    """The memory of this process, after giving back what can be given back."""
    return {"mb": _resident_bytes() / 1e6}


def _resident_bytes() -> int:
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
