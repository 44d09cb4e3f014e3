"""Keeps the right number of workers alive: starts them, replaces those that die, follows the queue, drains.

Invariants:
- A worker that dies is noticed at once; its leases are taken away at once, so that its rollouts are retried without
  waiting for them to expire; it is replaced after a pause that grows while deaths come quickly.
- A death counts as a failure only for a rollout that was alone in its worker. Several are set aside and then run alone,
  so that the one that kills its workers fails, and no other. One that is known to have blocked its worker's event loop
  fails at once, and the others go back. All that runs in a worker which does not end in time when it drains goes back.
- A worker that cannot be started as configured is not tried again: `run` raises.
- A worker that met what every other worker would meet too (`stopped_by` says what) lets all of them drain.
- When `run` returns or raises, no worker is left.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count

from outrider.core.attempt import Failure
from outrider.core.bounds import Count, PositiveCount, check_bounds
from outrider.core.clock import Clock, SystemClock, sleep
from outrider.core.crash_points import reached
from outrider.core.errors import (
    Boundary,
    InvalidInput,
    LeaseLost,
    StoreDamaged,
    StoreError,
    StoreUnavailable,
    WorkersFailed,
)
from outrider.core.rollout import Rollout
from outrider.core.status import LIVE, QUEUED, AttemptStatus, RolloutStatus
from outrider.core.tasks import uninterrupted
from outrider.runner.channel import WorkerExit
from outrider.runner.loop_watch import Blockage
from outrider.runner.meter import Reading
from outrider.runner.worker import Guard, LineHandler, ProcessWorker, RunningWorker, TaskWorker, WorkerSpec
from outrider.store import Revoked, Statistics, Store
from outrider.store.outage import RepeatedCall

_log = logging.getLogger(__name__)

Launcher = Callable[[WorkerSpec], Awaitable[RunningWorker]]

SCALE_SECONDS = 1.0
HEALTHY_SECONDS = 5.0
"""A worker that lived this long was not broken from the start."""

MAX_QUICK_DEATHS = 5
"""How often a worker may die in a row right after its start, before it has begun a rollout."""

MAX_VAIN_DEATHS = 100
"""How often workers may die in a row without a rollout that succeeds: it is not single tasks that kill them."""

FIRST_PAUSE_SECONDS = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How many workers: as many as there are open rollouts, within bounds. A fixed number has equal bounds."""

    minimum: Count
    maximum: PositiveCount

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.minimum > self.maximum:
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
    """Workers as processes of their own, with one guard over them."""
    guard = Guard()

    async def launch(spec: WorkerSpec) -> RunningWorker:
        return await ProcessWorker.start(spec, on_line, guard)

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
        self._n_vain_deaths = 0
        self._n_succeeded = -1
        self.n_deaths = 0
        self.worker_ids: set[str] = set()
        """Of all workers that there were."""
        self.stopped_by: str | None = None

    @property
    def workers(self) -> tuple[RunningWorker, ...]:
        return tuple(self._workers.values())

    @property
    def grace_seconds(self) -> float:
        return self._spec.config.grace_seconds

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
        looking = RepeatedCall(self._store.outage)
        while not self._draining.is_set():
            try:
                with looking:
                    wanted = self._scale.wanted(await self._store.statistics())
            except StoreUnavailable:
                pass  # the outage says so
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
                began = self._clock.monotonic()
                n_revoked = await self._live(index)
                if n_revoked is None:
                    return
                is_quick = n_revoked == 0 and self._clock.monotonic() - began <= HEALTHY_SECONDS
                quick_deaths = quick_deaths + 1 if is_quick else 0
                if quick_deaths == MAX_QUICK_DEATHS:
                    raise WorkersFailed(
                        f"Worker-{index} died {quick_deaths} times right after its start; see above why"
                    )
                await self._note_death()
                await sleep(self._clock, FIRST_PAUSE_SECONDS * 2**quick_deaths if quick_deaths > 1 else 0.0)
        finally:
            self._slots.pop(index, None)
            self._leaving.discard(index)

    async def _note_death(self) -> None:
        """`WorkersFailed` if it is one of very many, between which no rollout has succeeded."""
        self.n_deaths += 1
        try:
            n_succeeded = (await self._store.statistics()).rollouts[RolloutStatus.SUCCEEDED]
        except StoreError as exc:
            _log.warning("cannot look whether rollouts succeed: %s", exc)
            return
        self._n_vain_deaths = self._n_vain_deaths + 1 if n_succeeded == self._n_succeeded else 1
        self._n_succeeded = n_succeeded
        if self._n_vain_deaths == MAX_VAIN_DEATHS:
            raise WorkersFailed(f"workers died {MAX_VAIN_DEATHS} times, and no rollout succeeded; see above why")

    async def _live(self, index: int) -> int | None:
        """One worker's life; if it died and must be replaced, how many of its rollouts went back."""
        self._on_line(f"🚀 Starting Worker-{index}...")
        worker = await self._launcher(replace(self._spec, index=index))
        self._workers[index] = worker
        self.worker_ids.add(worker.worker_id)
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
            self._stop_by(ended.description)
            return None
        if not ended.failed:
            return None
        held = await self._held_by(worker.worker_id)
        try:
            n_revoked = await self._take_leases(worker.worker_id, ended, held)
        except StoreDamaged as exc:
            self._stop_by(str(exc))
            return None
        if self._killed or (n_revoked == 0 and index in self._leaving):
            return None
        gone = await self._whither(held) or f"{n_revoked} of its rollouts go back"
        self._on_line(f"💀 Worker-{index} ({worker.worker_id}) {ended.description}; {gone}")
        return n_revoked

    def _stop_by(self, reason: str) -> None:
        """Let all workers drain, since every other one would meet this too."""
        self.stopped_by = self.stopped_by or reason
        self.drain()

    async def _held_by(self, worker_id: str) -> tuple[Rollout, ...]:
        """The rollouts that were in a worker, as far as the store can be asked."""
        try:
            live = await self._store.query_rollouts(status_in=LIVE)
        except StoreError as exc:
            _log.warning("cannot look what %s held: %s", worker_id, exc)
            return ()
        return tuple(one for one in live if one.worker_id == worker_id)

    async def _whither(self, held: tuple[Rollout, ...]) -> str:
        """What became of the rollouts of a dead worker, if some were set aside."""
        try:
            now = await self._store.query_rollouts(rollout_ids=[one.rollout_id for one in held]) if held else ()
        except StoreError:
            return ""
        aside = sum(one.is_set_aside for one in now)
        return f"{aside} of its {len(held)} rollouts set aside, each to run alone" if aside else ""

    async def _take_leases(self, worker_id: str, ended: WorkerExit, held: tuple[Rollout, ...]) -> int:
        try:
            if self._killed or ended.late:
                return await self._revoke(worker_id, ended, Revoked.HANDED_BACK, held)
            if ended.blockage is not None and await self._fail_blocking(ended.blockage):
                return 1 + await self._revoke(worker_id, ended, Revoked.HANDED_BACK, held)
            return await self._revoke(worker_id, ended, Revoked.ISOLATED, held)
        except StoreDamaged:
            raise
        except StoreError as exc:
            _log.warning("cannot take the leases of %s away, they will expire: %s", worker_id, exc)
            return 0

    async def _revoke(self, worker_id: str, ended: WorkerExit, how: Revoked, held: tuple[Rollout, ...]) -> int:
        reason = f"worker {worker_id} {ended.description}"
        if how is Revoked.ISOLATED and (n_deaths := await self._n_deaths_alone(held)) > 1:
            reason = f"killed its worker {n_deaths} times; the last one {ended.description}"
        revoked = await self._store.revoke_leases(worker_id, reason=reason, how=how)
        reached("supervisor.revoked")
        return len(revoked)

    async def _fail_blocking(self, blockage: Blockage) -> bool:
        """Fail the attempt that has blocked its worker; whether it is known which one that was."""
        if blockage.rollout_id is None or blockage.attempt_id is None:
            return False
        error = Failure(
            boundary=Boundary.AGENT,
            kind="LoopBlocked",
            message=blockage.message,
            stage="agent",
            traceback=blockage.stack,
        )
        with suppress(LeaseLost):  # it has expired meanwhile
            await self._store.update_attempt(
                blockage.rollout_id, blockage.attempt_id, status=AttemptStatus.FAILED, error=error
            )
            reached("supervisor.blocking_failed")
        return True

    async def _n_deaths_alone(self, held: tuple[Rollout, ...]) -> int:
        """How often workers have died in which this rollout ran alone; 0 if the last one held more or none."""
        if len(held) != 1:
            return 0
        attempts = await self._store.query_attempts(held[0].rollout_id)
        lost = [one.failure for one in attempts if one.status is AttemptStatus.UNRESPONSIVE]
        return 1 + sum(failure is not None and failure.kind == "WorkerDied" for failure in lost)
