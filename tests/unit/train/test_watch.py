"""What a member is doing, by what was last recorded of it."""

from datetime import UTC, datetime, timedelta

import pytest

from outrider.core.event import EventKind
from outrider.core.ledger import MemberProgress
from outrider.core.machine import AWAITED, BOARDED, WANTED
from outrider.train.driver import HEDGED
from outrider.train.watch import Phase, phase_of, standings_of

START = datetime(2026, 1, 1, tzinfo=UTC)
LATER = START + timedelta(seconds=90)


def progress(kind: EventKind | None, name: str = "", *, granted: bool = False) -> MemberProgress:
    return MemberProgress(
        group_id="g",
        rollout_id="g.0",
        attempt_id="a",
        worker_id="w",
        tag="osworld",
        started_at=START,
        n_events=0 if kind is None else 1,
        last_kind=kind,
        last_name=name,
        last_at=None if kind is None else LATER,
        is_granted=granted,
    )


@pytest.mark.parametrize(
    ("kind", "name", "granted", "phase"),
    [
        (None, "", False, Phase.RESET),
        (EventKind.LOG, WANTED, True, Phase.MACHINE),
        (EventKind.LOG, AWAITED, True, Phase.MACHINE),
        (EventKind.LOG, BOARDED, True, Phase.RESET),
        (EventKind.STEP, "reset", False, Phase.MODEL),
        (EventKind.LOG, "of an agent", True, Phase.MODEL),
        (EventKind.TURN, "", True, Phase.ENV),
        (EventKind.STEP, "", True, Phase.MODEL),
        (EventKind.REWARD, "", True, Phase.SCORE),
    ],
)
def test_the_phase_follows_from_what_was_recorded_last(kind: EventKind | None, name: str, granted: bool, phase: Phase):
    assert phase_of(progress(kind, name, granted=granted)) == (phase, START if kind is None else LATER)


def test_who_waits_for_a_machine_is_named_and_not_started_again():
    (waiting,) = standings_of([progress(EventKind.LOG, AWAITED, granted=True)])
    assert waiting.describe(LATER + timedelta(seconds=7)) == "g.0 (osworld, worker w): waiting for a machine for 7 s"
    assert waiting.phase not in HEDGED
    assert Phase.RESET in HEDGED, "an environment that does not come up on its machine is"
