"""A call that did not return a value: why, in a form that crosses processes."""

import pickle
import traceback
from concurrent.futures import CancelledError
from types import TracebackType

import msgspec

from outrider.cluster.cargo import pickled
from outrider.core.errors import WorkerDied, WorkerFailed

SEAT_MODULE = "outrider.cluster.seat"


class Failure(msgspec.Struct, frozen=True):
    """The outcome of a call that failed in the worker `address`. It may be pickled, and msgpack can hold it."""

    address: str
    summary: str
    """One line: the exception's type and message."""
    trace: str = ""
    """The traceback as it was printed over there."""
    error: bytes = b""
    """The pickled exception; empty if it cannot be pickled, or is not an `Exception`."""
    is_cancelled: bool = False

    @classmethod
    def of(cls, address: str, error: BaseException) -> "Failure":
        """What a worker's exception becomes. Call it where the exception was caught, so that the traceback is there."""
        summary = traceback.format_exception_only(error)[-1].strip()
        lines = traceback.format_exception(type(error), error, _from_users_code(error.__traceback__))
        return cls(address, summary, "".join(lines), _portable(error))

    @classmethod
    def died(cls, address: str, cause: str) -> "Failure":
        """What the death of a worker becomes."""
        return cls(address, cause, error=pickle.dumps(WorkerDied(address, cause)))

    @classmethod
    def cancelled(cls, address: str) -> "Failure":
        return cls(address, "the call was cancelled", is_cancelled=True)

    def exception(self) -> Exception:
        """The exception to raise: the worker's own, with a note that names the worker and holds its traceback."""
        if self.is_cancelled:
            return CancelledError(f"the call of worker {self.address} was cancelled")
        error = _loaded(self.error)
        if error is None:
            return WorkerFailed(f"worker {self.address} raised {self.summary}\n{self.trace.rstrip()}")
        if self.trace:
            error.add_note(f"raised in worker {self.address}:\n{self.trace.rstrip()}")
        return error


def _from_users_code(trace: TracebackType | None) -> TracebackType | None:
    """The traceback without the frames of the seat that called."""
    inner = trace
    while inner is not None and inner.tb_frame.f_globals.get("__name__") == SEAT_MODULE:
        inner = inner.tb_next
    return inner or trace


def _portable(error: BaseException) -> bytes:
    """Its pickle, if it comes back from that as what it was. `SystemExit` and its like do not travel."""
    if not isinstance(error, Exception):
        return b""
    try:
        data = pickled(error)
    except Exception:  # noqa: BLE001 pickling runs the user's code
        return b""
    return data if type(_loaded(data)) is type(error) else b""


def _loaded(data: bytes) -> Exception | None:
    if not data:
        return None
    try:
        error = pickle.loads(data)  # noqa: S301 only proven members of the cluster are heard
    except Exception:  # noqa: BLE001 the class may be one that this process cannot import, or cannot make again
        return None
    return error if isinstance(error, Exception) else None
