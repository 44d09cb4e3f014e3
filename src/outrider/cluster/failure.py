"""A call that did not return a value: why, in a form that crosses processes."""

import traceback
from concurrent.futures import CancelledError
from types import TracebackType

import msgspec

from outrider.cluster.post.error_data import ErrorData
from outrider.core.errors import WorkerDied, WorkerFailed

SEAT_MODULE = "outrider.cluster.seat"


class Failure(msgspec.Struct, frozen=True):
    """The outcome of a call that failed in the worker `address`. It may be pickled, and msgpack can hold it."""

    address: str
    summary: str
    """One line: the exception's type and message."""
    trace: str = ""
    """The traceback as it was printed over there."""
    error: ErrorData | None = None
    """The exception; None if it is not an `Exception`."""
    is_cancelled: bool = False

    @classmethod
    def of(cls, address: str, error: BaseException) -> "Failure":
        """What a worker's exception becomes. Call it where the exception was caught, so that the traceback is there."""
        summary = traceback.format_exception_only(error)[-1].strip()
        lines = traceback.format_exception(type(error), error, _from_users_code(error.__traceback__))
        return cls(address, summary, "".join(lines), ErrorData.of(error) if isinstance(error, Exception) else None)

    @classmethod
    def died(cls, address: str, cause: str) -> "Failure":
        """What the death of a worker becomes."""
        return cls(address, cause, error=ErrorData.of(WorkerDied(address, cause)))

    @classmethod
    def cancelled(cls, address: str) -> "Failure":
        return cls(address, "the call was cancelled", is_cancelled=True)

    def exception(self) -> Exception:
        """The exception to raise: the worker's own, with a note that names the worker and holds its traceback.

        One whose class this process has not loaded is a `WorkerFailed` that tells its name.
        """
        if self.is_cancelled:
            return CancelledError(f"the call of worker {self.address} was cancelled")
        error = None if self.error is None else self.error.exception()
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
