"""One line of results: a finished rollout and what happened in it, folded into what people ask of it afterwards."""

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from hashlib import blake2b
from typing import Any

import msgspec
from msgspec import Struct

from outrider.core.attempt import Attempt
from outrider.core.event import Event, EventKind
from outrider.core.rollout import SAMPLE_KEY, TASK_KEY, Rollout
from outrider.core.status import RolloutStatus
from outrider.core.turn import RESET, StepRecord, TurnRecord, step_of, turn_of
from outrider.evaluate.plan import safe_name
from outrider.store import Store

RESULT = "result"
"""The name of the reward event that holds what an attempt came to."""

KINDS = ("category", "subject", "topic", "domain", "level", "difficulty", "type", "kind", "source", "dataset", "split")
"""Fields of a task's metadata by which scores are also told apart."""

MAX_KIND = 60
_DIGEST_BYTES = 8


class FailureLine(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a rollout failed, without the traceback, which the store keeps."""

    boundary: str
    kind: str
    message: str
    stage: str = ""
    infrastructure: bool = False
    permanent: bool = False
    stops_if_shared: bool = False


class Spent(Struct, frozen=True, kw_only=True):
    """What attempts took together. `spans` are the times in which they ran."""

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    call_retries: int = 0
    model_seconds: float = 0.0
    seconds: float = 0.0
    spans: tuple[tuple[datetime, datetime], ...] = ()

    def __add__(self, other: "Spent") -> "Spent":
        return Spent(**{name: getattr(self, name) + getattr(other, name) for name in self.__struct_fields__})


class ResultLine(Struct, frozen=True, kw_only=True):
    """A finished rollout in one line. `seconds` is what the attempt that ended it took, `model_seconds` its calls.

    `n_attempts` counts all attempts, `n_retries` the model calls that were repeated. `others` is what its other
    attempts took, if it had any. Tasks with the same question and answer have the same `task_digest`. What a
    program has added to a line is ignored when it is read back.
    """

    rollout_id: str
    task_id: str
    sample: int = 0
    status: RolloutStatus
    reward: float | None = None
    output: Any = None
    expected: Any = None
    explanation: str = ""
    stop_reason: str = ""
    failure: FailureLine | None = None
    metrics: Mapping[str, float] = {}
    n_turns: int = 0
    n_steps: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    n_retries: int = 0
    n_attempts: int = 0
    model_seconds: float = 0.0
    seconds: float | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    tag: str | None = None
    kinds: Mapping[str, str] = {}
    seed: int | None = None
    task_digest: str = ""
    others: Spent | None = None

    @property
    def spent(self) -> Spent:
        """What all its attempts took."""
        own = Spent(
            calls=self.n_turns,
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.completion_tokens,
            call_retries=self.n_retries,
            model_seconds=self.model_seconds,
            seconds=self.seconds or 0.0,
            spans=() if self.started_at is None or self.ended_at is None else ((self.started_at, self.ended_at),),
        )
        return own if self.others is None else own + self.others

    @property
    def name(self) -> str:
        """What people call the rollout in its run: `q7:0`, by the task's own id."""
        return name_of(self.rollout_id, self.task_id)[1]

    @property
    def full_name(self) -> str:
        """The same behind the name of the run."""
        return "/".join(filter(None, name_of(self.rollout_id, self.task_id)))

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    @property
    def is_missing(self) -> bool:
        """Whether nothing can be said of the agent: the infrastructure failed, or the rollout was cancelled."""
        if self.reward is not None or self.status is RolloutStatus.SUCCEEDED:
            return False
        return self.failure is None or self.failure.infrastructure


async def read_result(store: Store, rollout: Rollout) -> ResultLine:
    """The line of a rollout, with the events of its latest attempt, and what the earlier ones took."""
    attempt = await store.get_latest_attempt(rollout.rollout_id)
    if attempt is None:
        return result_line(rollout, None, ())
    events = (await store.query_events(rollout.rollout_id, attempt_id=attempt.attempt_id)).items
    others = await spent_by_others(store, rollout, attempt) if attempt.sequence_id > 1 else None
    return result_line(rollout, attempt, events, others)


async def spent_by_others(store: Store, rollout: Rollout, attempt: Attempt) -> Spent:
    """What all attempts of a rollout took but this one."""
    spent = Spent()
    for other in await store.query_attempts(rollout.rollout_id):
        if other.attempt_id != attempt.attempt_id:
            events = (await store.query_events(rollout.rollout_id, attempt_id=other.attempt_id)).items
            spent += _spent_by(other, events)
    return spent


def _spent_by(attempt: Attempt, events: Iterable[Event]) -> Spent:
    turns = [turn for event in events if (turn := recorded_turn(event)) is not None]
    return Spent(
        calls=len(turns),
        prompt_tokens=sum(turn.prompt_tokens for turn in turns),
        completion_tokens=sum(turn.completion_tokens for turn in turns),
        call_retries=sum(turn.n_retries for turn in turns),
        model_seconds=round(sum(turn.seconds for turn in turns), 6),
        seconds=_seconds(attempt) or 0.0,
        spans=() if attempt.ended_at is None else ((attempt.started_at, attempt.ended_at),),
    )


def result_line(
    rollout: Rollout, attempt: Attempt | None, events: Sequence[Event], others: Spent | None = None
) -> ResultLine:
    """Fold a rollout and the events of one attempt; `others` is what the rest of its attempts took."""
    task = rollout.input if isinstance(rollout.input, Mapping) else {}
    result = _result(events)
    turns = [turn for event in events if (turn := recorded_turn(event)) is not None]
    steps = [step for event in events if (step := recorded_step(event)) is not None]
    return ResultLine(
        rollout_id=rollout.rollout_id,
        task_id=task_id_of(rollout),
        sample=_whole(rollout.metadata.get(SAMPLE_KEY)),
        status=rollout.status,
        reward=rollout.reward,
        output=result.get("output"),
        expected=task.get("answer"),
        explanation=str(result.get("explanation") or ""),
        stop_reason=_stop_reason(rollout, result, turns, steps),
        failure=_failure(rollout),
        metrics=_numbers(result.get("metrics")),
        n_turns=len(turns),
        n_steps=sum(1 for event in events if event.kind is EventKind.STEP and event.name != RESET),
        prompt_tokens=sum(turn.prompt_tokens for turn in turns),
        completion_tokens=sum(turn.completion_tokens for turn in turns),
        cached_tokens=sum(turn.cached_tokens for turn in turns),
        n_retries=sum(turn.n_retries for turn in turns),
        n_attempts=rollout.n_attempts,
        model_seconds=round(sum(turn.seconds for turn in turns), 6),
        seconds=_seconds(attempt),
        started_at=None if attempt is None else attempt.started_at,
        ended_at=rollout.ended_at,
        tag=rollout.tag,
        kinds=_kinds(task.get("metadata")),
        seed=rollout.seed,
        task_digest=_task_digest(task),
        others=others,
    )


def _task_digest(task: Mapping[str, Any]) -> str:
    """Of the question and the answer, and of the metadata where that is all there is, as of games."""
    question = task.get("question") or task.get("metadata")
    asked = msgspec.msgpack.encode((question, task.get("answer")), order="deterministic")
    return blake2b(asked, digest_size=_DIGEST_BYTES).hexdigest()


def recorded_turn(event: Event) -> TurnRecord | None:
    """The turn in an event; None for other events, and for turns that an agent recorded in a form of its own."""
    if event.kind is not EventKind.TURN:
        return None
    try:
        return turn_of(event)
    except msgspec.ValidationError:
        return None


def recorded_step(event: Event) -> StepRecord | None:
    """The step in an event; None for other events, and for steps that an agent recorded in a form of its own."""
    if event.kind is not EventKind.STEP:
        return None
    try:
        return step_of(event)
    except msgspec.ValidationError:
        return None


def task_id_of(rollout: Rollout) -> str:
    """The task a rollout is a sample of; a rollout that was not planned is a task of its own."""
    task = rollout.input if isinstance(rollout.input, Mapping) else {}
    found = rollout.metadata.get(TASK_KEY, task.get(TASK_KEY))
    return rollout.rollout_id if found is None else str(found)


def name_of(rollout_id: str, task_id: str) -> tuple[str, str]:
    """The run and what people call the rollout in it: a store has the ids of tasks in a safe form, if need be."""
    group, _, sample = rollout_id.rpartition(":")
    run, _, task = group.rpartition("/")
    if run and task == safe_name(task_id):
        return run, f"{task_id}:{sample}"
    run, _, name = rollout_id.rpartition("/")
    return run, name


def _result(events: Iterable[Event]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = {}
    for event in events:
        if event.kind is EventKind.REWARD and event.name == RESULT:
            found = event.data
    return found


def _stop_reason(
    rollout: Rollout, result: Mapping[str, Any], turns: Sequence[TurnRecord], steps: Sequence[StepRecord]
) -> str:
    """Why the episode ended: as the agent says, else as the environment, the model or the failure tell."""
    if rollout.status is RolloutStatus.CANCELLED:
        return "cancelled"
    if rollout.failure is not None and rollout.status is RolloutStatus.FAILED:
        return f"failed: {rollout.failure.boundary}"
    if isinstance(reason := result.get("stop_reason"), str) and reason:
        return reason
    if steps and steps[-1].terminated:
        return "terminated"
    if steps and steps[-1].truncated:
        return "truncated"
    return turns[-1].finish_reason if turns else ""


def _failure(rollout: Rollout) -> FailureLine | None:
    failure = rollout.failure
    if failure is None or rollout.status is RolloutStatus.SUCCEEDED:
        return None
    return FailureLine(
        boundary=failure.boundary,
        kind=failure.kind,
        message=failure.message,
        stage=failure.stage,
        infrastructure=failure.boundary.is_infrastructure,
        permanent=failure.permanent,
        stops_if_shared=failure.stops_if_shared,
    )


def _numbers(metrics: Any) -> dict[str, float]:
    """Those metrics that are numbers JSON can hold."""
    if not isinstance(metrics, Mapping):
        return {}
    return {
        str(name): float(value)
        for name, value in metrics.items()
        if isinstance(value, int | float) and math.isfinite(value)
    }


def _kinds(metadata: Any) -> dict[str, str]:
    if not isinstance(metadata, Mapping):
        return {}
    found = {str(name).lower(): value for name, value in metadata.items() if isinstance(value, str | int)}
    return {name: str(found[name]) for name in KINDS if name in found and 0 < len(str(found[name])) <= MAX_KIND}


def _seconds(attempt: Attempt | None) -> float | None:
    if attempt is None or attempt.ended_at is None:
        return None
    return round(max((attempt.ended_at - attempt.started_at).total_seconds(), 0.0), 6)


def _whole(value: Any) -> int:
    return value if isinstance(value, int) else 0
