"""Where the plain methods of a worker run: one after the other, or so many at once, in the order in which they came."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, NamedTuple


class _Job(NamedTuple):
    work: Callable[[], Any]
    future: "Future[Any]"


class Desk:
    """A queue of jobs. A thread that calls `serve` works on them until `stop`; what is cancelled first is dropped."""

    def __init__(self) -> None:
        self._is_stopped = False
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()

    def submit(self, work: Callable[[], Any]) -> "Future[Any]":
        """From any thread; never waits."""
        job = _Job(work, Future())
        self._jobs.put(job)
        return job.future

    def serve(self) -> None:
        """Work, on the thread that calls this."""
        while (job := self._jobs.get()) is not None and not self._is_stopped:
            _do(job)
            del job
        self._jobs.put(None)

    def staff(self, n_threads: int, name: str) -> None:
        """Have so many threads serve. They end at `stop`, when they have finished what they are at."""
        for n in range(n_threads):
            threading.Thread(target=self.serve, name=f"{name} ({n})", daemon=True).start()

    def stop(self) -> None:
        """Nothing more is begun."""
        self._is_stopped = True
        self._jobs.put(None)


def _do(job: _Job) -> None:
    if not job.future.set_running_or_notify_cancel():
        return
    try:
        job.future.set_result(job.work())
    except BaseException as exc:  # noqa: BLE001 it belongs to who waits for the job
        job.future.set_exception(exc)
