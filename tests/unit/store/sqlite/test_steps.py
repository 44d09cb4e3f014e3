"""What the writer's desk remembers between transactions is never older than the file."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from outrider.core.errors import LeaseLost
from outrider.core.lifecycle import Signal
from outrider.core.rollout import AttemptedRollout, RolloutRequest
from outrider.store.sqlite.file import connect
from outrider.store.sqlite.steps import SqliteSteps
from outrider.store.steps import Claim, Report, claim_of, new_rollout
from outrider.testing import FakeClock

CLAIM: Claim = claim_of(1, "w", None, None, None)

Desk = Callable[..., Any]


@pytest.fixture
def new_desk(tmp_path: Path) -> Iterator[Callable[[], Desk]]:
    """Desks on one file, each with its own connection as processes have: called, one carries out one call."""
    connections = []

    def make() -> Desk:
        connection = connect(tmp_path / "runs.db", synchronous="normal", create=True, migrate=True)
        connections.append(connection)
        steps = SqliteSteps(connection, FakeClock(), lambda _: lambda: None)

        def carry_out(call: Any, *, commit: bool = True) -> Any:
            connection.execute("BEGIN IMMEDIATE")
            (outcome,) = steps.carry_out([call])
            connection.execute("COMMIT" if commit else "ROLLBACK")
            if commit:
                steps.committed()
            return outcome

        return carry_out

    yield make
    for connection in connections:
        connection.close()


def claimed_by(desk: Desk, **how: bool) -> AttemptedRollout:
    desk(new_rollout(RolloutRequest(input=1)))
    (claimed,) = desk(CLAIM, **how)
    assert isinstance(claimed, AttemptedRollout)
    return claimed


def success(claimed: AttemptedRollout) -> Report:
    attempt = claimed.attempt
    return Report(rollout_id=attempt.rollout_id, attempt_id=attempt.attempt_id, signal=Signal.SUCCEED)


def test_a_claim_that_was_rolled_back_holds_no_lease(new_desk):
    desk = new_desk()
    lost = claimed_by(desk, commit=False)
    assert isinstance(desk(success(lost)), LeaseLost)
    (claimed,) = desk(CLAIM)
    assert claimed.rollout_id == lost.rollout_id
    assert desk(success(claimed)).status == "succeeded"


def test_an_end_that_was_rolled_back_can_be_reported_again_and_leaves_no_gap_in_the_feed(new_desk):
    desk = new_desk()
    first, second = claimed_by(desk), claimed_by(desk)
    desk(success(first), commit=False)
    assert desk(success(first)).status == "succeeded"
    desk(success(second))
    places = desk(lambda steps: steps.connection.execute("SELECT finish_seq FROM rollouts ORDER BY seq").fetchall())
    assert places == [(1,), (2,)]


def test_a_claim_that_another_process_has_taken_away_is_lost_and_feeds_do_not_collide(new_desk):
    one, two = new_desk(), new_desk()
    mine, taken = claimed_by(one), claimed_by(one)
    assert two(lambda steps: steps.cancel([taken.rollout_id])) == (taken.rollout_id,)
    assert isinstance(one(success(taken)), LeaseLost)
    assert one(success(mine)).status == "succeeded"
    again = claimed_by(two)
    assert two(success(again)).status == "succeeded"
    places = two(lambda steps: steps.connection.execute("SELECT finish_seq FROM rollouts ORDER BY seq").fetchall())
    assert places == [(2,), (1,), (3,)]
