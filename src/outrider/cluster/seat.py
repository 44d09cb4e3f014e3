"""The worker's side of a seat: the same in a process of a local cluster, in a Ray actor and in a thread.

Invariants:
- The user's class is imported, and its `__init__` runs, with the environment set, mail being kept and peers reachable.
- Of the plain methods so many run at once as the spec says, in the order in which they were called, whoever called.
- A call never raises what the user's code raised: it returns a `Failure`.
"""

import asyncio
import inspect
import os
import pickle
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from outrider.cluster.address import WorkerAddress
from outrider.cluster.cargo import pickled
from outrider.cluster.desk import Desk
from outrider.cluster.engines.protocol import SeatSpec
from outrider.cluster.environment import worker_environment
from outrider.cluster.failure import Failure
from outrider.cluster.info import WorkerInfo
from outrider.cluster.master import agree
from outrider.cluster.placement.place import Placement
from outrider.cluster.post import Link, Message
from outrider.cluster.post.parcel import unpack
from outrider.cluster.station import CLUSTER_VARIABLE, Membership, Station
from outrider.core.errors import WorkerDied, WorkerFailed

Environment = Mapping[str, str | None]
LOOP_END_SECONDS = 2.0


@contextmanager
def put_on(environment: Environment) -> Iterator[None]:
    """Set the variables of this process for good; None removes one."""
    for name, value in environment.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    yield


class Seated:
    """Holds one instance of the user's class. `open` it on the thread that shall run `__init__`; `close` it once.

    Coroutine methods run on `loop`, or on a loop of its own when none is given. Calls come in two ways: by the post
    (service `seat.call`) to be worked on by whoever serves `desk`, and from the engine by `call` and `acall`.
    """

    def __init__(
        self, spec: SeatSpec, *, loop: asyncio.AbstractEventLoop | None = None, owns_process: bool = True
    ) -> None:
        self.spec = spec
        self._owns_process = owns_process
        self.desk = Desk()
        self.station: Station | None = None
        self._worker: Any = None
        self._failure: Failure | None = None
        self._is_open = asyncio.Event()
        n_at_once = spec.max_concurrency or 1
        self._turns = threading.Lock() if n_at_once == 1 else threading.Semaphore(n_at_once)
        self._loop = loop
        self._owns_loop = loop is None
        self._loop_lock = threading.Lock()
        self._closing = threading.Lock()
        self._is_closed = False

    def open(self, wear: Callable[[Environment], AbstractContextManager[None]] = put_on) -> Failure | None:
        """Build the worker; return the failure, if any. `wear` sets the environment while the instance is made."""
        try:
            self._build(wear)
        except BaseException as exc:  # noqa: BLE001 it is raised where the group is launched
            self._failure = Failure.of(self.spec.address, exc)
            self.close()
        return self._failure

    def call(self, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """What the plain method returns, or a `Failure`. Waits for its turn."""
        if self._failure is not None or self.station is None:
            return self._failure
        with self._turns, self.station.at_work():
            try:
                value = getattr(self._worker, method)(*args, **kwargs)
                return self._on_loop(value).result() if inspect.iscoroutine(value) else value
            except BaseException as exc:  # noqa: BLE001 it belongs to the caller
                return Failure.of(self.spec.address, exc)

    async def acall(self, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The same for any method: a coroutine method runs on the loop that runs this, a plain one at the desk."""
        if not self.is_coroutine(method):
            return await asyncio.wrap_future(self.desk.submit(partial(self.call, method, args, kwargs)))
        assert self.station is not None
        with self.station.at_work():
            try:
                return await getattr(self._worker, method)(*args, **kwargs)
            except asyncio.CancelledError:
                raise
            except BaseException as exc:  # noqa: BLE001 it belongs to the caller
                return Failure.of(self.spec.address, exc)

    def is_coroutine(self, method: str) -> bool:
        return inspect.iscoroutinefunction(getattr(self._worker, method, None))

    def close(self) -> None:
        """End the communication and what waits; a plain method that runs goes on. Idempotent, from any thread."""
        self.desk.stop()
        with self._closing:
            if self.station is not None and not self._is_closed:
                self.station.close()
            self._is_closed = True
        with self._loop_lock:
            loop, self._loop = self._loop, None
        if loop is not None and self._owns_loop:
            asyncio.run_coroutine_threadsafe(_wind_up(), loop)

    def _build(self, wear: Callable[[Environment], AbstractContextManager[None]]) -> None:
        spec = self.spec
        membership = Membership(spec.directory, spec.key, spec.engine, spec.node_id, spec.node_ip)
        self.station = station = Station(_info(spec), membership)
        if self._owns_process:
            station.own_process()
        station.post.serve("seat.call", self._asked)
        meeting = agree(station.post, spec.directory, spec.group_id, spec.rank)
        master = station.post.run(meeting, timeout=spec.start_seconds)
        with wear({**spec.env, **_identity(spec, membership, master)}):
            station.join()
            sys.path.extend(place for place in spec.path if place not in sys.path and Path(place).exists())
            cls, args, kwargs = pickle.loads(spec.worker)  # noqa: S301 from a proven member of the cluster
            with station.at_work():
                self._worker = cls(*args, **kwargs)
        station.post.loop.call_soon_threadsafe(self._is_open.set)

    async def _asked(self, _: Link, head: Any, parts: tuple[memoryview, ...]) -> Message:
        await self._is_open.wait()
        return await asyncio.wrap_future(self._submit(head, parts))

    def _submit(self, method: str, parts: Sequence[memoryview]) -> "Future[Message]":
        if self.is_coroutine(method):
            return self._on_loop(self._serve_coroutine(method, parts))
        return self.desk.submit(partial(self._serve_plain, method, parts))

    def _serve_plain(self, method: str, parts: Sequence[memoryview]) -> Message:
        arguments = self._arguments(parts)
        return self._message(method, arguments if isinstance(arguments, Failure) else self.call(method, *arguments))

    async def _serve_coroutine(self, method: str, parts: Sequence[memoryview]) -> Message:
        arguments = self._arguments(parts)
        if not isinstance(arguments, Failure):
            return self._message(method, await self.acall(method, *arguments))
        return self._message(method, arguments)

    def _arguments(self, parts: Sequence[memoryview]) -> tuple[Sequence[Any], Mapping[str, Any]] | Failure:
        try:
            args, kwargs = unpack(parts)
        except Exception as exc:  # noqa: BLE001 unpickling runs the user's code
            return Failure.of(self.spec.address, exc)
        return args, kwargs

    def _message(self, method: str, outcome: Any) -> Message:
        if isinstance(outcome, Failure):
            return Message(outcome)
        try:
            return Message(parts=[pickled(outcome)])
        except Exception as exc:  # noqa: BLE001 pickling runs the user's code
            why = f"what {method}() returned ({type(outcome).__name__}) cannot be pickled: {type(exc).__name__}: {exc}"
            return Message(Failure.of(self.spec.address, WorkerFailed(f"{self.spec.address}: {why}")))

    def _on_loop(self, coroutine: Coroutine[Any, Any, Any]) -> "Future[Any]":
        with self._loop_lock:
            if self._is_closed:
                coroutine.close()
                raise WorkerDied(self.spec.address, "it was closed")
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                thread = threading.Thread(target=_live, args=(self._loop,), name=f"loop of {self.spec.address}")
                thread.daemon = True
                thread.start()
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop)


def _live(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.close()


async def _wind_up() -> None:
    """End the tasks of this loop, and the loop."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others, timeout=LOOP_END_SECONDS)
    asyncio.get_running_loop().stop()


def _info(spec: SeatSpec) -> WorkerInfo:
    return WorkerInfo(
        address=WorkerAddress.from_name(spec.address),
        rank=spec.rank,
        node_id=spec.node_id,
        gpu_id=spec.gpus[0] if spec.gpus else -1,
        node_ip=spec.node_ip,
        available_gpus=spec.gpus,
        group_world_size=spec.world_size,
        pid=os.getpid(),
        local_rank=spec.local_rank,
        local_world_size=spec.local_world_size,
    )


def _identity(spec: SeatSpec, membership: Membership, master: tuple[str, int]) -> dict[str, str]:
    place = Placement(
        rank=spec.rank,
        node_id=spec.node_id,
        local_rank=spec.local_rank,
        local_world_size=spec.local_world_size,
        n_gpus=len(spec.gpus),
        gpus=spec.gpus,
        n_cpus=0,
        node_rank=spec.node_rank,
    )
    address = WorkerAddress.from_name(spec.address)
    host, port = master
    named = worker_environment(address, place, world_size=spec.world_size, master_addr=host, master_port=port)
    named[CLUSTER_VARIABLE] = membership.to_text()
    if spec.sets_visible_devices:
        named["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, spec.gpus))
    return named
