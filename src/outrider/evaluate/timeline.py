"""What a team did when, out of an attempt's events."""

import math
from collections.abc import Iterable, Sequence

import msgspec
from msgspec import Struct

from outrider.core.event import Event, EventKind
from outrider.core.turn import CALL, RESET, CallOutcome, CallRecord, StepRecord, TurnRecord, outcome_of
from outrider.evaluate.results import recorded_step, recorded_turn
from outrider.orchestra.profile import Profile, Span, TeamStatistics


class Deed(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A call of an agent, or, without a `call`, a step of the environment. Times are unix seconds."""

    span: Span
    call: CallRecord | None = None
    verdict: str = ""
    prompt_tokens: int = 0


def timeline_of(events: Sequence[Event]) -> tuple[Deed, ...]:
    """What was done, in the order in which it began, or of the program if that was at once; nothing without a team."""
    outcomes = outcomes_of(events)
    deeds: list[Deed] = []
    is_team = False
    for event in events:
        if (turn := recorded_turn(event)) is not None and turn.call is not None:
            is_team = True
            deeds.append(_called(event, turn, turn.call, outcomes.get(turn.call.id)))
        elif (step := recorded_step(event)) is not None and event.name != RESET:
            deeds.append(_stepped(event, step))
    return tuple(sorted(deeds, key=_place)) if is_team else ()


def _place(deed: Deed) -> tuple[float, tuple[int, ...]]:
    return round(deed.span.began_at, 3), () if deed.call is None else deed.call.order


def outcomes_of(events: Iterable[Event]) -> dict[str, CallOutcome]:
    """What became of each call, by its id."""
    found = (recorded_outcome(event) for event in events)
    return {outcome.id: outcome for outcome in found if outcome is not None}


def recorded_outcome(event: Event) -> CallOutcome | None:
    """The outcome in an event; None for other events, and for those that only have its name."""
    if event.kind is not EventKind.LOG or event.name != CALL:
        return None
    try:
        return outcome_of(event)
    except msgspec.ValidationError:
        return None


def statistics_of(deeds: Iterable[Deed]) -> TeamStatistics:
    """The figures of one sample."""
    spans = [deed.span for deed in deeds]
    profile = Profile(dict.fromkeys(span.agent for span in spans if span.agent))
    profile.add(spans)
    return profile.statistics()


def _called(event: Event, turn: TurnRecord, call: CallRecord, outcome: CallOutcome | None) -> Deed:
    """A turn is recorded when the model has answered. A call of which no outcome is told came to nothing."""
    found = outcome or CallOutcome(
        id=call.id, used=False, model_seconds=turn.seconds, completion_tokens=turn.completion_tokens
    )
    queue, model, parse = map(_sane, (found.queue_seconds, found.model_seconds, found.parse_seconds))
    answered_at = event.at.timestamp()
    span = Span(
        agent=call.agent or "?",
        call_id=call.id,
        began_at=answered_at - model - queue,
        ended_at=answered_at + parse,
        queue_seconds=queue,
        model_seconds=model,
        parse_seconds=parse,
        completion_tokens=found.completion_tokens,
        used=found.used,
    )
    return Deed(span=span, call=call, verdict=found.verdict, prompt_tokens=turn.prompt_tokens)


def _stepped(event: Event, step: StepRecord) -> Deed:
    ended_at = event.at.timestamp()
    return Deed(span=Span(agent="", call_id="", began_at=ended_at - _sane(step.seconds), ended_at=ended_at))


def _sane(seconds: float) -> float:
    return max(seconds, 0.0) if math.isfinite(seconds) else 0.0
