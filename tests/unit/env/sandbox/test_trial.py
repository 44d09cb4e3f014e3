"""From what two processes left behind to one verdict for each test."""

import pytest

from outrider.core.errors import EnvError
from outrider.env.sandbox import KillReason, Outcome
from outrider.env.sandbox.trial import Verdict, _verdicts

STOPPED = Outcome(signal=9, killed_reason=KillReason.STOPPED)
PASSED = Verdict(passed=True)


def told(*lines: str, **end: object) -> Outcome:
    return Outcome(**{"exit_code": 0, "stdout": "".join(line + "\n" for line in lines).encode(), **end})


def test_each_line_is_a_verdict():
    lines = told('{"loaded": true}', '{"test": "3", "passed": true}', '{"test": "5", "passed": false, "reason": "no"}')
    assert _verdicts([3, 5], lines, STOPPED) == {3: PASSED, 5: Verdict(passed=False, reason="no")}


def test_a_submission_that_cannot_be_used_fails_all_tests():
    lines = told('{"unusable": "SyntaxError: bad"}')
    failed = Verdict(passed=False, reason="SyntaxError: bad")
    assert _verdicts([0, 1], lines, STOPPED) == {0: failed, 1: failed}


def test_how_the_submission_ended_is_told():
    lines = told('{"loaded": true}', '{"test": "0", "passed": false, "reason": "the program has ended"}')
    ended = Outcome(signal=9, killed_reason=KillReason.MEMORY, stderr=b"x\nlast words\n")
    reason = "the program has ended (killed: memory): last words"
    assert _verdicts([0, 1], lines, ended) == {0: Verdict(passed=False, reason=reason)}


def test_a_test_during_which_the_tests_process_ends_has_failed():
    lines = told('{"loaded": true}', '{"test": "0", "passed": true}', '{"test": "1", "pas', exit_code=None, signal=9)
    verdicts = _verdicts([0, 1, 2], Outcome(signal=9, stdout=lines.stdout[:-1]), STOPPED)
    assert verdicts == {0: PASSED, 1: Verdict(passed=False, reason="the test did not end (signal SIGKILL)")}


def test_tests_that_never_ran_are_no_verdict():
    with pytest.raises(EnvError, match=r"exit code 1\): ImportError"):
        _verdicts([0], Outcome(exit_code=1, stderr=b"ImportError"), STOPPED)
