"""What a supervisor starts, watches and stops: a worker as a task in this process, or as a process of its own.

A worker process hangs on a channel: when the supervisor dies, however it dies, the channel ends and the worker drains.
What does not, and what it has started, is ended by the guard. So nothing outlives a supervisor by more than its grace.
"""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, Protocol

from outrider.agent import EpisodeFactory
from outrider.core import wire
from outrider.core.clock import Clock, SystemClock, sleep
from outrider.core.errors import AttemptError, InvalidInput, OutriderError, StoreDamaged, described
from outrider.core.ids import new_id
from outrider.core.lines import LineSplitter
from outrider.core.processes import WORKER_MARK, plain_variables
from outrider.core.rollout import AttemptedRollout
from outrider.core.secret import Secret
from outrider.core.tasks import uninterrupted
from outrider.core.variables import keys_here
from outrider.runner import guard as guarding
from outrider.runner.channel import SupervisorEnd, WorkerExit
from outrider.runner.keys import key_names, needed_names
from outrider.runner.kit import EpisodeSpec, open_episodes
from outrider.runner.loop_watch import LoopWatch
from outrider.runner.meter import Meter, Reading
from outrider.runner.runner import Runner, RunnerConfig, worker_id_of
from outrider.store import Store, StoreUrl
from outrider.store.opening import open_when_there

STDIN, STDOUT, STDERR = range(3)
INPUT_CHARACTERS = 200
LAST_WORDS_SECONDS = 1.0
"""How long to listen to a worker that has ended, in case something it started still holds its output open."""

LAST_WORDS, WORD_CHARACTERS = 40, 300
"""Lines of standard error that tell why a worker died: as many as the stack of one thread may have."""

LINE_BYTES = 8_000
OUTPUT_BYTES = 1_000_000
"""What is shown of a line, and of all that a worker prints within a second."""

LOOK_SECONDS = 1.0
SILENT_SECONDS = 5.0
"""A worker may be silent for so much longer than its event loop may be blocked: it speaks in a thread."""

START_SECONDS = 60.0
"""How much longer it may be silent at first, while its interpreter starts."""

DRAIN_SECONDS = 3.0
"""How much longer than the grace a worker that is told to drain may take."""

EXIT_SECONDS = 10.0
"""How long a worker that has told its end may take to exit."""

STACK_SECONDS = 1.0
"""How long a silent worker gets to write down where it stands before it is killed."""

STACK_LINES = 8
"""What is told of that: the innermost calls."""

READING_SECONDS = 1.0
"""How often a worker tells what it has used."""

LineHandler = Callable[[str], None]
"""Takes one line of text that a worker prints."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """All that a worker needs to know, in a form that crosses process borders.

    Variables that hold keys are not in the environment of a worker's process, but for those in `pass_env`. `withheld`
    are their names, with the values that the worker itself needs; launchers fill it in.
    """

    store_url: StoreUrl
    episodes: EpisodeSpec
    index: int = 0
    config: RunnerConfig = field(default_factory=RunnerConfig)
    log_level: str = "WARNING"
    tells_claims: bool = True
    pass_env: tuple[str, ...] = ()
    withheld: Mapping[str, Secret] = field(default_factory=dict)
    path: tuple[str, ...] = ()
    """Where a worker process looks for modules too, after its own places."""

    def with_keys(self) -> "WorkerSpec":
        """The spec for a worker that is about to be started by this process, and has another environment."""
        keys, needed = keys_here(key_names(self.episodes), self.pass_env), needed_names(self.episodes)
        return replace(self, withheld={name: keys[name] if name in needed else Secret("") for name in keys})

    @property
    def drain_seconds(self) -> float:
        """How long a worker that is told to drain may take; one that has machines ends them too."""
        supply = self.episodes.supply
        machines = 0.0 if supply is None else self.config.limits.close_seconds + supply.end_seconds
        return self.config.grace_seconds + DRAIN_SECONDS + machines


def own_error(error: BaseException) -> BaseException:
    """The first of our own errors among those that the tasks of a worker ended with; else the error itself."""
    if isinstance(error, BaseExceptionGroup):
        found = [own_error(one) for one in error.exceptions]
        return next((one for one in found if isinstance(one, OutriderError)), error)
    return error


def exit_by(error: BaseException) -> WorkerExit:
    """How a worker ends that this error stopped."""
    error = own_error(error)
    if isinstance(error, StoreDamaged) or (isinstance(error, AttemptError) and error.stops_run):
        return WorkerExit(failed=True, description=str(error), stops_run=True)
    if isinstance(error, InvalidInput):
        return WorkerExit(failed=True, description=str(error), invalid=True)
    return WorkerExit(failed=True, description=f"failed: {described(error)}")


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


class _Output(asyncio.SubprocessProtocol):
    """Passes on what a worker process prints, and hears that it has ended.

    Lines are cut, and output beyond `OUTPUT_BYTES` a second is dropped and counted: a worker that prints gigabytes
    fills no memory here and holds up nobody.
    """

    def __init__(self, on_line: LineHandler) -> None:
        self._on_line = on_line
        self._loop = asyncio.get_running_loop()
        self._lines = {STDOUT: LineSplitter(LINE_BYTES), STDERR: LineSplitter(LINE_BYTES)}
        self._began = self._loop.time()
        self._n_bytes = 0
        self.last_words: deque[str] = deque(maxlen=LAST_WORDS)
        self.exited: asyncio.Future[None] = self._loop.create_future()
        self.silent: asyncio.Future[None] = self._loop.create_future()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if self._loop.time() - self._began >= 1.0:
            self._begin_second()
        self._n_bytes += len(data)
        if self._n_bytes <= OUTPUT_BYTES:
            for line in self._lines[fd].feed(data):
                self._hear(fd, line)
        elif fd == STDERR:
            tail = data[-LINE_BYTES:].decode(errors="replace").splitlines()
            self.last_words.extend(line[:WORD_CHARACTERS] for line in tail)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:  # noqa: ARG002 asyncio's signature
        if rest := self._lines[fd].rest():
            self._hear(fd, rest)

    def _begin_second(self) -> None:
        n_dropped = self._n_bytes - OUTPUT_BYTES
        self._began, self._n_bytes = self._loop.time(), 0
        if n_dropped > 0:
            for fd, lines in self._lines.items():
                if rest := lines.rest():
                    self._hear(fd, rest)
            self._on_line(f"… {n_dropped:,} bytes of output are not shown")

    def _hear(self, fd: int, line: bytes) -> None:
        text = line.decode(errors="replace")
        if fd == STDERR:
            self.last_words.append(text[:WORD_CHARACTERS])
        self._on_line(text)

    def process_exited(self) -> None:
        self.exited.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 asyncio's signature
        self._begin_second()
        self.silent.set_result(None)


class Guard:
    """Marks the worker processes of one supervisor, and keeps a guard at their side for as long as there are any."""

    def __init__(self) -> None:
        self._name = ""
        self._numbers = count()
        self._n_workers = 0
        self._process: subprocess.Popen[bytes] | None = None

    def enter(self, spec: WorkerSpec) -> str:
        """The mark of the next worker."""
        self._n_workers += 1
        if self._process is None:
            self._name = new_id("wk")  # the guard before this one is about to end all that has its name
            mark = f"{WORKER_MARK}={self._name}."
            self._process = subprocess.Popen(
                (sys.executable, "-IS", guarding.__file__, mark, str(spec.drain_seconds)),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=plain_variables(),
                cwd="/",
                start_new_session=True,
            )
        return f"{self._name}.{next(self._numbers)}."

    async def settled(self) -> None:
        """Until the guard stands by itself: the process that was started here has ended, its child guards."""
        if self._process is not None:
            await asyncio.to_thread(self._process.wait)

    async def leave(self, mark: str) -> None:
        """A worker is gone: so is all that it has started."""
        await asyncio.to_thread(guarding.kill_marked, f"{WORKER_MARK}={mark}")
        self._n_workers -= 1
        if self._n_workers == 0 and (process := self._process) is not None:
            self._process = None
            assert process.stdin is not None
            process.stdin.close()


class ProcessWorker:
    """A worker as a process of its own, outside the terminal's process group: only its supervisor signals it."""

    def __init__(
        self,
        transport: asyncio.SubprocessTransport,
        output: _Output,
        channel: SupervisorEnd,
        spec: WorkerSpec,
        mark: tuple[Guard, str],
    ) -> None:
        self._transport = transport
        self._output = output
        self._channel = channel
        self._spec = spec
        self._mark = mark
        self._loop = asyncio.get_running_loop()
        self._drain_until: float | None = None
        self._exit_until: float | None = None
        self._n_heard = 0
        self._n_silent = 0
        self.reading = Reading()
        self.pid = transport.get_pid()
        self.worker_id = worker_id_of(spec.index, self.pid)

    @classmethod
    async def start(
        cls,
        spec: WorkerSpec,
        on_line: LineHandler,
        guard: Guard | None = None,
        *,
        on_reading: Callable[[Reading], object] = lambda _: None,
    ) -> "ProcessWorker":
        def hear(reading: Reading) -> None:
            worker.reading = reading
            on_reading(reading)

        loop = asyncio.get_running_loop()
        spec = spec.with_keys()
        variables = {name: value for name, value in os.environ.items() if name not in spec.withheld}
        guard = guard or Guard()
        mark = guard.enter(spec)
        ours, its = socket.socketpair()
        transport: asyncio.SubprocessTransport | None = None
        try:
            with its:
                transport, output = await loop.subprocess_exec(
                    lambda: _Output(on_line),
                    *(sys.executable, "-m", guarding.PROGRAM, str(its.fileno()), f"{WORKER_MARK}={mark}"),
                    stdin=subprocess.DEVNULL,
                    pass_fds=(its.fileno(),),
                    env={**variables, WORKER_MARK: mark},
                    start_new_session=True,
                )
            _, channel = await loop.create_unix_connection(lambda: SupervisorEnd(on_line, hear), sock=ours)
            worker = cls(transport, output, channel, spec, (guard, mark))
            channel.send(wire.to_private_record(spec))
            await guard.settled()
        except BaseException:
            ours.close()
            await uninterrupted(guard.leave(mark))
            if transport is not None:
                transport.close()
            raise
        return worker

    async def wait(self) -> WorkerExit:
        """The end of the process itself: something it started may hold its output open for longer."""
        verdict: WorkerExit | None = None
        try:
            while not self._output.exited.done():
                if verdict is None and (verdict := self._verdict()) is not None:
                    await self._end_by_force()
                await self._until_news()
            self._end_group()
            guard, mark = self._mark
            await guard.leave(mark)
            await asyncio.wait([self._output.silent, self._channel.closed], timeout=LAST_WORDS_SECONDS)
        finally:
            self._channel.close()
            self._transport.close()
        if verdict is not None and (stack := self._stack()):
            return replace(verdict, description="\n".join([verdict.description, *stack]))
        return verdict or self._channel.ended or WorkerExit(failed=True, description=self._describe())

    async def _until_news(self) -> None:
        """Until it has exited or told something that matters, or it is time for another look."""
        news: asyncio.Future[Any] = asyncio.ensure_future(self._channel.has_news.wait())
        await asyncio.wait([self._output.exited, news], timeout=LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        news.cancel()
        self._channel.has_news.clear()
        self._n_silent = 0 if self._channel.n_heard != self._n_heard else self._n_silent + 1
        self._n_heard = self._channel.n_heard

    def _verdict(self) -> WorkerExit | None:
        """How it ends, if it must be ended by force."""
        now, channel = self._loop.time(), self._channel
        is_late = self._drain_until is not None and now > self._drain_until
        if (ended := channel.ended) is not None:
            self._exit_until = self._exit_until or now + EXIT_SECONDS
            return ended if is_late or now > self._exit_until else None
        if channel.is_broken:
            return WorkerExit(failed=True, description="was killed: code that it ran has written to our channel")
        if (blockage := channel.blockage) is not None:
            if blockage.seconds < self._spec.config.max_block_seconds:  # it was told to drain
                return self._late(blockage.seconds, f": {blockage.message}")
            return WorkerExit(failed=True, description=f"was killed: {blockage.message}", blockage=blockage)
        if self._n_silent * LOOK_SECONDS > self._silent_seconds:
            return WorkerExit(failed=True, description=f"was killed: it said nothing for {self._silent_seconds:g} s")
        return self._late(self._spec.drain_seconds) if is_late else None

    def _late(self, seconds: float, why: str = "") -> WorkerExit:
        late = f"was killed: it did not end within {seconds:g} s of being asked to{why}"
        return WorkerExit(failed=True, description=late, late=True)

    @property
    def _silent_seconds(self) -> float:
        starting = START_SECONDS if self._n_heard == 0 else 0.0
        return self._spec.config.max_block_seconds + SILENT_SECONDS + starting

    async def _end_by_force(self) -> None:
        """Let it write down where it stands, if it can; then kill it."""
        if self._channel.blockage is None and self._channel.ended is None:
            self._signal(signal.SIGABRT)
            await asyncio.wait([self._output.exited], timeout=STACK_SECONDS)
        self.kill()

    def drain(self) -> None:
        if self._drain_until is None:
            self._drain_until = self._loop.time() + self._spec.drain_seconds
            self._channel.drain()

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            self._transport.send_signal(number)

    def _end_group(self) -> None:
        """Where processes cannot be found by their mark, at least those of its group end with it."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def _describe(self) -> str:
        code = self._transport.get_returncode()
        assert code is not None
        if code < 0:
            return "\n".join([f"was killed by {signal.Signals(-code).name}", *self._stack()])
        said = list(self._output.last_words)[-STACK_LINES:]
        return "\n".join([f"exited with code {code} before its work was done", *said])

    def _stack(self) -> list[str]:
        """Where the process stood, if it has written that down as it died."""
        said = list(self._output.last_words)
        starts = [place for place, line in enumerate(said) if line.startswith("Fatal Python error")]
        return [line for line in said[starts[-1] :] if line][:STACK_LINES] if starts else []


@asynccontextmanager
async def open_runner(
    spec: WorkerSpec,
    say: LineHandler,
    on_reading: Callable[[Reading], None],
    *,
    watch: LoopWatch | None = None,
    owns_process: bool = False,
) -> AsyncIterator[Runner]:
    """The worker that `spec` describes, on a store of its own; it tells what it has used, also at its end."""
    meter = Meter()
    async with (
        await open_when_there(spec.store_url, lambda what: say(f"⏳ Worker-{spec.index} {what}")) as store,
        open_episodes(spec.episodes, meter, worker=spec.index, journal=store) as episodes,
    ):
        readings = asyncio.create_task(_tell_readings(meter, on_reading, SystemClock()), name="tell readings")
        try:
            yield new_runner(store, spec, episodes, say, watch=watch, owns_process=owns_process)
        finally:
            readings.cancel()
            on_reading(meter.reading)


async def _tell_readings(meter: Meter, on_reading: Callable[[Reading], None], clock: Clock) -> None:
    told = meter.reading
    while True:
        await sleep(clock, READING_SECONDS)
        if meter.reading is not told:
            told = meter.reading
            on_reading(told)


def new_runner(
    store: Store,
    spec: WorkerSpec,
    episodes: EpisodeFactory,
    on_line: LineHandler,
    *,
    watch: LoopWatch | None = None,
    owns_process: bool = False,
) -> Runner:
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
        watch=watch,
        owns_process=owns_process,
    )


def _claim_line(index: int, claimed: AttemptedRollout) -> str:
    text = str(claimed.input)
    if len(text) > INPUT_CHARACTERS:
        text = text[:INPUT_CHARACTERS] + "…"
    return f"▶ Worker-{index} processing rollout: {claimed.rollout_id} | Input: {text}"
