"""What claims, counts and lists cost in SQLite does not grow with other rows: in steps of its virtual machine."""

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from many_rollouts import Many, fill_sqlite
from outrider.core.status import Mode, RolloutStatus
from outrider.store.sqlite import reads
from outrider.store.sqlite.file import connect
from outrider.store.sqlite.steps import SqliteSteps
from outrider.store.steps import RolloutQuery, claim_of
from outrider.testing import FakeClock

Opened = Callable[[Many], SqliteSteps]

FEW_STEPS = 10_000
"""Far less than a look at each of 50,000 rollouts takes."""


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    connections: list[sqlite3.Connection] = []

    def make(many: Many) -> SqliteSteps:
        path = tmp_path / f"{len(connections)}.db"
        fill_sqlite(path, many)
        connections.append(connect(path, synchronous="normal", create=False, migrate=True))
        steps = SqliteSteps(connections[-1], FakeClock(), lambda _: lambda: None)
        while not steps.tally():
            pass
        return steps

    yield make
    for connection in connections:
        connection.close()


def steps_of(connection: sqlite3.Connection, call: Callable[[], Any]) -> int:
    """How many steps SQLite takes for a call."""
    n = 0

    def count() -> None:
        nonlocal n
        n += 1

    connection.set_progress_handler(count, 1)
    try:
        call()
    finally:
        connection.set_progress_handler(None, 0)
    return n


@pytest.mark.parametrize(
    "filters",
    [
        {"tags": None, "mode": None},
        {"tags": None, "mode": "train"},
        {"tags": ["tag-3", "tag-1"], "mode": None},
        {"tags": [f"tag-{n}" for n in range(2000)], "mode": None},
    ],
)
def test_a_claim_costs_the_same_with_ten_tags_and_with_two_thousand(opened: Opened, filters: dict[str, Any]):
    claim = claim_of(4, "w", request_id=None, **filters)
    few, many = (opened(Many(n_ended=0, n_queued=4000, n_tags=n)) for n in (10, 2000))
    costs = [steps_of(desk.connection, lambda desk=desk: desk.carry_out([claim])) for desk in (few, many)]
    assert costs[1] < costs[0] * 1.2 + 500


def test_counts_and_lists_do_not_look_at_what_has_ended(opened: Opened):
    db = opened(Many(n_ended=50_000, n_queued=2000)).connection
    assert steps_of(db, lambda: reads.statistics(db, 0.0)) < FEW_STEPS
    for status in (None, *RolloutStatus):
        for mode in (None, Mode.TRAIN, Mode.VAL):
            for tag in (None, "tag-3", "nowhere"):
                for sort_by in ("enqueued_at", "ended_at"):
                    statuses = None if status is None else (status,)
                    query = RolloutQuery(statuses=statuses, mode=mode, tag=tag, sort_by=sort_by, limit=20)
                    of_tag_by_end = tag == "tag-3" and sort_by == "ended_at"  # sorted from the index
                    n = steps_of(db, lambda query=query: reads.rollouts(db, query))
                    assert n < (60_000 if of_tag_by_end else FEW_STEPS), query


def test_lists_go_by_the_indexes_made_for_them(opened: Opened):
    db = opened(Many(n_ended=2000, n_queued=200)).connection
    indexes = set()
    for statuses in (None, *((status,) for status in RolloutStatus)):
        for tag in (None, "tag-3"):
            for sort_by in ("enqueued_at", "ended_at"):
                ran: list[str] = []
                db.set_trace_callback(ran.append)
                reads.rollouts(db, RolloutQuery(statuses=statuses, mode=Mode.TRAIN, tag=tag, sort_by=sort_by, limit=5))
                db.set_trace_callback(None)
                plans = [step for sql in ran for (*_, step) in db.execute(f"EXPLAIN QUERY PLAN {sql}")]
                scans = [step for step in plans if step.startswith("SCAN ")]
                assert all(
                    "INDEX rollouts_" in step or step.startswith(("SCAN k", "SCAN p", "SCAN t")) for step in scans
                )
                indexes |= {word for step in plans for word in step.split() if word.startswith("rollouts_")}
    assert indexes >= {
        "rollouts_waiting",
        "rollouts_lanes",
        "rollouts_ended",
        "rollouts_ended_last",
        "rollouts_ended_by_tag",
    }


def test_a_rollout_that_waits_may_get_another_mode_or_tag(opened: Opened):
    db = opened(Many(n_ended=0, n_queued=100)).connection

    def counted() -> dict[str, int]:
        tags = {
            tag: reads.counts(db, tag).by_status()[RolloutStatus.QUEUING] for tag in (None, "tag-1", "tag-2", "new")
        }
        return {str(tag): n for tag, n in tags.items()}

    def plain() -> dict[str, int]:
        count = "SELECT count(*) FROM rollouts WHERE coalesce(?1, tag) IS tag OR ?1 IS NULL"
        return {str(tag): db.execute(count, (tag,)).fetchone()[0] for tag in (None, "tag-1", "tag-2", "new")}

    assert counted() == plain()
    for changed in ("tag = 'tag-2'", "tag = NULL", "tag = 'new', mode = 'test'", "mode = 'val'"):
        db.execute(f"UPDATE rollouts SET {changed} WHERE tag IN ('tag-1', 'new') AND seq % 3 = 0")
        assert counted() == plain()
