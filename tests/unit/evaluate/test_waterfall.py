"""The picture of a team at work, out of recorded events."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from outrider.core.chat import assistant, user
from outrider.core.event import Event, EventKind
from outrider.core.turn import CALL, RESET, CallOutcome, CallRecord, StepRecord, TurnRecord, to_data
from outrider.evaluate.conversation import EntryKind, entries_of
from outrider.evaluate.markup import call_text
from outrider.evaluate.timeline import Deed, statistics_of, timeline_of
from outrider.evaluate.waterfall import MAX_BARS, MAX_ROWS, profile_html, waterfall

AT = datetime(2025, 6, 1, tzinfo=UTC)
HOSTILE = '</title></svg><script>alert(1)</script><img src=x onerror="alert(2)">'


class Episode:
    """Records what a team does, at the times that tests say."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._n_calls = 0
        self.step(0.5, seconds=0.5, name=RESET)

    def event(self, at: float, kind: EventKind, name: str, data: Any) -> None:
        self.events.append(Event(kind=kind, at=AT + timedelta(seconds=at), name=name, data=data))

    def call(self, agent: str, answered: float, seconds: float, *, told: bool = True, **facts: Any) -> str:
        """A call whose answer came then, after so long with the model; `told`: what became of it is recorded."""
        facts = {"queue_seconds": 0.0, "parse_seconds": 0.0, "verdict": "", "used": True} | facts
        record = {name: facts.pop(name) for name in list(facts) if name in ("round", "reads", "dropped", "route")}
        call = CallRecord(id=f"{agent}.0.{self._n_calls}", agent=agent, order=(self._n_calls,), **record)
        self._n_calls += 1
        turn = TurnRecord(
            kept=0,
            added=(user(f"{agent}, please"),),
            reply=assistant("yes"),
            completion_tokens=7,
            seconds=seconds,
            call=call,
        )
        self.event(answered, EventKind.TURN, agent, to_data(turn))
        if told:
            outcome = CallOutcome(id=call.id, model_seconds=seconds, completion_tokens=7, **facts)
            self.event(answered + facts["parse_seconds"], EventKind.LOG, CALL, to_data(outcome))
        return call.id

    def step(self, ended: float, seconds: float, name: str = "") -> None:
        record = StepRecord(observation=(user("seen"),), seconds=seconds)
        self.event(ended, EventKind.STEP, name, to_data(record))

    def deeds(self) -> tuple[Deed, ...]:
        return timeline_of(self.events)


def bars(svg: str) -> list[ET.Element]:
    return list(ET.fromstring(svg).iter("g"))


def kinds(bar: ET.Element) -> list[str]:
    return [rect.attrib["class"] for rect in bar.iter("rect")]


def lanes(svg: str) -> list[str]:
    return re.findall(r'<text class="name"[^>]*>([^<]*)<', svg)


def example() -> Episode:
    episode = Episode()
    episode.call("info", 2.0, 1.0)
    episode.call("plan", 4.0, 2.0, queue_seconds=1.0, parse_seconds=0.5)
    episode.step(6.0, seconds=1.5)
    first = episode.call("critic", 7.0, 1.0, verdict="reject", used=False)
    episode.call("plan", 9.0, 2.0, round=1, reads=(first,), route="once more")
    return episode


def test_times_come_from_the_events():
    spans = [deed.span for deed in example().deeds()]
    began = AT.timestamp()
    told = [(span.agent, span.began_at - began, span.ended_at - began, span.used) for span in spans]
    assert told == [
        ("info", 1.0, 2.0, True),
        ("plan", 1.0, 4.5, True),
        ("", 4.5, 6.0, True),
        ("critic", 6.0, 7.0, False),
        ("plan", 7.0, 9.0, True),
    ]
    found = statistics_of(example().deeds())
    assert (found.n_calls, found.n_wasted, found.wall.sum, found.own_seconds) == (4, 1, 8.0, 0.0)
    assert [(agent.agent, agent.critical_seconds) for agent in found.agents] == [
        ("info", 0.0),
        ("plan", 5.5),
        ("critic", 1.0),
    ]


def test_each_agent_has_a_lane_in_the_order_of_appearance_and_the_tools_the_last():
    svg = waterfall(example().deeds())
    assert lanes(svg) == ["info", "plan", "critic", "tools"]
    assert "2 calls · 5.5 s" in svg
    assert "1 step · 1.5 s" in svg
    assert [kinds(bar) for bar in bars(svg)] == [
        ["model"],
        ["queue", "model", "parse", "critical"],
        ["model", "critical"],
        ["model", "critical"],
        ["tool", "critical"],
    ]


def test_bars_lie_where_the_time_axis_says():
    svg = waterfall(example().deeds())
    ticks = {text: float(x) for x, text in re.findall(r'<text text-anchor="middle" x="([\d.]+)"[^>]*>([\d.]+) s<', svg)}
    second = (ticks["8"] - ticks["0"]) / 8
    plan = bars(svg)[1]
    queue, model, parse, _ = plan.iter("rect")
    assert float(queue.attrib["x"]) == pytest.approx(ticks["0"], abs=0.1)
    assert float(queue.attrib["width"]) == pytest.approx(second, abs=0.1)
    assert float(model.attrib["width"]) == pytest.approx(2 * second, abs=0.1)
    assert float(parse.attrib["x"]) == pytest.approx(ticks["0"] + 3 * second, abs=0.1)
    assert float(parse.attrib["height"]) < float(model.attrib["height"])


def test_titles_say_what_a_bar_is():
    svg = waterfall(example().deeds())
    titles = ["".join(bar.itertext()) for bar in bars(svg)]
    assert titles[1] == "plan.0.1, round 1\nin line 1 s, model 2 s, parsing 500 ms\n0 → 7 tokens\non the critical path"
    assert "because: once more\nread critic.0.2" in titles[2]
    assert "verdict reject\nnot used" in titles[3]
    assert [bar.attrib["class"] for bar in bars(svg)] == ["deed", "deed", "deed", "deed wasted", "deed"]


def test_what_happens_at_once_in_one_lane_lies_on_rows_of_its_own():
    episode = Episode()
    for number in range(MAX_ROWS + 5):
        episode.call("solver", 5.0 + number / 100, 4.0)
    episode.call("solver", 20.0, 4.0)
    tops = [next(bar.iter("rect")).attrib["y"] for bar in bars(waterfall(episode.deeds()))]
    assert len(set(tops)) == MAX_ROWS
    assert tops[-1] == tops[0]


def test_a_large_team_is_drawn_by_its_longest_calls():
    episode = Episode()
    for number in range(MAX_BARS + 100):
        episode.call("worker", 10.0 * number, 1.0 if number % 4 else 9.0)
    svg = waterfall(episode.deeds())
    assert len(bars(svg)) == MAX_BARS
    assert "100 shorter ones are not drawn" in svg
    assert svg.count("model 9 s") == (MAX_BARS + 100) // 4
    assert len(svg) < 150_000


def test_a_call_of_which_nothing_more_is_told_came_to_nothing():
    episode = Episode()
    episode.call("lost", 2.0, 1.5, told=False)
    (deed,) = episode.deeds()
    assert (deed.span.used, deed.span.seconds, deed.span.completion_tokens) == (False, 1.5, 7)
    (entry,) = [entry for entry in entries_of(episode.events) if entry.call is not None]
    assert entry.call is not None
    assert call_text(entry.call).startswith("lost · round 1 · came to nothing · 1.5 s")


@pytest.mark.parametrize("seconds", [0.0, -5.0, float("inf"), float("nan"), 1e300])
def test_no_times_break_the_picture(seconds: float):
    episode = Episode()
    episode.call("a", 2.0, seconds, queue_seconds=seconds, parse_seconds=0.0)
    episode.step(3.0, seconds=seconds)
    ET.fromstring(waterfall(episode.deeds()))


def test_an_episode_without_a_team_has_no_picture():
    episode = Episode()
    turn = TurnRecord(kept=0, reply=assistant("42"))
    episode.event(1.0, EventKind.TURN, "", to_data(turn))
    episode.event(2.0, EventKind.LOG, CALL, {"id": 3})
    assert profile_html(episode.deeds()) == ""
    assert [entry.kind for entry in entries_of(episode.events)][-1] is EntryKind.LOG


def test_nothing_that_was_named_becomes_markup():
    episode = Episode()
    episode.call(HOSTILE, 2.0, 1.0, verdict=HOSTILE, reads=(HOSTILE,), dropped=(HOSTILE,), route=HOSTILE)
    html = profile_html(episode.deeds())
    assert html.count("&lt;script&gt;alert(1)") >= 5
    for sign in ("<script", "<img", 'onerror="', "url("):
        assert sign not in html


def facts(entries: Sequence[Any]) -> list[str]:
    return [call_text(entry.call) for entry in entries if entry.call is not None]


def test_the_conversation_says_whose_each_turn_is_and_what_came_of_it():
    entries = entries_of(example().events, began_at=AT)
    assert [entry.agent for entry in entries if entry.call is not None] == ["info", "plan", "critic", "plan"]
    assert facts(entries) == [
        "info · round 1 · 1 s · 0 → 7 tokens · stop",
        "plan · round 1 · 2 s · 0 → 7 tokens · stop",
        "critic · round 1 · verdict reject · not used · 1 s · 0 → 7 tokens · stop",
        "plan · round 2 · once more · 2 s · 0 → 7 tokens · stop",
    ]
    assert {entry.kind for entry in entries} == {EntryKind.MESSAGE}


def test_what_did_not_fit_into_an_agents_context_is_said():
    episode = Episode()
    episode.call("reader", 2.0, 1.0, dropped=("a.0.0", "b.0.0"))
    (trimmed,) = [entry for entry in entries_of(episode.events) if entry.kind is EntryKind.TRIMMED]
    assert trimmed.text == "2 earlier replies did not fit into what the agent was shown"
    assert trimmed.data == {"calls": ["a.0.0", "b.0.0"]}
