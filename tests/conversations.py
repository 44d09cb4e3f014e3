"""Recorded conversations with exact token ids, as tests of samples and batches need them."""

from array import array
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from outrider.core.chat import Message
from outrider.core.event import EventKind, RecordedEvent
from outrider.core.rollout import Rollout, RolloutConfig
from outrider.core.status import Mode, RolloutStatus
from outrider.core.trajectory import Trajectory
from outrider.core.turn import StepRecord, TurnRecord, to_data
from outrider.policy.scripted.tokens import completion_ids, prompt_ids

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def packed(ids: Iterable[int]) -> bytes:
    return array("i", ids).tobytes()


def packed_floats(values: Iterable[float]) -> bytes:
    return array("f", values).tobytes()


def tokens_between(prompt: bytes, completion: bytes, logprobs: Sequence[float] | None = None) -> dict[str, bytes]:
    if logprobs is None:
        logprobs = [-(place % 7) / 8 for place in range(len(completion) // 4)]
    return {"prompt_ids": prompt, "completion_ids": completion, "logprobs": packed_floats(logprobs)}


def turn(
    request: Sequence[Message], reply: Message, *, tokens: dict[str, bytes] | None = None, **fields: Any
) -> TurnRecord:
    """A call with the byte tokenizer's ids, unless others are given; `tokens={}`: without any."""
    if tokens is None:
        tokens = tokens_between(prompt_ids(request), completion_ids(reply))
    return TurnRecord(kept=0, added=tuple(request), reply=reply, tokens=tokens or None, **fields)


def ids_turn(prompt: Iterable[int], completion: Iterable[int], **fields: Any) -> TurnRecord:
    """A call of which only the ids matter."""
    tokens = tokens_between(packed(prompt), packed(completion))
    return TurnRecord(kept=0, reply=Message(role="assistant", content=str(completion)), tokens=tokens, **fields)


def events_of(*records: TurnRecord | StepRecord | tuple[str, TurnRecord], rollout_id: str = "ro") -> tuple[Any, ...]:
    """The events of these records; a turn may be given with its agent's name."""
    events = []
    for index, given in enumerate(records):
        name, record = given if isinstance(given, tuple) else ("", given)
        kind = EventKind.TURN if isinstance(record, TurnRecord) else EventKind.STEP
        data = to_data(record)
        events.append(
            RecordedEvent(
                kind=kind, at=NOW, name=name, data=data, rollout_id=rollout_id, attempt_id="at-1", index=index
            )
        )
    return tuple(events)


def result_event(stop_reason: str, rollout_id: str = "ro") -> RecordedEvent:
    data = {"reward": 1.0, "stop_reason": stop_reason}
    return RecordedEvent(
        kind=EventKind.REWARD, at=NOW, name="result", data=data, rollout_id=rollout_id, attempt_id="at-1", index=99
    )


def trajectory_of(
    *records: TurnRecord | StepRecord | tuple[str, TurnRecord],
    rollout_id: str = "ro",
    group_id: str | None = None,
    reward: float | None = 1.0,
    **fields: Any,
) -> Trajectory:
    rollout = Rollout(
        rollout_id=rollout_id,
        input={"question": "?"},
        status=RolloutStatus.SUCCEEDED,
        mode=Mode.TRAIN,
        tag=fields.pop("tag", None),
        seed=fields.pop("seed", None),
        group_id=group_id,
        priority=0,
        config=RolloutConfig(),
        metadata={},
        enqueued_at=NOW,
        reward=reward,
    )
    return Trajectory(rollout=rollout, attempt=None, events=events_of(*records, rollout_id=rollout_id), **fields)
