"""The handle of a group's call: outcomes, deaths that only the directory knows, and deadlines."""

import asyncio
from concurrent.futures import Future

import pytest

from outrider.cluster.calls import Call, Flight, Member
from outrider.cluster.failure import Failure
from outrider.core.errors import CallLate, WorkerDied


class ScriptedCaller:
    """Its tokens are futures that the test completes; `quick` is what the engine's own way of waiting gives."""

    def __init__(self, quick=None):
        self.quick = quick
        self.cancelled = []
        self.waited_seconds = []

    def gather(self, tokens, seconds):
        self.waited_seconds.append(seconds)
        return self.quick

    def future(self, token):
        return token

    def cancel(self, token):
        self.cancelled.append(token)


def called(n, caller, *, timeout_seconds=5.0):
    flight = Flight("group", caller, asyncio.new_event_loop(), 30.0, timeout_seconds)
    members = [Member(f"group:{rank}", rank, None) for rank in range(n)]
    tokens = [Future() for _ in members]
    return Call(flight, "method", members, tokens), flight, members, tokens


@pytest.fixture(autouse=True)
def _loops_are_closed(monkeypatch):
    made = []
    new = asyncio.new_event_loop
    monkeypatch.setattr(asyncio, "new_event_loop", lambda: made.append(new()) or made[-1])
    yield
    for loop in made:
        loop.close()


def test_the_engines_own_way_of_waiting_is_enough_when_all_end_well():
    caller = ScriptedCaller(quick=[1, ValueError("a value, not a failure")])
    call, *_ = called(2, caller)
    results = call.wait()
    assert results[0] == 1
    assert isinstance(results[1], ValueError)
    assert call.wait() == results
    assert caller.waited_seconds == [1.0]
    assert call.done()


def test_a_death_that_the_engine_has_not_noticed_is_the_outcome_of_its_rank():
    call, flight, members, tokens = called(3, ScriptedCaller())
    assert not call.done()
    flight.lose(members[1], "its node is gone")
    tokens[0].set_result("a")
    tokens[2].set_result("c")
    assert [str(result) for result in call.wait(1.0, return_exceptions=True)] == [
        "a",
        "worker group:1 is gone: its node is gone",
        "c",
    ]
    tokens[1].set_result("too late")
    with pytest.raises(WorkerDied):
        call.wait()


def test_a_call_of_a_worker_that_was_dead_before_does_not_have_the_engine_wait():
    caller = ScriptedCaller()
    call, flight, (member,), _ = called(1, caller)
    flight.lose(member, "it was killed")
    with pytest.raises(WorkerDied, match="it was killed"):
        call.wait(1.0)
    assert caller.waited_seconds == [0.0]


def test_an_answer_that_came_before_the_death_counts():
    call, flight, (member,), (token,) = called(1, ScriptedCaller())
    token.set_result("in time")
    flight.lose(member, "it was killed")
    assert call.wait(1.0) == ["in time"]


def test_the_cluster_bounds_a_wait_without_a_deadline():
    call, _, _, tokens = called(2, ScriptedCaller(), timeout_seconds=0.01)
    tokens[1].set_result(1)
    with pytest.raises(CallLate, match=r"method\(\) of group: rank 0 has not answered within 0.01 s"):
        call.wait()


def test_the_lowest_rank_that_failed_is_raised_and_names_the_others_once():
    call, _, _, tokens = called(6, ScriptedCaller())
    for rank in range(1, 6):
        tokens[rank].set_result(Failure.of(f"group:{rank}", ValueError(str(rank))))
    tokens[0].set_result(0)
    for _ in range(2):
        with pytest.raises(ValueError, match="1") as caught:
            call.wait(1.0)
    assert caught.value.args == ("1",)
    own, others = caught.value.__notes__
    assert own.startswith("raised in worker group:1:")
    assert others == (
        "method() failed in other workers too: group:2: ValueError: 2; group:3: ValueError: 3; group:4: ValueError: 4 "
        "and 1 more"
    )


async def test_who_stops_waiting_does_not_stop_the_call():
    call, _, _, tokens = called(1, ScriptedCaller())
    waiting = asyncio.ensure_future(call.async_wait())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    tokens[0].set_result(7)
    assert await call == [7]


def test_an_engine_that_raises_completes_the_call_too():
    call, _, _, tokens = called(2, ScriptedCaller())
    tokens[0].set_exception(OSError("a fault of the engine"))
    tokens[1].cancel()
    kinds = [type(error).__name__ for error in call.wait(1.0, return_exceptions=True)]
    assert kinds == ["OSError", "CancelledError"]
