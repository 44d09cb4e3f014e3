"""How limits and outcomes read."""

import msgspec
import pytest

from outrider.env.sandbox import KillReason, Limits, Outcome


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        (Outcome(exit_code=0), "exit code 0"),
        (Outcome(signal=11), "signal SIGSEGV"),
        (Outcome(signal=9), "signal SIGKILL"),
        (Outcome(signal=63), "signal 63"),
        (Outcome(signal=9, killed_reason=KillReason.MEMORY), "killed: memory"),
    ],
)
def test_an_ending_is_told_in_words(outcome, words):
    assert outcome.ending == words


def test_both_limits_of_time_are_a_timeout():
    for reason in KillReason:
        outcome = Outcome(signal=9, killed_reason=reason)
        assert outcome.timed_out == (reason in {KillReason.WALL_TIME, KillReason.CPU_TIME})
        assert outcome.memory_exceeded == (reason is KillReason.MEMORY)


@pytest.mark.parametrize(
    "wrong", [{"wall_seconds": 0}, {"memory_bytes": 1000}, {"n_processes": 0}, {"n_open_files": 3}, {"memory": 1}]
)
def test_limits_under_which_nothing_runs_are_refused(wrong):
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(wrong, Limits)
