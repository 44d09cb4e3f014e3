import itertools

import pytest

from outrider.core.lifecycle import ALLOWED, ATTEMPT_AFTER, REPORTED, IllegalMove, Move, Signal, advance
from outrider.core.rollout import RolloutConfig
from outrider.core.status import FINAL, LIVE, QUEUED, AttemptStatus, RolloutStatus

CONFIG = RolloutConfig(max_attempts=2)


def test_every_signal_has_its_place_in_the_tables():
    assert set(ALLOWED) == set(ATTEMPT_AFTER) == set(Signal)


@pytest.mark.parametrize(("status", "signal"), list(itertools.product(RolloutStatus, Signal)))
def test_the_table_of_moves(status: RolloutStatus, signal: Signal):
    expected = {
        Signal.CLAIM: ({"queuing", "requeuing"}, "preparing", "preparing"),
        Signal.RUN: ({"preparing", "running"}, "running", "running"),
        Signal.SUCCEED: ({"preparing", "running"}, "succeeded", "succeeded"),
        Signal.FAIL: ({"preparing", "running"}, "requeuing", "failed"),
        Signal.GIVE_UP: ({"preparing", "running"}, "failed", "failed"),
        Signal.TIME_OUT: ({"preparing", "running"}, "requeuing", "timeout"),
        Signal.LOSE: ({"preparing", "running"}, "requeuing", "unresponsive"),
        Signal.HAND_BACK: ({"preparing", "running"}, "requeuing", "cancelled"),
        Signal.CANCEL: ({"queuing", "requeuing", "preparing", "running"}, "cancelled", "cancelled"),
    }
    allowed, rollout, attempt = expected[signal]
    if status not in allowed:
        with pytest.raises(IllegalMove, match=f"{signal}.*{status}"):
            advance(status, signal, n_failures=0, config=CONFIG)
        return
    move = advance(status, signal, n_failures=0, config=CONFIG)
    n_failures = int(signal in {Signal.FAIL, Signal.GIVE_UP, Signal.TIME_OUT, Signal.LOSE})
    assert move == Move(RolloutStatus(rollout), AttemptStatus(attempt), n_failures)


@pytest.mark.parametrize("signal", [Signal.FAIL, Signal.TIME_OUT, Signal.LOSE])
def test_a_failure_ends_the_rollout_when_no_attempt_is_left_or_it_is_not_retried(signal: Signal):
    assert advance(RolloutStatus.RUNNING, signal, n_failures=1, config=CONFIG).rollout is RolloutStatus.FAILED
    others = {"failed", "timeout", "unresponsive"} - {ATTEMPT_AFTER[signal]}
    picky = RolloutConfig(retry_condition=others)
    assert advance(RolloutStatus.RUNNING, signal, n_failures=0, config=picky).rollout is RolloutStatus.FAILED


def test_a_rollout_is_queued_live_or_final():
    assert sorted([*QUEUED, *LIVE, *FINAL]) == sorted(RolloutStatus)
    for status in RolloutStatus:
        assert [status.is_queued, status.is_live, status.is_final].count(True) == 1
        move = Move(status, AttemptStatus.RUNNING, 0)
        assert (move.requeues, move.is_live, move.ends) == (status.is_queued, status.is_live, status.is_final)


def test_a_worker_may_report_all_but_what_only_the_store_knows():
    assert set(AttemptStatus) - set(REPORTED) == {AttemptStatus.PREPARING, AttemptStatus.UNRESPONSIVE}
    assert {status for status in AttemptStatus if status.is_live} == {AttemptStatus.PREPARING, AttemptStatus.RUNNING}
