"""Keeps the right number of workers alive: starts them, replaces those that die, follows the queue, drains.

Invariants:
- A worker that dies is noticed at once; its leases are taken away at once, so that its rollouts are retried without
  waiting for them to expire; it is replaced after a pause that grows while deaths come quickly.
- A worker that cannot be started as configured is not tried again: `run` raises.
- A worker that met what every other worker would meet too (`stopped_by` says what) lets all of them drain.
- When `run` returns or raises, no worker is left.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from itertools import count

from outrider.core.clock import Clock, SystemClock, sleep
from outrider.core.errors import InvalidInput, StoreError, WorkersFailed
from outrider.core.status import LIVE, QUEUED
from outrider.core.tasks import uninterrupted
from outrider.runner.meter import Reading
from outrider.runner.worker import LineHandler, ProcessWorker, RunningWorker, TaskWorker, WorkerSpec
from outrider.store import Statistics, Store

_log = logging.getLogger(__name__)

Launcher = Callable[[WorkerSpec], Awaitable[RunningWorker]]

SCALE_SECONDS = 1.0
HEALTHY_SECONDS = 5.0
"""A worker that lived this long was not broken from the start."""

MAX_QUICK_DEATHS = 5
FIRST_PAUSE_SECONDS = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How many workers: as many as there are open rollouts, within bounds. A fixed number has equal bounds."""

    minimum: int
    maximum: int

    def __post_init__(self) -> None:
        if not 0 <= self.minimum <= self.maximum or self.maximum == 0:
            raise InvalidInput(
                f"cannot keep between {self.minimum} and {self.maximum} workers; give 0 ≤ min ≤ max, max ≥ 1"
            )

    @property
    def is_fixed(self) -> bool:
        return self.minimum == self.maximum

    def wanted(self, statistics: Statistics) -> int:
        n_open = sum(statistics.rollouts[status] for status in QUEUED | LIVE)
        return min(max(n_open, self.minimum), self.maximum)


def task_launcher(store: Store, on_line: LineHandler) -> Launcher:
    """Workers as tasks of this process."""

    async def launch(spec: WorkerSpec) -> RunningWorker:
        return TaskWorker(store, spec, on_line)

    return launch


def process_launcher(on_line: LineHandler) -> Launcher:
    """Workers as processes of their own."""

    async def launch(spec: WorkerSpec) -> RunningWorker:
        return await ProcessWorker.start(spec, on_line)

    return launch


class Supervisor:
    """Runs workers of one kind on one store."""

    def __init__(
        self,
        store: Store,
        spec: WorkerSpec,
        *,
        scale: Scale,
        launcher: Launcher,
        on_line: LineHandler = lambda _: None,
        clock: Clock | None = None,
    ) -> None:
        self._store = store
        self._spec = spec
        self._scale = scale
        self._launcher = launcher
        self._on_line = on_line
        self._clock = clock or SystemClock()
        self._workers: dict[int, RunningWorker] = {}
        self._slots: dict[int, asyncio.Task[None]] = {}
        self._leaving: set[int] = set()
        self._draining = asyncio.Event()
        self._killed = False
        self._failure: BaseException | None = None
        self._used_by_gone = Reading()
        self.n_deaths = 0
        self.stopped_by: str | None = None

    @property
    def workers(self) -> tuple[RunningWorker, ...]:
        return tuple(self._workers.values())

    @property
    def reading(self) -> Reading:
        """What the model calls of all workers have used so far, those that are gone included."""
        return sum((worker.reading for worker in self._workers.values()), self._used_by_gone)

    def drain(self) -> None:
        """Let every worker finish what it runs, then end."""
        self._draining.set()
        self._let_go(self._slots)

    def kill(self) -> None:
        """End every worker at once. What they ran is retried elsewhere."""
        self._killed = True
        self._draining.set()
        for worker in self._workers.values():
            worker.kill()

    async def run(self) -> None:
        """Keep workers until all have ended by themselves or `drain` or `kill` is called."""
        scaling = asyncio.create_task(self._follow_queue(), name="follow the queue")
        scaling.add_done_callback(self._note_failure)
        try:
            if not self._scale.is_fixed:
                await self._draining.wait()
            await self._until_gone(scaling)
        finally:
            self.kill()
            scaling.cancel()
            await uninterrupted(self._until_gone(scaling))
        if self._failure is not None:
            raise self._failure

    async def _until_gone(self, scaling: "asyncio.Task[None]") -> None:
        if self._scale.is_fixed or self._draining.is_set():
            await asyncio.wait([scaling])
        while self._slots:
            await asyncio.wait(self._slots.values())

    def _note_failure(self, task: "asyncio.Task[None]") -> None:
        """The first thing that goes wrong ends the run."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failure = self._failure or error
            self.kill()

    async def _follow_queue(self) -> None:
        if self._scale.is_fixed:
            self._grow_to(self._scale.maximum)
            return
        while not self._draining.is_set():
            try:
                wanted = self._scale.wanted(await self._store.statistics())
            except StoreError as exc:
                _log.warning("cannot look at the queue, will try again: %s", exc)
            else:
                staying = [index for index in self._slots if index not in self._leaving]
                self._grow_to(wanted)
                self._let_go(sorted(staying)[wanted:])
            await sleep(self._clock, SCALE_SECONDS)

    def _grow_to(self, wanted: int) -> None:
        for index in count():
            if len(self._slots) - len(self._leaving) >= wanted:
                return
            if index not in self._slots:
                task = asyncio.create_task(self._keep(index), name=f"keep worker {index}")
                task.add_done_callback(self._note_failure)
                self._slots[index] = task

    def _let_go(self, indices: Iterable[int]) -> None:
        for index in indices:
            self._leaving.add(index)
            if index in self._workers:
                self._workers[index].drain()

    async def _keep(self, index: int) -> None:
        """Keep one worker alive until it ends by itself or is let go."""
        quick_deaths = 0
        try:
            while index not in self._leaving and not self._draining.is_set():
                began = self._clock.time()
                if not await self._live(index):
                    return
                quick_deaths = 0 if self._clock.time() - began > HEALTHY_SECONDS else quick_deaths + 1
                if quick_deaths == MAX_QUICK_DEATHS:
                    raise WorkersFailed(
                        f"Worker-{index} died {quick_deaths} times right after its start; see above why"
                    )
                await sleep(self._clock, FIRST_PAUSE_SECONDS * 2**quick_deaths if quick_deaths > 1 else 0.0)
        finally:
            self._slots.pop(index, None)
            self._leaving.discard(index)

    async def _live(self, index: int) -> bool:
        """One worker's life; whether it died and must be replaced."""
        self._on_line(f"🚀 Starting Worker-{index}...")
        worker = await self._launcher(replace(self._spec, index=index))
        self._workers[index] = worker
        if self._killed:
            worker.kill()
        elif index in self._leaving:
            worker.drain()
        try:
            ended = await worker.wait()
        finally:
            worker.kill()
            del self._workers[index]
            self._used_by_gone += worker.reading
        if ended.invalid:
            raise InvalidInput(ended.description)
        if ended.stops_run:
            self.stopped_by = self.stopped_by or ended.description
            self.drain()
            return False
        if not ended.failed:
            return False
        n_revoked = await self._take_leases(worker.worker_id, ended.description)
        if self._killed or index in self._leaving:
            return False
        self.n_deaths += 1
        self._on_line(
            f"💀 Worker-{index} ({worker.worker_id}) {ended.description}; {n_revoked} of its rollouts go back"
        )
        return True

    async def _take_leases(self, worker_id: str, description: str) -> int:
        try:
            return len(await self._store.revoke_leases(worker_id, reason=f"worker {worker_id} {description}"))
        except StoreError as exc:
            _log.warning("cannot take the leases of %s away, they will expire: %s", worker_id, exc)
            return 0
