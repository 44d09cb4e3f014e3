"""Failures that cross processes."""

import pickle
from concurrent.futures import CancelledError

import msgspec
import pytest

from outrider.cluster.failure import Failure
from outrider.core.errors import WorkerDied, WorkerFailed


class NeedsTwo(Exception):
    def __init__(self, one, two):
        super().__init__(one + two)


class Local(Exception):
    pass


def failure_of(error):
    try:
        raise error
    except BaseException as exc:
        return Failure.of("group:0", exc)


def test_an_exception_comes_back_as_itself_with_its_traceback_as_a_note():
    error = failure_of(Local("it broke")).exception()
    assert type(error) is Local
    assert error.args == ("it broke",)
    (note,) = error.__notes__
    assert note.startswith("raised in worker group:0:\nTraceback")
    assert "raise error" in note


@pytest.mark.parametrize(
    ("error", "summary"),
    [
        (NeedsTwo("a", "b"), "NeedsTwo: ab"),
        (SystemExit(3), "SystemExit: 3"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
    ],
)
def test_an_exception_that_cannot_come_back_is_told_in_words(error, summary):
    found = failure_of(error).exception()
    assert type(found) is WorkerFailed
    assert summary in str(found)
    assert "in failure_of" in str(found)


def test_an_exception_that_holds_what_cannot_be_pickled_is_told_in_words():
    error = Local("it broke")
    error.held = (i for i in range(3))
    assert isinstance(failure_of(error).exception(), WorkerFailed)


def test_deaths_and_cancellations_have_their_own_errors():
    assert isinstance(Failure.cancelled("group:1").exception(), CancelledError)
    death = Failure.died("group:1", "killed by SIGKILL").exception()
    assert isinstance(death, WorkerDied)
    assert (death.address, death.cause) == ("group:1", "killed by SIGKILL")


def test_a_failure_survives_pickle_and_msgpack():
    failure = failure_of(Local("it broke"))
    assert pickle.loads(pickle.dumps(failure)) == failure
    told = msgspec.to_builtins(failure, builtin_types=(bytes,))
    assert msgspec.convert(msgspec.msgpack.decode(msgspec.msgpack.encode(told)), Failure) == failure
