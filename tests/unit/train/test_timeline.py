"""Slots over time: from what attempts recorded to bars, lanes and a page."""

import json
import re
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from outrider.core.attempt import Attempt
from outrider.core.event import EventKind, RecordedEvent
from outrider.core.machine import AWAITED, BOARDED, WANTED
from outrider.core.rollout import Rollout, RolloutConfig
from outrider.core.status import AttemptStatus, Mode, RolloutStatus
from outrider.train.timeline import Bar, Mark, MarkKind, Stay, Timeline, in_lanes, merged, stay_of
from outrider.train.timeline_page import data_of, page_of
from outrider.train.watch import Phase

START = datetime(2026, 1, 1, tzinfo=UTC)
MACHINE, RESET, HELD, MODEL, ENV, SCORE = Phase


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def rollout(**changes: Any) -> Rollout:
    fields: dict[str, Any] = {
        "rollout_id": "train-0.1",
        "input": None,
        "status": RolloutStatus.SUCCEEDED,
        "mode": Mode.TRAIN,
        "tag": "FrozenLake",
        "seed": 1,
        "group_id": "train-0",
        "priority": 0,
        "config": RolloutConfig(),
        "metadata": {},
        "enqueued_at": START,
    }
    return Rollout(**{**fields, **changes})


def attempt(status: AttemptStatus, ended: float | None) -> Attempt:
    return Attempt(
        rollout_id="train-0.1",
        attempt_id="at-1",
        sequence_id=1,
        worker_id="0@here:1",
        status=status,
        started_at=START,
        ended_at=None if ended is None else at(ended),
        last_heartbeat_at=START,
        lease_expires_at=None,
    )


def events(*described: tuple[EventKind, float, float]) -> list[RecordedEvent]:
    """Kind, when it ended, how long it took; a step at first is the reset."""
    found = []
    for index, (kind, ended, seconds) in enumerate(described):
        name = "reset" if kind is EventKind.STEP and index == 0 else ""
        data: dict[str, Any] = {"seconds": seconds}
        if kind is EventKind.TURN:
            data["policy_version"] = 3 + index
        found.append(
            RecordedEvent(
                kind=kind, at=at(ended), name=name, data=data, rollout_id="train-0.1", attempt_id="at-1", index=index
            )
        )
    return found


TURN, STEP, REWARD, LOG = EventKind.TURN, EventKind.STEP, EventKind.REWARD, EventKind.LOG
WHOLE = ((STEP, 1, 0.8), (TURN, 5, 3), (STEP, 6, 1), (TURN, 8, 2), (STEP, 9, 1), (REWARD, 9.5, 0))


@pytest.mark.parametrize(
    ("status", "ended", "described", "phases"),
    [
        (
            AttemptStatus.SUCCEEDED,
            10,
            WHOLE,
            [(RESET, 1), (HELD, 2), (MODEL, 5), (ENV, 6), (MODEL, 8), (ENV, 9), (SCORE, 10)],
        ),
        (AttemptStatus.FAILED, 300, (), [(RESET, 300)]),
        (AttemptStatus.CANCELLED, 4, WHOLE[:1], [(RESET, 1), (HELD, 4)]),
        (AttemptStatus.TIMEOUT, 60, WHOLE[:2], [(RESET, 1), (HELD, 2), (MODEL, 5), (ENV, 60)]),
        (AttemptStatus.RUNNING, None, WHOLE[:3], [(RESET, 1), (HELD, 2), (MODEL, 5), (ENV, 6), (MODEL, 20)]),
    ],
)
def test_an_attempt_is_an_unbroken_run_of_bars(
    status: AttemptStatus,
    ended: float | None,
    described: tuple[tuple[EventKind, float, float], ...],
    phases: list[tuple[Phase, float]],
):
    stay = stay_of(rollout(), attempt(status, ended), events(*described), now=at(20))
    assert [(bar.phase, bar.ended) for bar in stay.bars] == phases
    assert stay.bars[0].began == 0
    assert all(before.ended == after.began for before, after in pairwise(stay.bars))
    assert stay.version == (4 if len(described) > 1 else None)


def test_a_wait_before_a_later_call_is_a_wait_for_leave_too():
    described = (*WHOLE[:3], (TURN, 12, 2))
    stay = stay_of(rollout(), attempt(AttemptStatus.RUNNING, None), events(*described), now=at(12))
    assert [(bar.phase, bar.began, bar.ended) for bar in stay.bars[4:6]] == [(HELD, 6, 10), (MODEL, 10, 12)]


def test_the_wait_for_a_machine_is_a_bar_of_its_own_and_no_work():
    described = ((LOG, 1, 0), (LOG, 11, 0), (LOG, 41, 0), (STEP, 43, 2), (TURN, 46, 3), (LOG, 47, 0))
    names = (WANTED, AWAITED, BOARDED, "reset", "", "machine")
    recorded = [msgspec.structs.replace(one, name=name) for one, name in zip(events(*described), names, strict=True)]
    found = stay_of(rollout(), attempt(AttemptStatus.SUCCEEDED, 50), recorded, now=at(50))
    assert [(bar.phase, bar.ended) for bar in found.bars] == [
        (RESET, 1), (HELD, 11), (MACHINE, 41), (RESET, 43), (MODEL, 46), (SCORE, 50),
    ]  # fmt: skip
    timeline = Timeline(began_at=START, ended_at=at(50), stays=(found,), marks=())
    assert timeline.slot_seconds().at_work == pytest.approx(10 / 50)
    assert "waits for a machine" in page_of(timeline, title="t")
    assert "waits for a machine" not in page_of(Timeline(began_at=START, ended_at=at(1), stays=(), marks=()), title="t")


def stay(began: float, seconds: float, *, worker: str = "0@here:1", phase: Phase = MODEL, number: int = 0) -> Stay:
    return Stay(
        rollout_id=f"train-{number}.0",
        group_id=f"train-{number}",
        tag="FrozenLake",
        worker_id=worker,
        status=AttemptStatus.SUCCEEDED,
        version=0,
        began_at=at(began),
        bars=(Bar(phase, 0.0, seconds),),
    )


def test_an_attempt_gets_the_lowest_free_lane_of_its_worker():
    stays = [stay(0, 10), stay(0, 2), stay(1, 1), stay(2, 3), stay(2, 3), stay(6, 1), stay(0, 1, worker="1@here:2")]
    placed = [(one.worker_id, one.began_at, one.lane) for one in in_lanes(stays)]
    assert [lane for worker, _, lane in placed if worker == "0@here:1"] == [0, 1, 2, 1, 2, 1]
    assert [lane for worker, _, lane in placed if worker == "1@here:2"] == [0]


def timeline(*stays: Stay, marks: tuple[Mark, ...] = (), seconds: float = 10.0) -> Timeline:
    return Timeline(began_at=START, ended_at=at(seconds), stays=tuple(in_lanes(stays)), marks=marks)


def test_the_time_of_all_slots_is_divided_among_phases_and_idleness():
    spent = timeline(stay(0, 10), stay(0, 4, phase=HELD), stay(8, 2, phase=ENV)).slot_seconds()
    assert {phase: seconds for phase, seconds in spent.by_phase.items() if seconds} == {MODEL: 10, HELD: 4, ENV: 2}
    assert (spent.idle, spent.total) == (4, 20)
    assert (spent.occupancy, spent.at_work) == (0.8, pytest.approx(0.6))


def test_a_worker_that_is_gone_does_not_count_as_idle():
    assert timeline(stay(0, 4), stay(6, 4, worker="0@here:2")).slot_seconds().idle == 0
    assert timeline().slot_seconds().occupancy == 0


def test_thin_bars_become_one_in_the_phase_that_has_most_of_their_time():
    bars = [Bar(RESET, 0, 2), Bar(MODEL, 2, 2.3), Bar(ENV, 2.3, 2.4), Bar(MODEL, 2.4, 3.2), Bar(SCORE, 3.2, 3.3)]
    assert merged(bars, 0.0) == bars
    assert merged(bars, 1.0) == [Bar(RESET, 0, 2), Bar(MODEL, 2, 3.2), Bar(SCORE, 3.2, 3.3)]
    assert merged(bars, 100.0) == [Bar(RESET, 0, 3.3)]


class Page(HTMLParser):
    """What a browser would find: the texts outside of scripts, the data, and where anything is loaded from."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.scripts: list[str] = []
        self.texts: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        (self.scripts if self.cdata_elem == "script" else self.texts).append(data)

    @property
    def data(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.scripts[0])
        return found


NASTY = "</script><script>alert(1)</script><img src=x onerror=alert(1)>"


def test_the_page_shows_what_came_from_outside_as_text_only():
    nasty = Stay(
        rollout_id=NASTY, group_id=NASTY, tag=NASTY, worker_id=NASTY, status=AttemptStatus.SUCCEEDED, version=1,
        began_at=START, bars=(Bar(MODEL, 0, 1),),
    )  # fmt: skip
    page = Page(page_of(timeline(nasty), title=NASTY, facts={NASTY: NASTY}))
    assert page.tags.count("script") == len(page.scripts) == 2
    assert "img" not in page.tags
    assert [page.data[name] for name in ("workers", "groups", "tags")] == [[NASTY]] * 3
    assert page.data["attempts"][0][2] == NASTY
    assert [text.strip() for text in page.texts].count(NASTY) == 4  # the title twice, a fact and its name
    assert not [value for name, value in page.attributes if name in {"src", "href"}]
    assert "default-src 'none'" in dict(page.attributes)["content"]


def test_the_page_holds_the_slots_the_marks_and_a_summary():
    marks = (
        Mark(kind=MarkKind.DELIVERED, at=at(4), batch=0, label="batch 0"),
        Mark(kind=MarkKind.PUBLISHED, at=at(6), batch=0, label="v1"),
        Mark(kind=MarkKind.DELIVERED, at=at(9), batch=1, label="batch 1"),
    )
    shown = timeline(stay(0, 4), stay(0, 3, number=1), stay(6, 4, number=2), marks=marks)
    page = Page(page_of(shown, title="a run"))
    data = page.data
    assert (data["span"], data["rows"], data["workers"]) == (10_000, [0, 0], ["0@here:1"])
    assert [row[:3] for row in data["attempts"]] == [
        [0, 0, "train-0.0"],
        [1, 0, "train-1.0"],
        [0, 6000, "train-2.0"],
    ]
    assert data["attempts"][2][7] == [data["phases"].index("model"), 4000]
    assert data["marks"] == [[4000, "delivered", "batch 0"], [6000, "published", "v1"], [9000, "delivered", "batch 1"]]
    assert data["training"] == [[4000, 6000, "training on batch 0"], [9000, 10_000, "training on batch 1"]]
    text = " ".join(page.texts)
    assert "55.0%" in text  # 11 of 20 slot-seconds
    assert all(phase in text for phase in (*Phase, "idle", "batch delivered", "version published"))


def test_a_page_of_twenty_steps_of_256_rollouts_stays_small_and_keeps_every_attempt():
    bars = []
    for number in range(20):
        bars += [Bar(MODEL, number, number + 0.9), Bar(ENV, number + 0.9, number + 1)]
    stays = [
        Stay(
            rollout_id=f"train-{number // 8}.{number % 8}", group_id=f"train-{number // 8}", tag="FrozenLake",
            worker_id=f"{number % 4}@here:{number % 4}", status=AttemptStatus.SUCCEEDED, version=number // 256,
            began_at=at(20.5 * (number // 256)), bars=tuple(bars),
        )
        for number in range(20 * 256)
    ]  # fmt: skip
    whole = timeline(*stays, seconds=410)
    assert whole.n_slots == 256
    assert len(page_of(whole, title="large")) < 3_000_000
    thinned = data_of(whole, max_bars=10_000)["attempts"]
    assert len(thinned) == len(stays)
    assert sum(len(row[7]) // 2 for row in thinned) <= 10_000
    assert {sum(row[7][1::2]) for row in thinned} == {20_000}


def test_what_was_left_out_is_told():
    shown = timeline(stay(0, 4))
    left_out = Timeline(began_at=START, ended_at=at(4), stays=shown.stays, marks=(), n_left_out=1234)
    assert re.search("1,234 before them are not", page_of(left_out, title="long"))
    assert "are not" not in page_of(shown, title="short")
