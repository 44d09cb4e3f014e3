"""One worker on Ray as its starter sees it."""

import os
import select
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError

from outrider.cluster.engines.protocol import SeatSpec
from outrider.cluster.engines.ray.actor import DO
from outrider.cluster.engines.ray.outcome import RayToken, death
from outrider.cluster.engines.ray.roll import own_ip
from outrider.cluster.failure import Failure

KILL_SECONDS = 5.0


class RaySeat:
    """An actor. `ended` is called once, when the engine need not keep its place any more."""

    def __init__(self, spec: SeatSpec, actor: Any, node: str, ended: Callable[["RaySeat"], None]) -> None:
        self.spec = spec
        self.address = spec.address
        self.node = node
        self.actor = actor
        self._methods = {name: getattr(actor, f"{DO}{name}").remote for name in spec.methods}
        self.opened = RayToken(actor.open.remote(), spec.address, "__init__")
        self._pid = actor.pid.remote()
        self._ended = ended
        self._lock = threading.Lock()
        self.is_over = False

    def remote(self, method: str, *args: Any, **kwargs: Any) -> Any:
        return self._methods[method](*args, **kwargs)

    def kill(self) -> None:
        with self._lock:
            if self.is_over:
                return
            self.is_over = True
        if ray.is_initialized():
            ray.kill(self.actor, no_restart=True)
        self._ended(self)

    def release(self, seconds: float) -> None:
        end_all([self], seconds)

    def why_ended(self, seconds: float) -> str | None:
        """Ask the actor for anything: if it is gone, Ray says why."""
        if not ray.is_initialized():
            return None
        try:
            ray.get(self.actor.pid.remote(), timeout=seconds)
        except RayActorError as exc:
            return death(exc)
        except RayError:
            return None
        return None

    def pid(self) -> int | None:
        """Its process on this machine, as far as that is known."""
        if self.spec.node_ip != own_ip():
            return None
        try:
            return int(ray.get(self._pid, timeout=0))
        except (RayError, ValueError):
            return None


class VacantSeat:
    """The seat of a worker that could not even be asked for."""

    def __init__(self, spec: SeatSpec, error: Exception) -> None:
        self.spec = spec
        self.address = spec.address
        self._failure = ray.put(Failure.of(spec.address, error))
        self.opened = RayToken(self._failure, spec.address, "__init__")

    def remote(self, *_: Any, **__: Any) -> Any:
        return self._failure

    def kill(self) -> None: ...

    def release(self, seconds: float) -> None: ...

    def why_ended(self, seconds: float) -> str | None:  # noqa: ARG002 the protocol's
        return None


def end_all(seats: Sequence[RaySeat], seconds: float) -> None:
    """Let the workers end in order, all at once, and kill those that have not within `seconds`; see them gone."""
    if not ray.is_initialized():
        return
    pids = [seat.pid() for seat in seats]
    alive = [seat for seat in seats if not seat.is_over]
    if alive and seconds > 0:
        for seat in alive:
            seat.actor.end.remote()
        ends = [seat.actor.__ray_terminate__.remote() for seat in alive]
        ray.wait(ends, num_returns=len(ends), timeout=seconds)
    for seat in seats:
        seat.kill()
    deadline = time.monotonic() + KILL_SECONDS
    for pid in pids:
        if pid is not None:
            _see_gone(pid, deadline)


def _see_gone(pid: int, deadline: float) -> None:
    """Wait for the end of one of Ray's processes; a number that another program has by now is left alone."""
    with suppress(OSError):
        if not Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"ray::"):
            return
        handle = os.pidfd_open(pid)
        try:
            select.select([handle], [], [], max(0.0, deadline - time.monotonic()))
        finally:
            os.close(handle)
