"""Workers as threads of this process, for breakpoints: all else is as in a cluster, the calls over the post too.

The threads share one `os.environ`. Each worker finds its own variables there while its `__init__` runs, so these run
one after the other; later, `worker_info` tells what a worker is.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from outrider.cluster.engines.local import LocalEngine, LocalSeat
from outrider.cluster.engines.protocol import SeatSpec
from outrider.cluster.seat import Environment, Seated, put_on

_one_environment = threading.Lock()


@contextmanager
def _borrowed(environment: Environment) -> Iterator[None]:
    with _one_environment:
        before = {name: os.environ.get(name) for name in environment}
        try:
            with put_on(environment):
                yield
        finally:
            with put_on(before):
                pass


class ThreadSeat(LocalSeat):
    """A worker in threads of this process. They cannot be killed: a method that runs at the end runs on, unheard."""

    def __init__(self, spec: SeatSpec) -> None:
        super().__init__(spec)
        self._seated = Seated(spec, owns_process=False)
        threading.Thread(target=self._live, name=f"desk of {spec.address}", daemon=True).start()

    def kill(self) -> None:
        self._seated.close()
        self.end("it was closed")

    def release(self, seconds: float) -> None:  # noqa: ARG002 it takes no time
        self.kill()

    def _live(self) -> None:
        failure = self._seated.open(_borrowed)
        station = self._seated.station
        self.report(failure, None if station is None else station.post.endpoint)
        if failure is not None:
            self.end("its start failed")
            return
        self._seated.desk.staff((self.spec.max_concurrency or 1) - 1, f"desk of {self.address}")
        self._seated.desk.serve()
        self.kill()


class InlineEngine(LocalEngine):
    """Starts threads."""

    kind = "inline"

    def _seat(self, spec: SeatSpec) -> LocalSeat:
        return ThreadSeat(spec)
