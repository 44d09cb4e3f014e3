import asyncio

import pytest

from outrider.core.attempt import Failure
from outrider.core.errors import (
    AgentError,
    AttemptError,
    Boundary,
    EnvError,
    InvalidInput,
    LimitError,
    MachineError,
    PolicyError,
    ScoreError,
    WorkerError,
    boundary,
)


def test_a_foreign_exception_is_attributed_to_the_side_that_failed():
    with pytest.raises(EnvError, match="KeyError: 'x'") as caught, boundary(EnvError, "env.step"):
        raise KeyError("x")
    assert caught.value.stage == "env.step"
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_failure_that_has_its_side_passes_other_boundaries_unchanged():
    error = PolicyError("slow", stage="policy.chat")
    with pytest.raises(PolicyError) as caught, boundary(EnvError, "env.step"):
        raise error
    assert caught.value is error


def test_another_error_of_ours_is_attributed_like_a_foreign_one():
    with pytest.raises(AgentError, match="InvalidInput: bad"), boundary(AgentError, "agent.act"):
        raise InvalidInput("bad")


async def test_a_cancellation_that_was_asked_for_is_no_failure_of_anybody():
    async def act() -> None:
        with boundary(AgentError, "agent.act"):
            await asyncio.sleep(10)

    task = asyncio.create_task(act())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


async def test_what_would_end_the_event_loop_and_a_cancellation_that_nobody_asked_for_are_failures():
    for error in (asyncio.CancelledError, KeyboardInterrupt, SystemExit, GeneratorExit):
        with pytest.raises(AgentError, match=error.__name__), boundary(AgentError, "agent.act"):
            raise error


def test_a_block_without_an_error_passes():
    with boundary(EnvError, "env.step"):
        value = 1
    assert value == 1


def test_each_boundary_has_one_error_class():
    classes = [PolicyError, EnvError, MachineError, AgentError, ScoreError, LimitError, WorkerError]
    assert {error.boundary for error in classes} == set(Boundary)
    assert set(AttemptError.__subclasses__()) >= set(classes)


def test_infrastructure_is_what_the_agent_had_no_part_in():
    assert {side for side in Boundary if side.is_infrastructure} == {"policy", "env", "machine", "worker"}


def test_a_failure_names_the_innermost_cause():
    with pytest.raises(EnvError) as caught, boundary(EnvError, "env.reset"):
        raise RuntimeError("cannot reset") from OSError("disk")
    failure = Failure.of(caught.value)
    assert (failure.boundary, failure.kind, failure.stage) == (Boundary.ENV, "OSError", "env.reset")
    assert failure.message == "RuntimeError: cannot reset"
    assert failure.traceback is not None
    assert "OSError: disk" in failure.traceback


def test_a_failure_can_be_stored_whatever_its_message_holds():
    failure = Failure.of(AgentError("half \ud83d of a character"))
    assert failure.message == "half \\ud83d of a character"
    assert failure.traceback is not None
    failure.traceback.encode()
