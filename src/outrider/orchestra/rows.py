"""Training rows of a team's episode: one for each call that counted, in the order of the program."""

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from outrider.core.chat import Message
from outrider.core.event import Event
from outrider.core.turn import CallOutcome, CallRecord, outcomes_of, turns_of


class Row(Struct, frozen=True, kw_only=True):
    """What one call of one agent was asked and said, and where it stands in its sample.

    `reads` are the ids of the calls whose words it was shown, `dropped` those that did not fit. `tokens` are those of
    the call, packed, where the policy gives them.
    """

    sample: int
    task_id: str
    agent: str
    call_id: str
    round: int
    request: tuple[Message, ...]
    reply: Message
    verdict: str = ""
    route: str = ""
    stop_reason: str = ""
    reads: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    policy: str = ""
    policy_version: int = 0
    tokens: Any = None
    reward: float | None = None

    def __repr__(self) -> str:
        """Which call it is: its texts may be long, and rows stand in lists."""
        return f"<Row of sample {self.sample} ({self.task_id}): {self.call_id}>"


def rows_of(
    events: Sequence[Event], *, sample: int = 0, task_id: str = "", reward: float | None = None, stop_reason: str = ""
) -> tuple[Row, ...]:
    """The rows of one episode. Calls that were thrown away are left out."""
    outcomes = outcomes_of(events)
    calls = [(turn.record.call, turn) for turn in turns_of(events)]
    made = [(call, turn) for call, turn in calls if call is not None and _is_used(call, outcomes)]
    return tuple(
        Row(
            sample=sample,
            task_id=task_id,
            agent=call.agent,
            call_id=call.id,
            round=call.round,
            request=turn.request,
            reply=turn.record.reply,
            verdict=outcomes[call.id].verdict,
            route=call.route,
            stop_reason=stop_reason,
            reads=call.reads,
            dropped=call.dropped,
            policy=call.policy,
            policy_version=turn.record.policy_version,
            tokens=turn.record.tokens,
            reward=reward,
        )
        for call, turn in sorted(made, key=lambda pair: pair[0].order)
    )


def _is_used(call: CallRecord, outcomes: dict[str, CallOutcome]) -> bool:
    return call.id in outcomes and outcomes[call.id].used
