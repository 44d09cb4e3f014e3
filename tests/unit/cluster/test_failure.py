"""Failures that cross processes."""

import json
import pickle
import sys
from concurrent.futures import CancelledError
from types import ModuleType

import msgspec
import pytest

from outrider.cluster.failure import Failure
from outrider.cluster.post.error_data import ErrorData
from outrider.core.errors import CallLate, InvalidInput, LeaseLost, OutriderError, WorkerDied, WorkerFailed


class NeedsTwo(Exception):
    def __init__(self, one, two):
        super().__init__(one + two)
        self.both = [one, two]


class Local(Exception):
    pass


class Outer:
    class Inner(Exception):
        pass


def failure_of(error):
    try:
        raise error
    except BaseException as exc:
        return Failure.of("group:0", exc)


def after_a_journey(failure):
    told = msgspec.to_builtins(failure, builtin_types=(bytes,))
    return msgspec.convert(msgspec.msgpack.decode(msgspec.msgpack.encode(told)), Failure)


def test_an_exception_comes_back_as_itself_with_its_traceback_as_a_note():
    error = after_a_journey(failure_of(Local("it broke", 3))).exception()
    assert type(error) is Local
    assert error.args == ("it broke", 3)
    (note,) = error.__notes__
    assert note.startswith("raised in worker group:0:\nTraceback")
    assert "raise error" in note


@pytest.mark.parametrize(
    "error",
    [
        KeyError("no such thing"),
        FileNotFoundError(2, "No such file", "/there"),
        json.JSONDecodeError("what is this", "{]", 1),
        NeedsTwo("a", "b"),
        Outer.Inner("inside"),
        InvalidInput("not this"),
        LeaseLost("rollout-1", "attempt-2", "it expired"),
        WorkerDied("group:1", "it fell"),
        CallLate("too late"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_classes_that_both_sides_know_come_back_with_what_they_say_and_hold(error):
    found = after_a_journey(failure_of(error)).exception()
    assert type(found) is type(error)
    assert (str(found), found.args) == (str(error), error.args)
    del found.__notes__
    assert vars(found) == vars(error)


@pytest.mark.parametrize(
    ("error", "summary"),
    [
        (SystemExit(3), "SystemExit: 3"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (ValueError(object), "ValueError: <class 'object'>"),
        (KeyError((1, 2)), "KeyError: (1, 2)"),
        (ExceptionGroup("several", [ValueError(1)]), "ExceptionGroup: several"),
    ],
)
def test_an_exception_that_would_not_come_back_the_same_is_told_in_words(error, summary):
    found = after_a_journey(failure_of(error)).exception()
    assert type(found) is WorkerFailed
    assert summary in str(found)
    assert "in failure_of" in str(found)


def test_an_attribute_that_is_not_plain_data_stays_behind():
    error = Local("it broke")
    error.held, error.code = (i for i in range(3)), 7
    found = after_a_journey(failure_of(error)).exception()
    assert (type(found), found.code, hasattr(found, "held")) == (Local, 7, False)


def test_a_class_that_this_process_has_not_loaded_is_told_by_its_name():
    module = ModuleType("far_away")
    sys.modules["far_away"] = module
    try:
        module.Rare = type("Rare", (Exception,), {"__module__": "far_away"})
        failure = failure_of(module.Rare("seldom"))
    finally:
        del sys.modules["far_away"]
    found = failure.exception()
    assert type(found) is WorkerFailed
    assert "raised far_away.Rare: seldom" in str(found)


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("os", "system"),
        ("builtins", "eval"),
        ("builtins", "SystemExit"),
        ("subprocess", "Popen"),
        ("outrider.cluster.failure", "Failure"),
        ("outrider.core.errors", "OutriderError.mro"),
        ("outrider.core.errors", "asyncio.CancelledError"),
        ("http.server", "BaseHTTPRequestHandler"),
        ("nowhere", "Error"),
        ("", ""),
    ],
)
def test_what_is_told_as_an_error_can_name_nothing_but_a_loaded_exception(module, name, tmp_path):
    loaded = set(sys.modules)
    told = ErrorData(module, name, "as a test", [f"touch {tmp_path}/ran"])
    assert told.exception() is None
    assert not list(tmp_path.iterdir())
    assert set(sys.modules) == loaded


def test_a_class_is_made_again_without_its_init():
    class Careless(OutriderError):
        pass

    calls = []
    Careless.__init__ = lambda self, *args: calls.append(args)
    sys.modules[__name__].Careless = Careless
    Careless.__qualname__ = "Careless"
    try:
        assert type(ErrorData(__name__, "Careless", "x", ["x"]).exception()) is Careless
    finally:
        del sys.modules[__name__].Careless
    assert calls == []


def test_deaths_and_cancellations_have_their_own_errors():
    assert isinstance(Failure.cancelled("group:1").exception(), CancelledError)
    death = Failure.died("group:1", "killed by SIGKILL").exception()
    assert isinstance(death, WorkerDied)
    assert (death.address, death.cause) == ("group:1", "killed by SIGKILL")


def test_a_failure_survives_pickle_and_msgpack():
    failure = failure_of(Local("it broke"))
    assert pickle.loads(pickle.dumps(failure)) == failure
    assert after_a_journey(failure) == failure
