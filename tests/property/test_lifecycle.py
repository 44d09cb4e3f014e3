"""Whatever happens to a rollout, in whatever order: it never leaves a final state, and every path ends."""

from hypothesis import given
from hypothesis import strategies as st

from outrider.core.lifecycle import ALLOWED, Signal, advance
from outrider.core.rollout import RETRYABLE, RolloutConfig
from outrider.core.status import AttemptStatus, RolloutStatus

configs = st.builds(
    RolloutConfig,
    max_attempts=st.integers(1, 5),
    retry_condition=st.frozensets(st.sampled_from(sorted(RETRYABLE))),
    timeout_seconds=st.none() | st.floats(0.1, 1e6),
)
FAILURES = {Signal.FAIL, Signal.GIVE_UP, Signal.TIME_OUT, Signal.LOSE}


@given(configs, st.lists(st.sampled_from(Signal), max_size=60))
def test_a_rollout_walks_only_along_the_table(config: RolloutConfig, signals: list[Signal]):
    status, n_failures, final = RolloutStatus.QUEUING, 0, None
    for signal in signals:
        if status not in ALLOWED[signal]:
            continue
        assert final is None, "a final state was left"
        move = advance(status, signal, n_failures=n_failures, config=config)
        assert move.n_failures == n_failures + (signal in FAILURES)
        assert move.n_failures <= config.max_attempts
        assert [move.ends, move.requeues, move.is_live].count(True) == 1
        if move.is_live:
            assert move.attempt == AttemptStatus(move.rollout)
        if move.requeues and signal in FAILURES:
            assert move.attempt in config.retry_condition
        status, n_failures = move.rollout, move.n_failures
        final = status if move.ends else None


@given(configs, st.data())
def test_every_path_of_failures_ends(config: RolloutConfig, data: st.DataObject):
    status, n_failures, n_claims = RolloutStatus.QUEUING, 0, 0
    while not status.is_final:
        status = advance(status, Signal.CLAIM, n_failures=n_failures, config=config).rollout
        n_claims += 1
        move = advance(status, data.draw(st.sampled_from(sorted(FAILURES))), n_failures=n_failures, config=config)
        status, n_failures = move.rollout, move.n_failures
    assert status is RolloutStatus.FAILED
    assert n_claims == n_failures <= config.max_attempts
