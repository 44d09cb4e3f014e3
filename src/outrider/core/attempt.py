"""An attempt: one execution of a rollout under a lease."""

import traceback
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from msgspec import Struct

from outrider.core.errors import AttemptError, Boundary, message_of
from outrider.core.status import AttemptStatus

_TRACEBACK_CHARACTERS = 8_000


class Failure(Struct, frozen=True, kw_only=True):
    """Why an attempt failed: on which side, in which call, and in whose words.

    A `permanent` failure would come again, so the rollout ends with it whatever `max_attempts` says. One that
    `stops_if_shared` stops a run whose first rollouts all end with it.
    """

    boundary: Boundary
    kind: str
    message: str
    stage: str = ""
    traceback: str | None = None
    permanent: bool = False
    stops_if_shared: bool = False

    @classmethod
    def of(cls, error: AttemptError) -> "Failure":
        """The record of `error`; the innermost cause gives the kind and the traceback."""
        cause: BaseException = error
        seen = {id(cause)}
        while cause.__cause__ is not None and id(cause.__cause__) not in seen:
            cause = cause.__cause__
            seen.add(id(cause))
        text = _printable("".join(traceback.format_exception(cause)))
        return cls(
            boundary=error.boundary,
            kind=type(cause).__name__,
            message=_printable(message_of(error)),
            stage=error.stage,
            traceback=text[-_TRACEBACK_CHARACTERS:],
            permanent=error.is_permanent,
            stops_if_shared=error.stops_if_shared,
        )


def _printable(text: str) -> str:
    """Half characters, as broken file names and model outputs have them, written out: a report must not fail on it."""
    return text.encode(errors="backslashreplace").decode()


class Attempt(Struct, frozen=True, kw_only=True):
    """One execution of a rollout. `attempt_id` is the fencing token that every write must name.

    `resources_version` is the version of the resources that it was claimed with, `metadata` what its worker has noted.
    """

    rollout_id: str
    attempt_id: str
    sequence_id: int
    worker_id: str
    status: AttemptStatus
    started_at: datetime
    ended_at: datetime | None = None
    last_heartbeat_at: datetime
    lease_expires_at: datetime | None
    reward: float | None = None
    failure: Failure | None = None
    resources_version: int | None = None
    metadata: Mapping[str, Any] = {}


class LostLease(Struct, frozen=True, kw_only=True):
    """An attempt that must stop, and why: `cancelled`, `timeout`, `unresponsive`, or the state it ended in."""

    attempt_id: str
    reason: str
