"""A worker: claims rollouts, runs many at once, keeps their leases alive, and drains when told to stop.

Invariants:
- Every attempt it runs is under a lease it renews; one that is refused is cancelled at once.
- While the store cannot be reached, an attempt goes on only as long as its lease can still be valid.
- `stop()` claims nothing more; running attempts finish, or are handed back after `grace_seconds`.
- An attempt that waits for leave to begin when `stop()` is called is handed back at once: it may never get it. So is
  one that has waited for `leave_seconds`, or so long for the end of a pause of model calls.
- A failure that stops the run (`AttemptError.stops_run`) stops the worker in the same way; `iter` then raises it.
- A rollout that was set aside, since it may have killed a worker, runs alone: it is claimed while nothing else runs,
  and nothing else is claimed until it has ended.
"""

import asyncio
import logging
import os
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, fields, replace
from typing import Any

from outrider.agent import AgentFunction, EpisodeFactory
from outrider.agent.context import context_of
from outrider.agent.function import episodes_of
from outrider.core.attempt import LostLease
from outrider.core.bounds import PositiveCount, PositiveSeconds, Seconds, check_bounds
from outrider.core.causes import FailFast
from outrider.core.clock import Clock, SystemClock, sleep
from outrider.core.crash_points import reached
from outrider.core.errors import AgentError, AttemptError, InvalidInput, LeaseLost, StoreUnavailable
from outrider.core.rollout import AttemptedRollout, Rollout, RolloutConfig
from outrider.core.status import AttemptStatus, Mode
from outrider.runner.admission import Admission
from outrider.runner.attempt import AttemptRun, Stage, StageLimits
from outrider.runner.claims import Claims
from outrider.runner.env_manager import EnvManager
from outrider.runner.loop_watch import LoopWatch
from outrider.store import Store
from outrider.store.outage import RepeatedCall

_log = logging.getLogger(__name__)

LEASE_SECONDS = RolloutConfig().unresponsive_seconds
HEARTBEATS_PER_LEASE = 3
PROGRESS_SECONDS = 1.0
UNAVAILABLE_SECONDS = 1.0
"""The pause before asking a store again that could not be reached."""

HOPELESS_SECONDS = 1.0
"""The pause before a claim while nothing can succeed, so that who watches over all workers can stop them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerConfig:
    """How a worker works. `poll_interval` bounds how long a claim waits before it looks again by itself.

    `max_block_seconds` is how long code may block the event loop: meanwhile no lease is renewed and no cancel is heard.
    With `fail_fast` a failure that every attempt would meet, such as a wrong key, stops the worker.
    """

    max_env_num_per_worker: PositiveCount = 1
    max_rollouts: PositiveCount | None = None
    poll_interval: PositiveSeconds = 5.0
    heartbeat_interval: PositiveSeconds = 10.0
    grace_seconds: Seconds = 30.0
    max_block_seconds: PositiveSeconds = 15.0
    fail_fast: bool = True
    tags: tuple[str, ...] | None = None
    mode: Mode | None = None
    limits: StageLimits = field(default_factory=StageLimits)

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.heartbeat_interval >= LEASE_SECONDS:
            raise InvalidInput(
                f"heartbeat_interval is {self.heartbeat_interval:g} s, but a lease ends after {LEASE_SECONDS:g} s of "
                f"silence; give less, {LEASE_SECONDS / HEARTBEATS_PER_LEASE:g} s or so"
            )


@dataclass(slots=True)
class _Running:
    """An attempt under way, until when its lease is surely valid, and whether it was told to stop.

    `awaited` is done when the task has ended or was told to stop. `lost`: it has no lease any more; `cut_off`: as far
    as this worker can tell, since it cannot reach the store.
    """

    attempt: AttemptRun
    task: asyncio.Task[AttemptStatus | None]
    valid_until: float
    awaited: asyncio.Future[None]
    told_to_stop: bool = False
    lost: bool = False
    cut_off: bool = False

    @property
    def lease_seconds(self) -> float:
        return self.attempt.claimed.config.unresponsive_seconds

    def stop(self, *, lost: bool) -> None:
        self.lost = self.lost or lost
        self.told_to_stop = True
        self.task.cancel()
        self.wake()

    def wake(self, _ended: object = None) -> None:
        if not self.awaited.done():
            self.awaited.set_result(None)


class Runner:
    """One worker on one store. Give it an agent, a function or `module:function`, or a factory of episodes.

    `watch` is the watch on the event loop; without one it is that of all workers there. One that
    `owns_process` is cancelled by nobody but code that it runs: it then leaves its leases to its supervisor.

    Single settings may be given by name, as in `Runner(store, agent, max_rollouts=5, poll_interval=2.0)`.
    """

    def __init__(
        self,
        store: Store,
        agent: AgentFunction | str | None = None,
        *,
        episodes: EpisodeFactory | None = None,
        worker_id: str | int | None = None,
        config: RunnerConfig | None = None,
        clock: Clock | None = None,
        on_claim: Callable[[AttemptedRollout], None] = lambda _: None,
        watch: LoopWatch | None = None,
        owns_process: bool = False,
        **changes: Any,
    ) -> None:
        if (agent is None) == (episodes is None):
            raise InvalidInput("give a Runner either an agent or a factory of episodes")
        self.worker_id = worker_id_of(0) if worker_id is None else str(worker_id)
        self.n_run = 0
        self._store = store
        self._episodes = episodes or episodes_of(agent or "")
        self._config = _changed(config or RunnerConfig(), changes)
        self._clock = clock or SystemClock()
        self._on_claim = on_claim
        self._claiming, self._renewing, self._reporting = (RepeatedCall(store.outage) for _ in range(3))
        self._admission = Admission.to(store, self._clock)
        self._running: dict[str, _Running] = {}
        self._fail_fast = FailFast()
        self._interval = self._config.heartbeat_interval
        self._beat: asyncio.Future[tuple[LostLease, ...]] | None = None
        self._stopping = asyncio.Event()
        self._grace_is_over = False
        self._stopped_by: AttemptError | None = None
        self._abandoned: set[asyncio.Task[AttemptStatus | None]] = set()
        self._watch = watch
        self._owns_process = owns_process
        self._isolated: asyncio.Future[None] | None = None
        self._looks_for_isolated = owns_process  # it may replace one that died

    def get_worker_id(self) -> str:
        return self.worker_id

    def stop(self) -> None:
        """Claim nothing more and end when the running attempts have ended or the grace has passed."""
        self._stopping.set()

    async def iter(self, **changes: Any) -> int:
        """Claim and run until `max_rollouts` or `stop()`; how many attempts were run. Takes settings by name too."""
        self._config = _changed(self._config, changes)
        before = self.n_run
        claims = Claims(self._claim, self._config.max_rollouts)
        async with self._upkeep(), asyncio.TaskGroup() as slots:
            for _ in range(self._config.max_env_num_per_worker):
                slots.create_task(EnvManager(claims.next, self._run).run_rollout_loop())
            await self._claim_until_stopped(claims)
        self._raise_what_stopped()
        return self.n_run - before

    async def step(self, task: Any, *, config: RolloutConfig | None = None, **request: Any) -> Rollout:
        """Run one rollout of `task` at once, past the queue. A failure is in the returned rollout, not raised."""
        claimed = await self._store.start_rollout(
            task, worker_id=self.worker_id, config=config or RolloutConfig(max_attempts=1), **request
        )
        async with self._upkeep():
            await self._run(claimed)
        self._raise_what_stopped()
        return await self._store.get_rollout_by_id(claimed.rollout_id) or claimed

    def _raise_what_stopped(self) -> None:
        if self._stopped_by is not None:
            raise self._stopped_by

    @asynccontextmanager
    async def _upkeep(self) -> AsyncIterator[None]:
        """Keep leases alive, events flowing and `stop()` heard for as long as the block lasts."""
        watch = self._watch or LoopWatch.shared(self._config.max_block_seconds)
        with watch.of(self._identify):
            async with asyncio.TaskGroup() as group:
                duties = (self._keep_leases, self._report_progress, self._hand_back_when_stopped, self._admission.run)
                tasks = [group.create_task(duty()) for duty in duties]
                try:
                    yield
                finally:
                    for task in tasks:
                        task.cancel()

    async def _claim_until_stopped(self, claims: Claims) -> None:
        claiming = asyncio.ensure_future(claims.run())
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait([claiming, stopping], return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            claiming.cancel()
            await asyncio.wait([claiming])
        if not claiming.cancelled():
            claiming.result()

    async def _claim(self, limit: int) -> Sequence[AttemptedRollout]:
        if self._isolated is not None:
            await asyncio.wait([self._isolated])
        if self._config.fail_fast and self._fail_fast.reason is not None:
            await sleep(self._clock, HOPELESS_SECONDS)
        try:
            with self._claiming:
                if self._looks_for_isolated and not self._running:
                    if isolated := await self._dequeue(1, isolated=True):
                        self._isolated = asyncio.get_running_loop().create_future()
                        return isolated
                    self._looks_for_isolated = False
                claimed = await self._dequeue(limit, wait=self._config.poll_interval)
        except StoreUnavailable:
            await sleep(self._clock, UNAVAILABLE_SECONDS)
            return ()
        reached("runner.claimed")
        # A process that replaces a dead one begins with what that one ran; others look when they have nothing to do.
        self._looks_for_isolated = not claimed
        return claimed

    async def _dequeue(self, limit: int, *, wait: float = 0.0, isolated: bool = False) -> Sequence[AttemptedRollout]:
        return await self._store.dequeue_many_rollouts(
            limit,
            worker_id=self.worker_id,
            wait=wait,
            tags=self._config.tags,
            mode=self._config.mode,
            isolated=isolated,
        )

    async def _run(self, claimed: AttemptedRollout) -> None:
        """Run one attempt to its end, whatever that is."""
        self._on_claim(claimed)
        self.n_run += 1
        attempt = AttemptRun(
            claimed,
            self._store,
            self._episodes,
            admission=self._admission,
            clock=self._clock,
            limits=self._config.limits,
            fail_fast=self._config.fail_fast,
        )
        lease = claimed.config.unresponsive_seconds
        task = asyncio.create_task(attempt.run(), name=f"attempt {claimed.attempt.attempt_id}")
        valid_until = self._clock.monotonic() + lease
        running = _Running(attempt, task, valid_until, asyncio.get_running_loop().create_future())
        self._running[claimed.attempt.attempt_id] = running
        task.add_done_callback(running.wake)
        if self._grace_is_over:
            running.stop(lost=False)
        self._beat_at_least_every(lease / HEARTBEATS_PER_LEASE)
        try:
            await running.awaited
            await self._settle(running)
            if attempt.ending is not AttemptStatus.CANCELLED:
                self._fail_fast.add(attempt.failure)
        except AttemptError as exc:
            self._stopped_by = self._stopped_by or exc
            self.stop()
        except asyncio.CancelledError:
            if not self._owns_process:
                running.stop(lost=False)
                await self._settle(running)
            raise
        finally:
            self._running.pop(claimed.attempt.attempt_id, None)
            self._end_isolation()

    def _end_isolation(self) -> None:
        """The attempt that has ended was the only one, if it was isolated; there may be more of them."""
        if self._isolated is not None:
            self._isolated.set_result(None)
            self._isolated = None
            self._looks_for_isolated = True

    async def _settle(self, running: _Running) -> None:
        """See a task that has ended, or was told to, to its end; hand back a rollout that it did not finish."""
        task, limits = running.task, self._config.limits
        if not task.done():
            await asyncio.wait([task], timeout=limits.cancel_seconds)
        if not task.done() and running.attempt.stage is Stage.CLOSE:
            await asyncio.wait([task], timeout=limits.close_seconds)
        if not task.done():
            _log.error("rollout %s: its agent does not stop; left behind", running.attempt.claimed.rollout_id)
            running.attempt.abandon()
            self._abandoned.add(task)
            task.add_done_callback(self._abandoned.discard)
        elif not task.cancelled():
            task.result()
            return
        elif not running.told_to_stop:
            stage = running.attempt.stage
            await running.attempt.fail(AgentError("the agent cancelled its own task", stage=stage))
            return
        if running.lost:
            await running.attempt.leave_account(is_cut_off=running.cut_off)
        else:
            await running.attempt.hand_back()

    async def _hand_back_when_stopped(self) -> None:
        await self._stopping.wait()
        until = self._clock.monotonic() + self._config.grace_seconds
        while (left := until - self._clock.monotonic()) > 0:
            for running in self._running.values():
                if running.attempt.is_held:
                    running.stop(lost=False)
            await sleep(self._clock, min(left, PROGRESS_SECONDS))
        self._grace_is_over = True
        for running in self._running.values():
            running.stop(lost=False)

    def _identify(self, task: "asyncio.Task[Any] | None") -> AttemptedRollout | None:
        """Which rollout a task works for; in a process of its own, all that runs works for the only one there is."""
        context = None if task is None else context_of(task)
        for running in self._running.values():
            if running.task is task or (context is not None and running.attempt.context is context):
                return running.attempt.claimed
        if self._owns_process and len(self._running) == 1:
            return next(iter(self._running.values())).attempt.claimed
        return None

    def _beat_at_least_every(self, seconds: float) -> None:
        if seconds < self._interval:
            self._interval = seconds
            if self._beat is not None:
                self._beat.cancel()

    async def _keep_leases(self) -> None:
        """Renew all leases in one call, which also watches for those that are lost."""
        while True:
            began = self._clock.monotonic()
            self._beat = asyncio.ensure_future(self._heartbeat())
            try:
                await asyncio.wait([self._beat])
            finally:
                self._beat.cancel()
            if self._beat.cancelled():
                continue
            try:
                with self._renewing:
                    lost = self._beat.result()
            except (StoreUnavailable, TimeoutError):
                self._lose_expired()
                await sleep(self._clock, min(UNAVAILABLE_SECONDS, self._interval))
                continue
            for running in self._running.values():
                running.valid_until = max(running.valid_until, began + running.lease_seconds)
            self._lose(lost)

    async def _heartbeat(self) -> tuple[LostLease, ...]:
        async with asyncio.timeout(self._interval * HEARTBEATS_PER_LEASE):
            return await self._store.heartbeat(self.worker_id, self._running.keys(), wait=self._interval)

    def _lose(self, lost: tuple[LostLease, ...]) -> None:
        for lease in lost:
            running = self._running.pop(lease.attempt_id, None)
            if running is None or running.attempt.ending == lease.reason:
                continue  # it is its own end, just written, that took the lease
            if not running.task.done():
                _log.log(
                    logging.INFO if lease.reason == AttemptStatus.CANCELLED else logging.WARNING,
                    "rollout %s: the lease is lost (%s); its attempt is stopped",
                    running.attempt.claimed.rollout_id,
                    lease.reason,
                )
                running.stop(lost=True)

    def _lose_expired(self) -> None:
        now = self._clock.monotonic()
        expired = {name: running for name, running in self._running.items() if running.valid_until <= now}
        for running in expired.values():
            running.cut_off = True
        self._lose(tuple(LostLease(attempt_id=name, reason="the store cannot be reached") for name in expired))

    async def _report_progress(self) -> None:
        """Now and then, for all attempts at once: most end before they have anything to tell."""
        while True:
            await sleep(self._clock, PROGRESS_SECONDS)
            self._hand_back_held()
            async with asyncio.TaskGroup() as group:
                for running in tuple(self._running.values()):
                    if running.attempt.has_news:
                        group.create_task(self._report_progress_of(running))

    def _hand_back_held(self) -> None:
        """Those that have waited long for their trainer go back: it may be dead."""
        for running in self._running.values():
            if running.attempt.is_held_too_long and not running.told_to_stop:
                _log.warning(
                    "rollout %s goes back: for %g s no trainer has let it begin, or ended the pause of model calls",
                    running.attempt.claimed.rollout_id,
                    self._config.limits.leave_seconds,
                )
                running.stop(lost=False)

    async def _report_progress_of(self, running: _Running) -> None:
        try:
            with self._reporting:
                await running.attempt.report_progress()
        except LeaseLost as exc:
            self._lose((LostLease(attempt_id=exc.attempt_id, reason=exc.reason),))
        except StoreUnavailable:
            pass  # the next report takes it along


def _changed(config: RunnerConfig, changes: Mapping[str, Any]) -> RunnerConfig:
    unknown = sorted(set(changes) - {setting.name for setting in fields(config)})
    if unknown:
        raise InvalidInput(
            f"a Runner has no setting {unknown[0]!r}; there are {', '.join(f.name for f in fields(config))}"
        )
    return replace(config, **changes)


def worker_id_of(index: int, pid: int | None = None) -> str:
    """An id that no other worker has: its number, machine and process (this one unless `pid` names another)."""
    return f"{index}@{socket.gethostname()}:{pid or os.getpid()}"
