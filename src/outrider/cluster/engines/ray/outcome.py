"""What came of a call, from what Ray says about it."""

import re
from concurrent.futures import Future
from functools import partial
from typing import Any, NamedTuple

from ray import ObjectRef
from ray.exceptions import (
    ActorPlacementGroupRemoved,
    ActorUnschedulableError,
    NodeDiedError,
    ObjectLostError,
    RayActorError,
    RaySystemError,
    RayTaskError,
    TaskCancelledError,
    WorkerCrashedError,
)

from outrider.cluster.failure import Failure
from outrider.core.errors import ClusterError, WorkerFailed

MAX_REASON = 300
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_EXIT_CODE = re.compile(r"exit code (-?\d+)")
_DEATHS = (RayActorError, NodeDiedError, WorkerCrashedError, ObjectLostError)
_UNPLACED = (ActorUnschedulableError, ActorPlacementGroupRemoved)


class RayToken(NamedTuple):
    """One call of one worker."""

    ref: "ObjectRef[Any]"
    address: str
    method: str


def outcome_of(token: RayToken) -> "Future[Any]":
    """Completes with the outcome of the call, when Ray has it."""
    outcome: Future[Any] = Future()
    outcome.set_running_or_notify_cancel()  # nobody may cancel it: it tells what happened
    token.ref.future().add_done_callback(partial(_settle, outcome, token))
    return outcome


def _settle(outcome: "Future[Any]", token: RayToken, answer: "Future[Any]") -> None:
    error = answer.exception()
    outcome.set_result(answer.result() if error is None else failure(token, error))


def failure(token: RayToken, error: BaseException) -> Failure:
    """What an error of Ray, not of the worker's method, means for the call."""
    address = token.address
    if isinstance(error, TaskCancelledError):
        return Failure.cancelled(address)
    if isinstance(error, _DEATHS):
        return Failure.died(address, death(error))
    if isinstance(error, RayTaskError):
        return _not_carried(token, error)
    if isinstance(error, _UNPLACED):
        return Failure.of(address, ClusterError(f"Ray cannot place worker {address}: {_one_line(str(error))}"))
    if isinstance(error, RaySystemError):
        return Failure.of(address, WorkerFailed(f"{address}: Ray could not carry {token.method}(): {error}"))
    return Failure.of(address, error)


def death(error: BaseException) -> str:
    """Why a worker is gone, in one line."""
    text = _COLOURS.sub("", str(error))
    if "ray.kill" in text:
        return "it was killed by ray.kill"
    if found := _EXIT_CODE.search(text):
        return f"its process ended with exit code {found[1]}"
    if "End of file" in text:
        return "its process was killed or crashed (the kernel kills what takes too much memory)"
    return _one_line(text)


def _one_line(text: str) -> str:
    """The last paragraph, without the table of names that Ray puts before it."""
    lines = [line for line in text.splitlines() if line and not line.startswith("\t")]
    said = " ".join(lines[1:] if len(lines) > 1 else lines)
    return said if len(said) <= MAX_REASON else f"{said[:MAX_REASON]}…"


def _not_carried(token: RayToken, error: RayTaskError) -> Failure:
    """A method's own exceptions come as values, so what Ray reports is about the arguments or the result."""
    trace = _COLOURS.sub("", str(getattr(error, "traceback_str", error)))
    cause = getattr(error, "cause", None) or error
    why = f"{type(cause).__name__}: {_last_line(str(cause))}"
    if "deserialize" in trace:
        text = f"{token.address}: the arguments of {token.method}() cannot be unpickled there: {why}"
    else:
        text = f"{token.address}: what {token.method}() returned cannot be pickled: {why}"
    made = Failure.of(token.address, WorkerFailed(text))
    return Failure(made.address, made.summary, trace, made.error)


def _last_line(text: str) -> str:
    return text.strip().splitlines()[-1] if text.strip() else text
