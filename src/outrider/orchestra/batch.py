"""Playing a batch: its samples stream through the team, a window of them at a time."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from msgspec import Struct

from outrider.agent.context import Context
from outrider.agent.episode import EpisodeKit
from outrider.agent.protocol import Result
from outrider.core.attempt import Attempt, Failure
from outrider.core.bounds import PositiveCount, SecondsLimit, check_bounds
from outrider.core.chat import Message, user
from outrider.core.clock import Clock, utc
from outrider.core.errors import AgentError, AttemptError, LimitError, boundary
from outrider.core.event import Event
from outrider.core.rollout import SAMPLE_KEY, TASK_KEY, AttemptedRollout, RolloutConfig
from outrider.core.status import AttemptStatus, Mode, RolloutStatus
from outrider.core.task import Task
from outrider.core.tasks import uninterrupted
from outrider.env import Environment, Environments, Observation, Step
from outrider.orchestra.caller import Pacing
from outrider.orchestra.deadline import Deadline
from outrider.orchestra.lockstep import Lockstep
from outrider.orchestra.owned import all_of
from outrider.orchestra.rows import Row, rows_of


class SampleOutcome(Struct, frozen=True, kw_only=True):
    """What became of one sample. Without a failure it came to its end."""

    sample: int
    task_id: str
    output: Any = None
    reward: float | None = None
    stop_reason: str = ""
    failure: Failure | None = None
    n_attempts: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How many samples are played at once, for how long each, and how often it is tried."""

    window: PositiveCount
    timeout_seconds: SecondsLimit
    max_attempts: PositiveCount

    def __post_init__(self) -> None:
        check_bounds(self)


class Plain(Environments):
    """For teams that only talk: the question, and an end with the answer."""

    def make(self, task: Task) -> Environment:
        return _Talk(task)


class _Talk(Environment):
    def __init__(self, task: Task) -> None:
        self._task = task

    async def reset(self, seed: int | None = None) -> Observation:  # noqa: ARG002 a question has no randomness
        return (user(self._task.question),)

    async def step(self, action: Message) -> Step:  # noqa: ARG002 whatever it is, it is the answer
        return Step(terminated=True)


class EventList:
    """Keeps the events of one attempt."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def add(self, event: Event) -> None:
        self.events.append(event)


async def play_batch(
    kit: Callable[[Pacing], EpisodeKit],
    tasks: Sequence[Task],
    *,
    seed: int,
    limits: Limits,
    lockstep: Lockstep | None,
    clock: Clock,
) -> list[tuple[SampleOutcome, tuple[Row, ...]]]:
    """Each sample's outcome and rows, in the order of the tasks."""
    room = asyncio.Semaphore(max(len(tasks), 1) if lockstep is not None else limits.window)
    episodes = kit(lockstep or Pacing())

    async def play(number: int, task: Task) -> tuple[SampleOutcome, tuple[Row, ...]]:
        async with room:
            return await _Sample(episodes, number, task, seed, clock).play(limits)

    if lockstep is None:
        return await all_of([partial(play, n, task) for n, task in enumerate(tasks)])
    async with lockstep:
        for task in tasks:
            lockstep.begin(f"{task.task_id}:0")
        return await all_of([partial(_in_step, lockstep, partial(play, n, task), task) for n, task in enumerate(tasks)])


async def _in_step(
    lockstep: Lockstep, play: Callable[[], Awaitable[tuple[SampleOutcome, tuple[Row, ...]]]], task: Task
) -> tuple[SampleOutcome, tuple[Row, ...]]:
    try:
        return await play()
    finally:
        lockstep.end(f"{task.task_id}:0")


class _Sample:
    """One sample of a batch, over its attempts."""

    def __init__(self, kit: EpisodeKit, number: int, task: Task, seed: int, clock: Clock) -> None:
        self._kit = kit
        self._number = number
        self._task = task
        self._seed = seed
        self._clock = clock

    async def play(self, limits: Limits) -> tuple[SampleOutcome, tuple[Row, ...]]:
        failure: Failure | None = None
        for attempt in range(1, limits.max_attempts + 1):
            kept = EventList()
            try:
                result = await self._attempt(kept, attempt, limits.timeout_seconds)
            except AttemptError as exc:
                if exc.stops_run:
                    raise
                failure = Failure.of(exc)
                continue
            outcome = SampleOutcome(
                sample=self._number,
                task_id=self._task.task_id,
                output=result.output,
                reward=result.reward,
                stop_reason=result.stop_reason,
                n_attempts=attempt,
            )
            rows = rows_of(
                kept.events,
                sample=self._number,
                task_id=self._task.task_id,
                reward=result.reward,
                stop_reason=result.stop_reason,
            )
            return outcome, rows
        lost = SampleOutcome(
            sample=self._number, task_id=self._task.task_id, failure=failure, n_attempts=limits.max_attempts
        )
        return lost, ()

    async def _attempt(self, kept: EventList, number: int, seconds: float) -> Result:
        ctx = Context(self._claimed(number), kept, self._clock)
        deadline = Deadline(seconds)
        with boundary(AgentError, "agent"):
            episode = self._kit.episodes(ctx)
            try:
                async with deadline:
                    await episode.boot(ctx)
                    await episode.setup(ctx)
                    return await episode.score(ctx, await episode.act(ctx))
            except TimeoutError as exc:
                if not deadline.expired:
                    raise
                raise LimitError(f"the sample took longer than {seconds:g} s", stage="team") from exc
            finally:
                ctx.stop()
                await uninterrupted(episode.close(ctx))

    def _claimed(self, number: int) -> AttemptedRollout:
        now, name = utc(self._clock.time()), f"{self._task.task_id}:0"
        attempt = Attempt(
            rollout_id=name,
            attempt_id=f"{name}/{number}",
            sequence_id=number,
            worker_id="batch",
            status=AttemptStatus.RUNNING,
            started_at=now,
            last_heartbeat_at=now,
            lease_expires_at=None,
        )
        return AttemptedRollout(
            rollout_id=name,
            input=self._task.as_input(),
            status=RolloutStatus.RUNNING,
            mode=Mode.TRAIN,
            tag="",
            seed=self._seed,
            group_id=None,
            priority=0,
            config=RolloutConfig(),
            metadata={TASK_KEY: self._task.task_id, SAMPLE_KEY: 0},
            enqueued_at=now,
            attempt=attempt,
        )
