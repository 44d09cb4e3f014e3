"""What a supervisor starts, watches and stops: a worker as a task in this process, or as a process of its own.

A worker process reads its `WorkerSpec` from standard input and then waits on it: when the supervisor dies, however
it dies, the input ends and the worker drains. So no worker outlives its supervisor by more than its grace.
"""

import asyncio
import os
import signal
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Protocol, cast

from outrider.agent import EpisodeFactory
from outrider.core import wire
from outrider.core.clock import Clock, SystemClock, sleep
from outrider.core.errors import AttemptError, InvalidInput, OutriderError, StoreDamaged
from outrider.core.rollout import AttemptedRollout
from outrider.runner.kit import EpisodeSpec, open_episodes
from outrider.runner.meter import Meter, Reading
from outrider.runner.runner import Runner, RunnerConfig, worker_id_of
from outrider.store import Store, open_store

STDIN, STDOUT, STDERR = range(3)
INPUT_CHARACTERS = 200
LAST_WORDS_SECONDS = 1.0
"""How long to listen to a worker that has ended, in case something it started still holds its output open."""

EXIT_INVALID = 2
"""The exit code of a worker that was given something it cannot use; starting it again would not help."""

EXIT_STOPPED = 3
"""The exit code of a worker that met what every other worker would meet too; the run stops."""

REASON = "\x1f"
"""A line that begins with this character is why a worker process ends; its supervisor tells it once for all of them."""

READING_SECONDS = 1.0
"""How often a worker tells what it has used."""

LineHandler = Callable[[str], None]
"""Takes one line of text that a worker prints."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """All that a worker needs to know, in a form that crosses process borders."""

    store_url: str
    episodes: EpisodeSpec
    index: int = 0
    config: RunnerConfig = field(default_factory=RunnerConfig)
    log_level: str = "WARNING"
    tells_claims: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerExit:
    """How a worker ended: by itself or by dying (`failed`).

    `invalid`: it would die again at once. `stops_run`: every other worker would come to the same end.
    """

    failed: bool
    description: str
    invalid: bool = False
    stops_run: bool = False


def own_error(error: BaseException) -> BaseException:
    """The first of our own errors among those that the tasks of a worker ended with; else the error itself."""
    if isinstance(error, BaseExceptionGroup):
        found = [own_error(one) for one in error.exceptions]
        return next((one for one in found if isinstance(one, OutriderError)), error)
    return error


def exit_by(error: BaseException) -> WorkerExit:
    """How a worker ends that this error stopped."""
    error = own_error(error)
    stops_run = isinstance(error, StoreDamaged) or (isinstance(error, AttemptError) and error.stops_run)
    description = str(error) if stops_run else f"failed: {error}"
    invalid = isinstance(error, InvalidInput)
    return WorkerExit(failed=True, description=description, invalid=invalid, stops_run=stops_run)


class RunningWorker(Protocol):
    """A worker under way."""

    @property
    def worker_id(self) -> str: ...

    @property
    def reading(self) -> Reading:
        """What its model calls have used so far."""

    async def wait(self) -> WorkerExit: ...

    def drain(self) -> None:
        """Claim nothing more, finish what runs, end."""

    def kill(self) -> None:
        """End at once."""


class TaskWorker:
    """A worker as a task of the running event loop, on the supervisor's own store."""

    def __init__(self, store: Store, spec: WorkerSpec, on_line: LineHandler) -> None:
        self.worker_id = worker_id_of(spec.index)
        self._meter = Meter()
        self._runner: Runner | None = None
        self._draining = False
        self._task = asyncio.create_task(self._work(store, spec, on_line), name=f"worker {self.worker_id}")

    @property
    def reading(self) -> Reading:
        return self._meter.reading

    async def _work(self, store: Store, spec: WorkerSpec, on_line: LineHandler) -> int:
        async with open_episodes(spec.episodes, self._meter, worker=spec.index, journal=store) as episodes:
            self._runner = new_runner(store, spec, episodes, on_line)
            return 0 if self._draining else await self._runner.iter()

    async def wait(self) -> WorkerExit:
        await asyncio.wait([self._task])
        if self._task.cancelled():
            return WorkerExit(failed=False, description="was stopped")
        if (error := self._task.exception()) is not None:
            return exit_by(error)
        return WorkerExit(failed=False, description=f"ended after {self._task.result()} rollouts")

    def drain(self) -> None:
        self._draining = True
        if self._runner is not None:
            self._runner.stop()

    def kill(self) -> None:
        self._task.cancel()


class _Ears(asyncio.SubprocessProtocol):
    """Hears what a worker process says, and that it has ended."""

    def __init__(self, on_line: LineHandler) -> None:
        self._on_line = on_line
        self.reading = Reading()
        self.reason = ""
        self._unfinished = {STDOUT: b"", STDERR: b""}
        self.last_words: deque[str] = deque(maxlen=10)
        self.exited: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.silent: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        *lines, self._unfinished[fd] = (self._unfinished[fd] + data).split(b"\n")
        for line in lines:
            self._hear(fd, line.decode(errors="replace"))

    def _hear(self, fd: int, text: str) -> None:
        if text.startswith(REASON):
            self.reason = text[1:]
            return
        if fd == STDERR:
            self.last_words.append(text)
        elif (reading := Reading.of_line(text)) is not None:
            self.reading = reading
            return
        self._on_line(text)

    def process_exited(self) -> None:
        self.exited.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 asyncio's signature
        self.silent.set_result(None)


class ProcessWorker:
    """A worker as a process of its own, outside the terminal's process group: only its supervisor signals it."""

    def __init__(self, transport: asyncio.SubprocessTransport, ears: _Ears, index: int) -> None:
        self._transport = transport
        self._ears = ears
        self.pid = transport.get_pid()
        self.worker_id = worker_id_of(index, self.pid)

    @property
    def reading(self) -> Reading:
        return self._ears.reading

    @classmethod
    async def start(cls, spec: WorkerSpec, on_line: LineHandler) -> "ProcessWorker":
        command = (sys.executable, "-m", "outrider.runner.process")
        transport, ears = await asyncio.get_running_loop().subprocess_exec(
            lambda: _Ears(on_line), *command, start_new_session=True
        )
        record = wire.to_record(spec)
        orders = cast("asyncio.WriteTransport", transport.get_pipe_transport(STDIN))
        orders.write(len(record).to_bytes(4) + record)
        return cls(transport, ears, spec.index)

    async def wait(self) -> WorkerExit:
        """The end of the process itself: something it started may hold its output open for longer."""
        try:
            await asyncio.wait([self._ears.exited])
            self._end_leftovers()
            await asyncio.wait([self._ears.silent], timeout=LAST_WORDS_SECONDS)
        finally:
            self._transport.close()
        code = self._transport.get_returncode()
        assert code is not None
        return WorkerExit(
            failed=code != 0,
            description=self._describe(code),
            invalid=code == EXIT_INVALID,
            stops_run=code == EXIT_STOPPED,
        )

    def drain(self) -> None:
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            self._transport.send_signal(number)

    def _end_leftovers(self) -> None:
        """What an agent has started and left behind ends with its worker: they are one process group."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def _describe(self, code: int) -> str:
        if code == 0:
            return "ended"
        if code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        if self._ears.reason:
            return self._ears.reason
        return "\n".join([f"exited with code {code}", *self._ears.last_words])


@asynccontextmanager
async def open_runner(spec: WorkerSpec, say: LineHandler) -> AsyncIterator[Runner]:
    """The worker that `spec` describes, on a store of its own. It says what it has used too, in lines of readings."""
    meter = Meter()
    async with (
        open_store(spec.store_url, create=False) as store,
        open_episodes(spec.episodes, meter, worker=spec.index, journal=store) as episodes,
    ):
        readings = asyncio.create_task(_say_readings(meter, say, SystemClock()), name="say readings")
        try:
            yield new_runner(store, spec, episodes, say)
        finally:
            readings.cancel()
            say(meter.reading.to_line())


async def _say_readings(meter: Meter, say: LineHandler, clock: Clock) -> None:
    said = meter.reading
    while True:
        await sleep(clock, READING_SECONDS)
        if meter.reading is not said:
            said = meter.reading
            say(said.to_line())


def new_runner(store: Store, spec: WorkerSpec, episodes: EpisodeFactory, on_line: LineHandler) -> Runner:
    """The worker that `spec` describes; it says each claim in a line, if it shall."""

    def tell(claimed: AttemptedRollout) -> None:
        if spec.tells_claims:
            on_line(_claim_line(spec.index, claimed))

    return Runner(
        store,
        episodes=episodes,
        worker_id=worker_id_of(spec.index),
        config=spec.config,
        on_claim=tell,
    )


def _claim_line(index: int, claimed: AttemptedRollout) -> str:
    text = str(claimed.input)
    if len(text) > INPUT_CHARACTERS:
        text = text[:INPUT_CHARACTERS] + "…"
    return f"✅ Worker-{index} processing rollout: {claimed.rollout_id} | Input: {text}"
