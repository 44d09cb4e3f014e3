"""Turns that hold only what is new unfold to exactly what the model was shown."""

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from outrider.core import wire
from outrider.core.chat import Image, Message, Role, ToolCall, assistant, system, tool_result, user
from outrider.core.event import Event, EventKind
from outrider.core.turn import RESET, StepRecord, Transcript, TurnRecord, step_of, to_data, turn_of, turns_of

NOW = datetime(2026, 1, 1, tzinfo=UTC)
CALL = ToolCall(id="c1", name="search", arguments='{"query": "x"}')

messages = st.builds(
    Message,
    role=st.sampled_from([Role.USER, Role.TOOL, Role.SYSTEM]),
    content=st.text(max_size=5),
    images=st.tuples() | st.tuples(st.builds(Image, data=st.binary(max_size=4))),
)
conversations = st.lists(
    st.one_of(
        st.tuples(st.just("observe"), st.lists(messages, max_size=3)),
        st.tuples(st.just("ask"), st.just(())),
        st.tuples(st.just("ask trimmed"), st.integers(0, 3)),
        st.tuples(st.just("ask anew"), st.lists(messages, max_size=2)),
    ),
    max_size=12,
)


def event(kind: EventKind, record: TurnRecord | StepRecord, name: str = "") -> Event:
    data = wire.decode(wire.encode(to_data(record)))  # as the store gives it back
    return Event(kind=kind, at=NOW, name=name, data=data)


@given(conversations)
def test_whatever_an_agent_asks_its_turns_unfold_to_it(acts: list[tuple[str, object]]):
    transcript, shown, events, requests = Transcript(), [], [], []
    for number, (act, argument) in enumerate(acts):
        if act == "observe":
            shown += argument
            transcript.extend(argument)
            events.append(event(EventKind.STEP, StepRecord(observation=tuple(argument))))
            continue
        if act == "ask trimmed":
            del shown[1 : 1 + argument]
        elif act == "ask anew":
            shown = list(argument)
        request, reply = tuple(shown), assistant(f"reply {number}")
        kept, added = transcript.ask(request)
        transcript.extend([reply])
        events.append(event(EventKind.TURN, TurnRecord(kept=kept, added=added, reply=reply)))
        requests.append(request)
        shown.append(reply)

    assert [turn.request for turn in turns_of(events)] == requests


def test_a_turn_that_goes_on_from_what_was_recorded_records_nothing_again():
    transcript = Transcript()
    opening = (system("rules"), user("play"))
    transcript.extend(opening)
    assert transcript.ask(opening) == (2, ())
    reply = assistant(tool_calls=(CALL,))
    answer = tool_result(CALL, "found")
    transcript.extend([reply])
    transcript.extend([answer])
    assert transcript.ask((*opening, reply, answer)) == (4, ())


def test_records_come_back_from_the_wire_as_they_were():
    turn = TurnRecord(
        kept=3,
        added=(user("look", (Image(data=b"\x89PNG"),)),),
        reply=assistant("", (CALL,)),
        tokens={"completion_ids": b"\x01\x00\x00\x00"},
        seconds=0.25,
    )
    step = StepRecord(observation=(user("ok"),), reward=-0.1, truncated=True, info={"n": 1})
    assert turn_of(event(EventKind.TURN, turn)) == turn
    assert step_of(event(EventKind.STEP, step, RESET)) == step
