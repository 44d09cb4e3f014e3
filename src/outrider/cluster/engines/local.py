"""Workers as processes of this machine, without Ray. Nodes and GPUs may be made up, to try placements.

Invariants:
- A worker's process ends when its starter closes it or dies: its standard input is a pipe that the starter holds, and
  it watches the starter's process too, since a process that the starter has forked may hold the pipe as well.
- Each process leads a session of its own; what it leaves behind there is killed when it has ended.
"""

import asyncio
import logging
import os
import signal
import subprocess
import sys
import threading
from abc import ABC, abstractmethod
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

import msgspec
from msgspec.structs import replace

from outrider.cluster.engines.posted import PostCaller
from outrider.cluster.engines.pretence import LOCAL_IP, Pretence
from outrider.cluster.engines.protocol import Seat, SeatSpec
from outrider.cluster.environment import variables_at_start
from outrider.cluster.failure import Failure
from outrider.cluster.info import NodeInfo
from outrider.cluster.placement.place import Placement
from outrider.cluster.post import Endpoint, Link, Post
from outrider.core.decoding import convert
from outrider.core.variables import holds_key

_log = logging.getLogger(__name__)

LENGTH_BYTES = 8
KILL_SECONDS = 5.0
EPITAPH_SECONDS = 2.0


class Order(msgspec.Struct, frozen=True):
    """What a worker's process reads from its standard input: who to be, where to report, where modules lie."""

    spec: SeatSpec
    starter: Endpoint
    starter_pid: int


class LocalSeat(ABC):
    """A seat whose worker reports to the starter's post and is called over it."""

    @abstractmethod
    def kill(self) -> None: ...

    @abstractmethod
    def release(self, seconds: float) -> None: ...

    def __init__(self, spec: SeatSpec) -> None:
        self.spec = spec
        self.address = spec.address
        self.opened: Future[Any] = Future()
        self.ended: Future[str] = Future()
        self._endpoint: Endpoint
        self._reporting = threading.Lock()

    def report(self, outcome: Any, endpoint: Endpoint | None) -> None:
        """The start has come to its end, one way or the other; the first report counts."""
        with self._reporting:
            if self.opened.done():
                return
            if endpoint is not None:
                self._endpoint = endpoint
            self.opened.set_result(outcome)

    def end(self, cause: str) -> None:
        self.report(Failure.died(self.address, f"{cause} while it was being started"), None)
        with self._reporting:
            if not self.ended.done():
                self.ended.set_result(cause)

    def why_ended(self, seconds: float) -> str | None:
        with suppress(TimeoutError):
            return self.ended.result(seconds)
        return None

    def see_gone(self) -> None:
        """Wait for the end of a worker that was killed; a process in the kernel's hands may take its time."""
        if self.why_ended(KILL_SECONDS) is None:
            _log.error("worker %s did not end within %g s after it was killed", self.address, KILL_SECONDS)

    async def locate(self) -> Endpoint | Failure:
        if not self.opened.done():
            await asyncio.shield(asyncio.wrap_future(self.opened))
        outcome = self.opened.result()
        return outcome if isinstance(outcome, Failure) else self._endpoint

    async def epitaph(self) -> str:
        with suppress(TimeoutError):
            async with asyncio.timeout(EPITAPH_SECONDS):
                return await asyncio.shield(asyncio.wrap_future(self.ended))
        return "the connection to it ended"


class ProcessSeat(LocalSeat):
    """One process, and the thread that starts it and waits for its end."""

    def __init__(self, order: Order) -> None:
        super().__init__(order.spec)
        self._process: subprocess.Popen[bytes] | None = None
        self._is_over = False
        self._lock = threading.Lock()
        threading.Thread(target=self._live, args=(order,), name=f"process of {self.address}", daemon=True).start()

    def kill(self) -> None:
        with self._lock:
            self._is_over = True
            if self._process is not None:
                _kill_session(self._process.pid)

    def release(self, seconds: float) -> None:
        with self._lock:
            self._is_over = True
            if self._process is not None:
                _close_pipe(self._process)
        try:
            self.ended.result(seconds)
        except TimeoutError:
            self.kill()
            self.see_gone()

    def _live(self, order: Order) -> None:
        try:
            process = self._start()
        except OSError as exc:
            self.end(f"its process could not be started ({exc})")
            return
        if process is None:
            self.end("it was closed")
            return
        _hand_over(process, order)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        with self._lock:
            _kill_session(process.pid)
            code = process.wait()
            self._process = None
            _close_pipe(process)
        self.end(_cause(code))

    def _start(self) -> "subprocess.Popen[bytes] | None":
        with self._lock:
            if self._is_over:
                return None
            self._process = subprocess.Popen(
                [sys.executable, "-m", "outrider.cluster.engines.process"],
                stdin=subprocess.PIPE,
                env=_variables(are_keys=False),
                start_new_session=True,
            )
            return self._process


class LocalEngine(PostCaller):
    """Starts processes on this machine. Its nodes are what it was told they are."""

    kind = "local"
    driver_ip = LOCAL_IP

    def __init__(self, post: Post, pretence: Pretence) -> None:
        super().__init__(post)
        self.sets_visible_devices = pretence.n_gpus > 0
        self._pretence = pretence
        self._seats: dict[str, tuple[LocalSeat, Placement]] = {}
        self._lock = threading.Lock()
        post.serve("seat.opened", self._opened)

    def nodes(self) -> tuple[NodeInfo, ...]:
        with self._lock:
            taken = [place for seat, place in self._seats.values() if not seat.ended.done()]
        return self._pretence.nodes(taken)

    def start(self, spec: SeatSpec, place: Placement) -> Seat:
        seat = self._seat(spec)
        with self._lock:
            self._seats[spec.seat_id] = seat, place
        seat.ended.add_done_callback(lambda _: self._forget(spec.seat_id))
        return seat

    def describe(self) -> dict[str, Any]:
        return {"kind": self.kind, "nodes": msgspec.to_builtins(self._pretence)}

    def membership(self, group: str) -> None:  # noqa: ARG002 no other program can be on this cluster
        return None

    def close(self) -> None:
        with self._lock:
            left = [seat for seat, _ in self._seats.values()]
        for seat in left:
            seat.kill()
        for seat in left:
            seat.see_gone()

    def _seat(self, spec: SeatSpec) -> LocalSeat:
        env = {**_variables(are_keys=True), **spec.env}
        return ProcessSeat(Order(replace(spec, env=env), self.post.endpoint, os.getpid()))

    def _forget(self, seat_id: str) -> None:
        with self._lock:
            self._seats.pop(seat_id, None)

    def _opened(self, _: Link, head: Any, __: tuple[memoryview, ...]) -> None:
        seat_id, endpoint, failure = head
        with self._lock:
            found = self._seats.get(seat_id)
        if found is not None:
            outcome = None if failure is None else convert(failure, Failure)
            found[0].report(outcome, convert(endpoint, Endpoint))


def _variables(*, are_keys: bool) -> dict[str, str]:
    """Those this process began with. Keys reach a worker through its pipe, where no other process can read them."""
    return {name: value for name, value in variables_at_start().items() if holds_key(name, value) == are_keys}


def _hand_over(process: "subprocess.Popen[bytes]", order: Order) -> None:
    """Write the order, and leave the pipe open: its end is the end of the worker."""
    text = msgspec.msgpack.encode(order)
    assert process.stdin is not None
    with suppress(OSError, ValueError):
        process.stdin.write(len(text).to_bytes(LENGTH_BYTES, "big") + text)
        process.stdin.flush()


def _close_pipe(process: "subprocess.Popen[bytes]") -> None:
    assert process.stdin is not None
    with suppress(OSError):
        process.stdin.close()


def _kill_session(pid: int) -> None:
    """Kill the process, if it has not ended, and all it started. It must not have been waited for yet."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _cause(code: int) -> str:
    if code >= 0:
        return f"its process ended with exit code {code}"
    try:
        return f"its process was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"its process was killed by signal {-code}"
