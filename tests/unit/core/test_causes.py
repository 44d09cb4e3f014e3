from secrets import token_hex
from uuid import uuid4

import pytest

from outrider.core.attempt import Failure
from outrider.core.causes import MAX_CAUSES, N_FIRST, Cause, Causes, FailFast
from outrider.core.errors import (
    AgentError,
    Boundary,
    EnvError,
    InvalidInput,
    PolicyRefused,
    PolicyUnusable,
    boundary,
)


def failure(message: str = "no module", *, permanent: bool = True, kind: str = "ImportError") -> Failure:
    return Failure(boundary=Boundary.AGENT, kind=kind, message=message, permanent=permanent)


def permanence(error: Exception, stage: str, side: type[AgentError] | type[EnvError] = EnvError) -> bool:
    try:
        with boundary(side, stage):
            raise error
    except (AgentError, EnvError) as exc:
        return Failure.of(exc).permanent


def test_what_another_attempt_cannot_change_is_permanent():
    assert permanence(ModuleNotFoundError("no module named x"), "act", AgentError)
    assert permanence(ValueError("size is banana"), "env.reset")
    assert permanence(InvalidInput("no such tag"), "agent", AgentError)
    assert Failure.of(PolicyRefused("400")).permanent
    assert Failure.of(PolicyUnusable("401")).permanent


def test_what_may_be_due_to_the_models_words_or_to_chance_is_not_permanent():
    assert not permanence(ValueError("not a number"), "act", AgentError)
    assert not permanence(ValueError("not a move"), "env.step")
    assert not permanence(OSError("no display"), "env.reset")
    assert not permanence(UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), "env.reset")


def test_failures_are_grouped_by_their_first_line_whatever_its_numbers():
    causes = Causes()
    for number in range(3):
        causes.add(f"ro-{number}", failure(f"port {4000 + number} is closed\nand more"))
    causes.add("ro-x", failure("out of money"))
    assert causes.most_common() == [
        Cause(boundary="agent", kind="ImportError", message="port 4000 is closed", n=3, example="ro-0"),
        Cause(boundary="agent", kind="ImportError", message="out of money", n=1, example="ro-x"),
    ]


@pytest.mark.parametrize(
    "id",
    [
        lambda: token_hex(8),
        lambda: str(uuid4()),
        lambda: f"req_011{token_hex(12)}",
        lambda: hex(id(object())),
        lambda: f"10.0.0.{token_hex(1)[0]}7:4000".translate({ord(c): "5" for c in "abcdef"}),
    ],
    ids=["hexadecimal", "UUID", "request id", "address", "host and port"],
)
def test_ids_in_a_message_make_no_cause_of_their_own(id):
    causes, rule = Causes(), FailFast()
    for number in range(N_FIRST):
        said = failure(f"400: no such field (request {id()}) for model gpt-4.1, retry in {number * 10.5} s")
        causes.add(f"ro-{number}", said)
        rule.add(said)
    assert [cause.n for cause in causes.most_common()] == [N_FIRST]
    assert rule.reason is not None


def test_messages_that_differ_in_words_stay_apart():
    causes = Causes()
    words = (
        "KeyError: 'size'",
        "KeyError: 'difficulty'",
        "no module named first_module_1",
        "no module named other_module_2",
        "cannot reach alpha.example",
        "cannot reach bravo.example",
        "unsatisfiable",
        "unrecognisable",
    )
    for word in words:
        causes.add("ro", failure(f"{word} (request {token_hex(8)})"))
    assert len(causes.most_common()) == len(words)


def test_a_million_different_messages_take_no_more_memory_than_a_few():
    causes = Causes()
    for number in range(MAX_CAUSES + 7):
        causes.add(f"ro-{number}", failure("x" * number))
    found = causes.most_common()
    assert (len(found), found[-1].n, found[-1].message) == (MAX_CAUSES + 1, 7, "other causes")


class HttpError(Exception):
    def __init__(self, status_code: int) -> None:
        super().__init__(f"Error code: {status_code} - request {token_hex(8)}")
        self.status_code = status_code


class OfAResponse(Exception):
    def __init__(self, status_code: int) -> None:
        super().__init__(f"{status_code} for https://api.example/v1")
        self.response = HttpError(status_code)


@pytest.mark.parametrize("kind", [HttpError, OfAResponse, lambda code: ExceptionGroup("two", [HttpError(code)])])
def test_what_a_server_answers_to_an_agents_own_calls_is_judged_by_its_status(kind):
    assert [permanence(kind(code), "act", AgentError) for code in (400, 401, 403, 404, 429, 500)] == [
        False, True, True, False, False, False,
    ]  # fmt: skip
    assert not permanence(kind(401), "env.step"), "a web page that an agent opens may refuse it"
    for code, stops in ((400, True), (401, True), (403, True), (404, True), (429, False), (500, False)):
        rule = FailFast()
        for _ in range(N_FIRST):
            with pytest.raises(AgentError) as caught, boundary(AgentError, "act"):
                raise kind(code)
            rule.add(Failure.of(caught.value))
        assert (rule.reason is not None) == stops


@pytest.mark.parametrize(("stage", "stops"), [("env.make", True), ("env.reset", True), ("env.step", False)])
def test_a_run_stops_when_its_first_rollouts_cannot_be_set_up_in_the_same_way(stage: str, stops: bool):
    for error in (
        KeyError("size"),
        IndexError("list index out of range"),
        AssertionError(),
        FileNotFoundError("a.png"),
    ):
        rule = FailFast()
        for _ in range(N_FIRST):
            with pytest.raises(EnvError) as caught, boundary(EnvError, stage):
                raise error
            said = Failure.of(caught.value)
            assert not said.permanent, "it is tried again: it may be due to chance"
            rule.add(said)
        assert (rule.reason is not None) == stops


def test_a_run_stops_when_its_first_rollouts_share_a_permanent_failure():
    rule = FailFast()
    reasons = [rule.add(failure("no module 'x'")) for _ in range(N_FIRST)]
    assert reasons[:-1] == [None] * (N_FIRST - 1)
    assert reasons[-1] is not None
    assert "agent: no module 'x'" in reasons[-1]
    assert "--no-fail-fast" in reasons[-1]


def test_one_other_end_shows_that_some_can_succeed():
    for other in (None, failure(permanent=False), failure("something else")):
        rule = FailFast()
        rule.add(failure())
        rule.add(other)
        assert [rule.add(failure()) for _ in range(5)] == [None] * 5
