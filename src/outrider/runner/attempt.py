"""One attempt: five stages, one boundary and one deadline each, and one end.

Invariants:
- A failure is attributed to the boundary of the stage it came from, and is recorded once, as data. So is whatever else
  an agent raises: `SystemExit`, `KeyboardInterrupt`, a cancellation that nobody asked for.
- A process that an agent forks off ends where it would return into this code.
- The attempt ends with one fenced write, which takes its last events along.
- `close` runs whatever happened before it, shielded from cancellation and bounded.
- An attempt of a rollout in a ledger makes no model call before it has leave, and before the policy has reached the
  version it has leave for. While it waits for that no limit runs but `leave_seconds`, after which its worker hands it
  back. It is set up before it asks, but for one that takes a machine, which asks before: nobody holds a machine who
  waits for leave, so whoever waits for a machine gets one.
- While a trainer has paused model calls, a call that waits has no limit but `leave_seconds` either, with the same end.
- An attempt that has lost its lease writes nothing more, but for its account: what it took is counted in any case.
- A failure that every other attempt would meet too (`stops_run`) is not recorded as this rollout's: it goes back to the
  queue, and the failure is raised to the worker, which stops. Without `fail_fast` only a spent budget does that.
"""

import asyncio
import logging
import math
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain, repeat
from typing import TypeVar

from msgspec.structs import replace

from outrider.agent import Context, Episode, EpisodeFactory, Result
from outrider.agent.limits import TurnLimits
from outrider.agent.protocol import has_stage, takes_machine
from outrider.agent.recorder import Recorder
from outrider.core.account import Account
from outrider.core.attempt import Failure
from outrider.core.bounds import SecondsLimit, SecondsOrNoLimit, check_bounds
from outrider.core.clock import Clock, sleep
from outrider.core.crash_points import reached
from outrider.core.errors import (
    AgentError,
    AttemptError,
    EnvError,
    LeaseLost,
    LimitError,
    MachineError,
    ScoreError,
    StoreError,
    StoreUnavailable,
    boundary,
)
from outrider.core.event import EventKind
from outrider.core.forks import exit_if_forked
from outrider.core.ledger import LEDGER_KEY, PIN_KEY
from outrider.core.machine import WANTED
from outrider.core.rollout import AttemptedRollout
from outrider.core.status import AttemptStatus
from outrider.core.tasks import uninterrupted
from outrider.runner.admission import Admission
from outrider.runner.published import AttemptPolicies
from outrider.store import Store
from outrider.store.outage import RepeatedCall

R = TypeVar("R")

_log = logging.getLogger(__name__)

FINISH_RETRY_SECONDS = (0.2, 0.5, 1.0, 2.0, 4.0, 8.0)
"""Pauses before writing an attempt's end again while the store cannot be written. A running attempt goes on with the
last of them until its lease is lost: what it has done would be done again."""

ACCOUNT_SECONDS = 20.0
"""How long it may take to tell what an attempt took whose lease is lost."""


class Stage(StrEnum):
    """The stages of an attempt, in order."""

    BOOT = "boot"
    SETUP = "setup"
    ACT = "act"
    SCORE = "score"
    CLOSE = "close"


BOUNDARIES: Mapping[Stage, type[AttemptError]] = {
    Stage.BOOT: MachineError,
    Stage.SETUP: EnvError,
    Stage.ACT: AgentError,
    Stage.SCORE: ScoreError,
    Stage.CLOSE: EnvError,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StageLimits:
    """How long each stage may take. `act` is bounded by the rollout's own `timeout_seconds`.

    Within it, `turn_seconds` bounds each model call and each step of the environment, `trajectory_seconds` their sum.
    `cancel_seconds` is how long an attempt that was told to stop may take to begin its close. `leave_seconds` is how
    long one may wait for leave to begin, or in a pause of the trainer for a model call: then it goes back to the queue,
    for its trainer may be gone for good.
    """

    boot_seconds: SecondsOrNoLimit = 600.0
    setup_seconds: SecondsOrNoLimit = 300.0
    act_seconds: SecondsOrNoLimit = math.inf
    score_seconds: SecondsOrNoLimit = 300.0
    close_seconds: SecondsOrNoLimit = 30.0
    cancel_seconds: SecondsOrNoLimit = 5.0
    leave_seconds: SecondsOrNoLimit = 3600.0
    turn_seconds: SecondsLimit = math.inf
    trajectory_seconds: SecondsLimit = math.inf

    def __post_init__(self) -> None:
        check_bounds(self)

    def turns(self) -> TurnLimits:
        """Those of the single turns. Raises `InvalidInput` if one is no time at all."""
        return TurnLimits(turn_seconds=self.turn_seconds, trajectory_seconds=self.trajectory_seconds)

    def of(self, stage: Stage) -> float:
        seconds: float = getattr(self, f"{stage}_seconds")
        return seconds


class AttemptRun:
    """One attempt from its claim to its end. `stage` tells where it stands, `ending` and `failure` how it ends."""

    def __init__(
        self,
        claimed: AttemptedRollout,
        store: Store,
        episodes: EpisodeFactory,
        *,
        admission: Admission,
        clock: Clock,
        limits: StageLimits,
        fail_fast: bool = True,
    ) -> None:
        self.claimed = claimed
        self.recorder = Recorder(store, claimed.rollout_id, claimed.attempt.attempt_id)
        self.stage = Stage.BOOT
        self.ending: AttemptStatus | None = None
        self.failure: Failure | None = None
        self._held_since: float | None = None
        self._held_seconds = 0.0
        self._metrics: Mapping[str, float] = {}
        self._said_running = False
        self._store = store
        self._episodes = episodes
        self._clock = clock
        self._limits = limits
        self._fail_fast = fail_fast
        self._admission = admission
        self._policies = AttemptPolicies(admission.policies, clock)
        self.context = Context(
            claimed,
            self.recorder,
            clock,
            limits=limits.turns(),
            lender=self._policies,
            find_resources=admission.publications.resources,
        )

    async def run(self) -> AttemptStatus | None:
        """Run it and write its end; the state it ended in, or None if it had lost its lease."""
        self.context.enter()
        if not {LEDGER_KEY, PIN_KEY}.isdisjoint(self.claimed.metadata):
            self._admission.publications.need()
        try:
            try:
                result = await self._result()
            except AttemptError as exc:
                if exc.stops_run and (self._fail_fast or not exc.is_permanent):
                    await self._finish(AttemptStatus.CANCELLED, None, None)
                    raise
                self.failure = Failure.of(exc)
                return await self._finish(AttemptStatus.FAILED, None, self.failure, gives_up=False)
            return await self._finish(AttemptStatus.SUCCEEDED, result.reward, None, gives_up=False)
        except StoreError as exc:
            await self._could_not_end(exc)
            return None
        finally:
            self.context.stop()

    @property
    def is_held(self) -> bool:
        """Whether it waits for leave to begin."""
        return self._held_since is not None

    @property
    def is_held_too_long(self) -> bool:
        """Whether it has waited too long for leave to begin, or for the end of a pause."""
        since = self._policies.waits_since if self._held_since is None else self._held_since
        return since is not None and self._clock.monotonic() - since > self._limits.leave_seconds

    @property
    def has_news(self) -> bool:
        return self.ending is None and (self._acts_unsaid or self.recorder.has_pending)

    @property
    def _acts_unsaid(self) -> bool:
        return self.stage is Stage.ACT and not self._said_running

    async def report_progress(self) -> None:
        """Tell the store that the attempt acts, and what has happened since the last time."""
        if self._acts_unsaid:
            attempt = self.claimed.attempt
            await self._store.update_attempt(attempt.rollout_id, attempt.attempt_id, status=AttemptStatus.RUNNING)
            self._said_running = True
            reached("attempt.said_running")
        await self.recorder.flush()

    async def hand_back(self) -> None:
        """Give an unfinished rollout back to the queue; it does not count as a failure."""
        try:
            await self._finish(AttemptStatus.CANCELLED, None, None)
        except StoreError as exc:
            await self._could_not_end(exc)

    async def fail(self, error: AttemptError) -> None:
        """End it as failed, since it has not done so itself."""
        try:
            await self._finish(AttemptStatus.FAILED, None, Failure.of(error))
        except StoreError as exc:
            await self._could_not_end(exc)

    def abandon(self) -> None:
        """It does not stop: let it at least ask nothing more of the model."""
        self.context.stop()

    async def leave_account(self, *, is_cut_off: bool = False) -> None:
        """Tell what the attempt took, now that somebody else has ended it; nothing may keep this from its end.

        `is_cut_off`: nobody has said so, its lease must have expired, or is about to; it is told until it is kept.
        """
        if not self._has_account:
            return
        try:
            await uninterrupted(self._left_account(is_cut_off=is_cut_off))
        except (StoreError, TimeoutError) as exc:
            _log.error("the usage of rollout %s could not be recorded: %s", self.claimed.rollout_id, exc)

    async def _left_account(self, *, is_cut_off: bool) -> None:
        rollout_id, attempt_id = self.claimed.rollout_id, self.claimed.attempt.attempt_id

        async def write() -> None:
            await self._store.leave_account(rollout_id, attempt_id, self._account())
            if is_cut_off:
                kept = await self._store.query_accounts([rollout_id])
                if all(entry.attempt_id != attempt_id for entry in kept):
                    raise StoreUnavailable("the attempt has not ended yet")

        async with asyncio.timeout(ACCOUNT_SECONDS):
            await self._insistently(write)

    async def _could_not_end(self, error: StoreError) -> None:
        """Somebody else has the rollout by now, or will have it when the lease expires."""
        is_lost = isinstance(error, LeaseLost)
        _log.log(
            logging.INFO if is_lost else logging.ERROR,
            "rollout %s could not be ended here: %s",
            self.claimed.rollout_id,
            error,
        )
        if is_lost:
            await self.leave_account()

    @property
    def _has_account(self) -> bool:
        return LEDGER_KEY in self.claimed.metadata

    def _account(self, *, failed: bool = False) -> Account:
        account = self.context.spending.account(
            n_bytes=self.recorder.n_bytes, held_seconds=self._held_seconds, metrics=self._metrics
        )
        return replace(account, failed=failed)

    async def _result(self) -> Result:
        with boundary(AgentError, "agent"), exit_if_forked(os.getpid()):
            episode = self._episodes(self.context)
            on_machine = takes_machine(episode)
        try:
            if on_machine and self._has_account:
                self.context.log(WANTED)
                await self._admitted()
            if has_stage(episode.boot):
                await self._staged(Stage.BOOT, episode.boot(self.context))
            if has_stage(episode.setup):
                await self._staged(Stage.SETUP, episode.setup(self.context))
            if not on_machine:
                await self._admitted()
            result = await self._staged(Stage.ACT, episode.act(self.context))
            if has_stage(episode.score):
                result = await self._staged(Stage.SCORE, episode.score(self.context, result))
            return self._checked(result)
        finally:
            await self._close(episode)

    async def _admitted(self) -> None:
        """Wait until the first turn may be taken, where the rollout is one that must ask."""
        if not self._has_account:
            return
        attempt = self.claimed.attempt
        self._held_since = began = self._clock.monotonic()
        try:
            version = await self._admission.gate.enter(attempt.rollout_id, attempt.attempt_id)
            await self._admission.publications.reached(version)
        finally:
            self._held_since = None
            self._held_seconds = self._clock.monotonic() - began

    async def _staged(self, stage: Stage, work: Awaitable[R]) -> R:
        self.stage = stage
        seconds = self._limits.of(stage)
        with boundary(BOUNDARIES[stage], stage), exit_if_forked(os.getpid()):
            if math.isinf(seconds):
                return await work
            scope = asyncio.timeout(seconds)
            try:
                async with scope:
                    return await work
            except TimeoutError as exc:
                if scope.expired():
                    raise LimitError(f"{stage} took longer than {seconds:g} s", stage=stage) from exc
                raise

    def _checked(self, result: Result) -> Result:
        """The result, its output recorded; a reward that is no number is a failure to score."""
        if result.reward is not None and not math.isfinite(result.reward):
            raise ScoreError(
                f"the reward is {result.reward}; give a finite number, or None for no score", stage="score"
            )
        if result.output is not None or result.metrics or result.stop_reason or result.explanation:
            with boundary(ScoreError, "score"):
                data = {
                    "reward": result.reward,
                    "output": result.output,
                    "metrics": dict(result.metrics),
                    "stop_reason": result.stop_reason,
                    "explanation": result.explanation,
                }
                self.context.record(EventKind.REWARD, "result", data)
        self._metrics = result.metrics
        return result

    async def _close(self, episode: Episode) -> None:
        """Close the episode even while being cancelled. What goes wrong here is recorded and changes no result."""
        self.context.stop()
        if has_stage(episode.close):
            await uninterrupted(self._closed(episode))

    async def _closed(self, episode: Episode) -> None:
        try:
            await self._staged(Stage.CLOSE, episode.close(self.context))
        except AttemptError as exc:
            _log.warning("rollout %s: %s", self.claimed.rollout_id, exc)
            self.context.log(f"close failed: {exc}")

    async def _finish(
        self, status: AttemptStatus, reward: float | None, failure: Failure | None, *, gives_up: bool = True
    ) -> AttemptStatus:
        attempt = self.claimed.attempt
        self.ending = status

        async def write() -> None:
            events, first_index = await self.recorder.rest()
            reached("attempt.before_end")
            await self._store.update_attempt(
                attempt.rollout_id,
                attempt.attempt_id,
                status=status,
                reward=reward,
                error=failure,
                events=events,
                first_index=first_index,
                account=self._account(failed=status is AttemptStatus.FAILED) if self._has_account else None,
            )

        await self._insistently(write, gives_up=gives_up)
        reached("attempt.ended")
        return status

    async def _insistently(self, write: Callable[[], Awaitable[None]], *, gives_up: bool = True) -> None:
        """Repeat a write while the store cannot be written; repeating one that was carried out changes nothing."""
        writing = RepeatedCall(self._store.outage)
        give_up_at = self._clock.monotonic() + sum(FINISH_RETRY_SECONDS) if gives_up else math.inf
        pauses = chain(FINISH_RETRY_SECONDS, repeat(FINISH_RETRY_SECONDS[-1]))
        while True:
            try:
                with writing:
                    return await write()
            except StoreUnavailable:
                left = give_up_at - self._clock.monotonic()
                if left <= 0:
                    raise
                await sleep(self._clock, min(next(pauses), left))
