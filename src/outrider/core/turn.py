"""How a conversation is recorded: turns and steps that hold only what is new, and how to unfold them again.

The conversation so far is the *transcript*: opening, replies and observations, as they were recorded. A turn's request
is nearly always the whole transcript, so a turn records how much of it was `kept` and which messages were `added`.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any

import msgspec
from msgspec import Struct

from outrider.core.chat import Message
from outrider.core.event import Event, EventKind

RESET = "reset"
"""The name of the step that opens an episode."""


class TurnRecord(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One model call. `tokens` holds packed arrays; `seconds` counts from the request to the whole reply."""

    kept: int
    added: tuple[Message, ...] = ()
    reply: Message
    finish_reason: str = "stop"
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    tokens: Mapping[str, bytes] | None = None
    model: str = ""
    policy_version: int = 0
    n_retries: int = 0
    seconds: float = 0.0


class StepRecord(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One step of the environment, or its reset."""

    observation: tuple[Message, ...] = ()
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    info: Mapping[str, Any] = {}
    seconds: float = 0.0


class Transcript:
    """The conversation as it has been recorded so far."""

    def __init__(self) -> None:
        self._messages: list[Message] = []

    def extend(self, messages: Iterable[Message]) -> None:
        self._messages.extend(messages)

    def ask(self, request: Sequence[Message]) -> tuple[int, tuple[Message, ...]]:
        """Go on from `request`: how many messages of the transcript it keeps, and those it adds."""
        pairs = zip(self._messages, request, strict=False)
        kept = sum(1 for _ in takewhile(lambda pair: pair[0] is pair[1] or pair[0] == pair[1], pairs))
        added = tuple(request[kept:])
        self._messages[kept:] = added
        return kept, added


class Turn(Struct, frozen=True, kw_only=True):
    """A recorded turn with its whole request, unfolded. `agent` is who made the call, where there are several."""

    agent: str
    request: tuple[Message, ...]
    record: TurnRecord


def to_data(record: TurnRecord | StepRecord) -> dict[str, Any]:
    """The record as an event's data: as it comes back from the wire, so that it need not be checked at length."""
    data: dict[str, Any] = msgspec.msgpack.decode(msgspec.msgpack.encode(record))
    return data


def turn_of(event: Event) -> TurnRecord:
    return msgspec.convert(event.data, TurnRecord)


def step_of(event: Event) -> StepRecord:
    return msgspec.convert(event.data, StepRecord)


def turns_of(events: Iterable[Event]) -> list[Turn]:
    """The turns in a trajectory's events, each with all the messages the model was shown."""
    messages: list[Message] = []
    turns: list[Turn] = []
    for event in events:
        if event.kind is EventKind.STEP:
            messages.extend(step_of(event).observation)
        elif event.kind is EventKind.TURN:
            record = turn_of(event)
            messages[record.kept :] = record.added
            turns.append(Turn(agent=event.name, request=tuple(messages), record=record))
            messages.append(record.reply)
    return turns
