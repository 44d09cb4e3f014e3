"""What a supervisor starts, watches and stops: a worker as a task in this process, or as a process of its own.

A worker process reads its `WorkerSpec` from standard input and then waits on it: when the supervisor dies, however
it dies, the input ends and the worker drains. So no worker outlives its supervisor by more than its grace.
"""

import asyncio
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from outrider.core import wire
from outrider.core.errors import InvalidInput
from outrider.core.rollout import AttemptedRollout
from outrider.runner.runner import Runner, RunnerConfig, worker_id_of
from outrider.store import Store

INPUT_CHARACTERS = 200
EXIT_INVALID = 2
"""The exit code of a worker that was given something it cannot use; starting it again would not help."""

LineHandler = Callable[[str], None]
"""Takes one line of text that a worker prints."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """All that a worker needs to know, in a form that crosses process borders."""

    store_url: str
    agent: str
    index: int = 0
    config: RunnerConfig = field(default_factory=RunnerConfig)
    log_level: str = "WARNING"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerExit:
    """How a worker ended. `failed` tells a death from an end; `invalid` a death that would come again at once."""

    failed: bool
    description: str
    invalid: bool = False


class RunningWorker(Protocol):
    """A worker under way."""

    @property
    def worker_id(self) -> str: ...

    async def wait(self) -> WorkerExit: ...

    def drain(self) -> None:
        """Claim nothing more, finish what runs, end."""

    def kill(self) -> None:
        """End at once."""


class TaskWorker:
    """A worker as a task of the running event loop, on the supervisor's own store."""

    def __init__(self, store: Store, spec: WorkerSpec, on_line: LineHandler) -> None:
        self._runner = new_runner(store, spec, on_line)
        self._task = asyncio.create_task(self._runner.iter(), name=f"worker {self._runner.worker_id}")

    @property
    def worker_id(self) -> str:
        return self._runner.worker_id

    async def wait(self) -> WorkerExit:
        await asyncio.wait([self._task])
        if self._task.cancelled():
            return WorkerExit(failed=False, description="was stopped")
        if (error := self._task.exception()) is not None:
            return WorkerExit(failed=True, description=f"failed: {error}", invalid=isinstance(error, InvalidInput))
        return WorkerExit(failed=False, description=f"ended after {self._runner.n_run} rollouts")

    def drain(self) -> None:
        self._runner.stop()

    def kill(self) -> None:
        self._task.cancel()


class ProcessWorker:
    """A worker as a process of its own, outside the terminal's process group: only its supervisor signals it."""

    def __init__(self, process: asyncio.subprocess.Process, index: int, on_line: LineHandler) -> None:
        self._process = process
        self._index = index
        self._on_line = on_line
        self._last_words: list[str] = []

    @classmethod
    async def start(cls, spec: WorkerSpec, on_line: LineHandler) -> "ProcessWorker":
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "outrider.runner.process",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
            limit=1 << 24,
        )
        worker = cls(process, spec.index, on_line)
        record = wire.to_record(spec)
        assert process.stdin is not None
        process.stdin.write(len(record).to_bytes(4) + record)
        return worker

    @property
    def worker_id(self) -> str:
        return worker_id_of(self._index, self._process.pid)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def wait(self) -> WorkerExit:
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        async with asyncio.TaskGroup() as group:
            group.create_task(self._relay(self._process.stdout, keep=False))
            group.create_task(self._relay(self._process.stderr, keep=True))
            code = await self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()
        return WorkerExit(failed=code != 0, description=self._describe(code), invalid=code == EXIT_INVALID)

    def drain(self) -> None:
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self._process.returncode is None:
            self._process.send_signal(number)

    async def _relay(self, stream: asyncio.StreamReader, *, keep: bool) -> None:
        async for raw in stream:
            line = raw.decode(errors="replace").rstrip("\n")
            if keep:
                self._last_words = [*self._last_words[-9:], line]
            self._on_line(line)

    def _describe(self, code: int) -> str:
        if code == 0:
            return "ended"
        if code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        return "\n".join([f"exited with code {code}", *self._last_words])


def new_runner(store: Store, spec: WorkerSpec, on_line: LineHandler) -> Runner:
    """The worker that `spec` describes; it says each claim in a line."""
    return Runner(
        store,
        spec.agent,
        worker_id=worker_id_of(spec.index),
        config=spec.config,
        on_claim=lambda claimed: on_line(_claim_line(spec.index, claimed)),
    )


def _claim_line(index: int, claimed: AttemptedRollout) -> str:
    text = str(claimed.input)
    if len(text) > INPUT_CHARACTERS:
        text = text[:INPUT_CHARACTERS] + "…"
    return f"✅ Worker-{index} processing rollout: {claimed.rollout_id} | Input: {text}"
