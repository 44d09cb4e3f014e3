"""A rollout as people read it: who said what, turn by turn, with what it cost and what it earned.

Reads the records of `core.turn` from an attempt's events. What an agent recorded in a form of its own is shown as it
is; nothing in a trajectory can make this fail.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any

from msgspec import Struct

from outrider.core.artifact import Artifact, artifact_of
from outrider.core.attempt import Attempt
from outrider.core.chat import Message
from outrider.core.errors import InvalidInput
from outrider.core.event import Event, EventKind
from outrider.core.rollout import Rollout
from outrider.core.turn import CallOutcome, CallRecord, StepRecord, TurnRecord
from outrider.evaluate.results import RESULT, ResultLine, recorded_step, recorded_turn, result_line, spent_by_others
from outrider.evaluate.timeline import Deed, outcomes_of, recorded_outcome, timeline_of
from outrider.store import Store


class EntryKind(StrEnum):
    """What an entry tells."""

    MESSAGE = "message"
    """Something was said: by the environment, or, with `call`, by the model."""

    TRIMMED = "trimmed"
    """The model was not shown all of what was said before."""

    STEP = "step"
    """What a step of the environment led to, beside what it said."""

    REWARD = "reward"
    LOG = "log"
    ARTIFACT = "artifact"


class Call(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a model call took; of a call in a team also which it was, and what became of it if that is known."""

    seconds: float
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    finish_reason: str
    n_retries: int
    model: str
    policy_version: int
    in_team: CallRecord | None = None
    outcome: CallOutcome | None = None


class Entry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing to show. `turn` counts model calls from 1, 0 is the opening; `at_seconds` from the attempt's start."""

    kind: EntryKind
    turn: int
    at_seconds: float
    agent: str = ""
    message: Message | None = None
    tool: str = ""
    call: Call | None = None
    reward: float | None = None
    seconds: float | None = None
    text: str = ""
    data: Mapping[str, Any] = {}
    artifact: Artifact | None = None


class Conversation(Struct, frozen=True, kw_only=True):
    """One attempt of a rollout, unfolded; `attempt` is the one shown, `attempts` are all there were.

    `deeds` are what a team did when; there are none if no team was at work.
    """

    result: ResultLine
    question: str
    attempt: Attempt | None
    attempts: Sequence[Attempt]
    entries: Sequence[Entry]
    deeds: Sequence[Deed] = ()


async def read_conversation(store: Store, rollout: Rollout, *, attempt: int | None = None) -> Conversation:
    """The latest attempt of a rollout, or the one of that number, counted from 1."""
    attempts = (await store.query_attempts(rollout.rollout_id)).items
    shown = attempts[-1] if attempts else None
    if attempt is not None:
        shown = next((found for found in attempts if found.sequence_id == attempt), None)
        if shown is None:
            raise InvalidInput(f"{rollout.rollout_id} has {len(attempts)} attempts; there is no attempt {attempt}")
    events: Sequence[Event] = ()
    if shown is not None:
        events = (await store.query_events(rollout.rollout_id, attempt_id=shown.attempt_id)).items
    others = None
    if shown is not None and len(attempts) > 1:
        others = await spent_by_others(store, rollout, shown)
    task = rollout.input if isinstance(rollout.input, Mapping) else {"question": rollout.input}
    return Conversation(
        result=result_line(rollout, shown, events, others),
        question=str(task.get("question") or ""),
        attempt=shown,
        attempts=attempts,
        entries=entries_of(events, began_at=None if shown is None else shown.started_at),
        deeds=timeline_of(events),
    )


def entries_of(events: Sequence[Event], *, began_at: datetime | None = None) -> tuple[Entry, ...]:
    """What an attempt's events tell, in order."""
    walk = _Walk(began_at, outcomes_of(events))
    for event in events:
        walk.follow(event)
    return tuple(walk.entries)


class _Walk:
    """The conversation as far as it has been told."""

    def __init__(self, began_at: datetime | None, outcomes: Mapping[str, CallOutcome]) -> None:
        self.entries: list[Entry] = []
        self._began_at = began_at
        self._outcomes = outcomes
        self._calls: set[str] = set()
        self._turn = 0
        self._transcript: list[Message] = []
        self._tools: dict[str, str] = {}

    def follow(self, event: Event) -> None:
        if (turn := recorded_turn(event)) is not None:
            self._follow_turn(event, turn)
        elif (step := recorded_step(event)) is not None:
            self._follow_step(event, step)
        elif event.kind is EventKind.REWARD:
            self._follow_reward(event)
        elif (artifact := artifact_of(event)) is not None:
            self._add(EntryKind.ARTIFACT, event, text=artifact.name, artifact=artifact)
        elif (outcome := recorded_outcome(event)) is None or outcome.id not in self._calls:
            kind = EntryKind.ARTIFACT if event.kind is EventKind.ARTIFACT else EntryKind.LOG
            text = event.name if event.kind in (EventKind.LOG, EventKind.ARTIFACT) else f"{event.kind} {event.name}"
            self._add(kind, event, text=text.strip(), data=event.data)

    def _follow_turn(self, event: Event, turn: TurnRecord) -> None:
        self._turn += 1
        left_out = self._transcript[turn.kept :]
        new = []
        for message in turn.added:
            if message in left_out:
                left_out.remove(message)
            else:
                new.append(message)
        if turn.call is not None:
            self._calls.add(turn.call.id)
            if turn.call.dropped:
                text = f"{len(turn.call.dropped)} earlier replies did not fit into what the agent was shown"
                self._add(EntryKind.TRIMMED, event, text=text, data={"calls": list(turn.call.dropped)})
        elif left_out:
            characters = sum(len(message.content) for message in left_out)
            text = f"{len(left_out)} of {len(self._transcript)} earlier messages were not shown to the model"
            self._add(EntryKind.TRIMMED, event, text=text, data={"messages": len(left_out), "characters": characters})
        self._transcript[turn.kept :] = turn.added
        self._say(event, new)
        call = Call(
            seconds=turn.seconds,
            prompt_tokens=turn.prompt_tokens,
            completion_tokens=turn.completion_tokens,
            cached_tokens=turn.cached_tokens,
            finish_reason=turn.finish_reason,
            n_retries=turn.n_retries,
            model=turn.model,
            policy_version=turn.policy_version,
            in_team=turn.call,
            outcome=None if turn.call is None else self._outcomes.get(turn.call.id),
        )
        self._add(EntryKind.MESSAGE, event, agent=event.name, message=turn.reply, call=call)
        self._tools |= {tool_call.id: tool_call.name for tool_call in turn.reply.tool_calls}
        self._transcript.append(turn.reply)

    def _follow_step(self, event: Event, step: StepRecord) -> None:
        self._transcript.extend(step.observation)
        self._say(event, step.observation, seconds=step.seconds)
        ended = "terminated" if step.terminated else "truncated" if step.truncated else ""
        if step.reward or ended or step.info:
            self._add(
                EntryKind.STEP,
                event,
                text=ended,
                reward=step.reward if step.reward or ended else None,
                seconds=None if step.observation else step.seconds,
                data=step.info,
            )

    def _follow_reward(self, event: Event) -> None:
        value = event.data.get("reward")
        rest = {name: item for name, item in event.data.items() if name != "reward" and item not in (None, "", {})}
        reward = float(value) if isinstance(value, int | float) else None
        self._add(EntryKind.REWARD, event, text=event.name or EntryKind.REWARD, reward=reward, data=rest)

    def _say(self, event: Event, messages: Iterable[Message], *, seconds: float | None = None) -> None:
        for message in messages:
            tool = self._tools.get(message.tool_call_id or "", "")
            self._add(EntryKind.MESSAGE, event, message=message, tool=tool, seconds=seconds)
            seconds = None  # the step took its time once

    def _add(self, kind: EntryKind, event: Event, **facts: Any) -> None:
        since = 0.0 if self._began_at is None else (event.at - self._began_at).total_seconds()
        self.entries.append(Entry(kind=kind, turn=self._turn, at_seconds=round(max(since, 0.0), 6), **facts))


def is_result(entry: Entry) -> bool:
    """Whether an entry is what the attempt came to, which readers also find at the top."""
    return entry.kind is EntryKind.REWARD and entry.text == RESULT
