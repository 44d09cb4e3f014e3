"""How a conversation is recorded: turns and steps that hold only what is new, and how to unfold them again.

The conversation so far is the *transcript*: opening, replies and observations, as they were recorded. A turn's request
is nearly always the whole transcript, so a turn records how much of it was `kept` and which messages were `added`.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any

import msgspec
from msgspec import Struct, structs

from outrider.core.chat import Message
from outrider.core.decoding import convert, msgpack_decoder
from outrider.core.event import Event, EventKind

RESET = "reset"
"""The name of the step that opens an episode."""


CALL = "team.call"
"""The name of the event that tells what became of a call of a team."""


class CallRecord(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which call of a team a turn is, and what it went by.

    `order` is its place in the team's program, whenever it was made. `reads` and `dropped` are the ids of the calls
    whose words it was shown, and of those that did not fit. `route` is why it was made, if the program says so.
    """

    id: str
    agent: str
    order: tuple[int, ...]
    round: int = 0
    policy: str = ""
    route: str = ""
    reads: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()


class CallOutcome(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of a call. If it is not `used`, the program went on as if it had not been made.

    Times are in seconds: in line for the model, with the model, parsing the answer, and of the tools used for it.
    """

    id: str
    verdict: str = ""
    used: bool = True
    queue_seconds: float = 0.0
    model_seconds: float = 0.0
    parse_seconds: float = 0.0
    completion_tokens: int = 0


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
    call: CallRecord | None = None


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


def to_data(record: TurnRecord | StepRecord | CallOutcome) -> dict[str, Any]:
    """The record as an event's data, equal to what comes back from the wire. Texts and bytes in it are not copied.

    `UnicodeError` for a text that no store can keep.
    """
    if isinstance(record, StepRecord) and record.info:
        info = msgpack_decoder().decode(msgspec.msgpack.encode(record.info))
        return {**to_data(structs.replace(record, info={})), "info": info}
    data: dict[str, Any] = _as_decoded(msgspec.to_builtins(record, builtin_types=(bytes,)))
    return data


def _as_decoded(value: Any) -> Any:
    if isinstance(value, str):
        if not value.isascii():
            value.encode()
        return value
    if isinstance(value, dict):
        return {key: _as_decoded(item) for key, item in value.items()}
    return [_as_decoded(item) for item in value] if isinstance(value, (list, tuple)) else value


def outcome_of(event: Event) -> CallOutcome:
    return convert(event.data, CallOutcome)


def outcomes_of(events: Iterable[Event]) -> dict[str, CallOutcome]:
    """What became of each call, by its id."""
    found = (outcome_of(event) for event in events if event.kind is EventKind.LOG and event.name == CALL)
    return {outcome.id: outcome for outcome in found}


def turn_of(event: Event) -> TurnRecord:
    return convert(event.data, TurnRecord)


def step_of(event: Event) -> StepRecord:
    return convert(event.data, StepRecord)


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
