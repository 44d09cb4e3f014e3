"""Workers as Ray actors: placed by Ray's own reservations, called by Ray's remote calls.

Invariants:
- A Ray that this engine started or joined is left by `close`; one that the process had before is not touched.
- Ray restarts nothing: the actor of a worker that is started again replaces the one of the same name.
"""

import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Self

import ray
from ray.exceptions import RayError
from ray.experimental.internal_kv import _internal_kv_del, _internal_kv_get, _internal_kv_put
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from outrider.cluster.cargo import fault, refuse_unpicklable
from outrider.cluster.engines.protocol import SeatSpec
from outrider.cluster.engines.ray.actor import actor_class
from outrider.cluster.engines.ray.connection import await_nodes, connect
from outrider.cluster.engines.ray.outcome import RayToken, outcome_of
from outrider.cluster.engines.ray.roll import Roll, own_ip
from outrider.cluster.engines.ray.seat import RaySeat, VacantSeat, end_all
from outrider.cluster.info import NodeInfo
from outrider.cluster.placement.place import Placement
from outrider.cluster.post import Post
from outrider.cluster.post.parcel import pack
from outrider.cluster.station import Membership
from outrider.core.decoding import from_json
from outrider.core.errors import ClusterError, InvalidInput

MAX_COROUTINES = 10_000
LARGE_BYTES = 100_000
"""From this size on an argument for several workers is stored once; Ray would store it once for each."""
SETTLE_SECONDS = 0.3
"""So long Ray may take to count as free what an ended worker had."""
NAME_SECONDS = 5.0
LOOK_SECONDS = 0.05
END_SECONDS = 3.0


class RayEngine:
    """Starts workers on a Ray cluster.

    `num_gpus` and `num_cpus` are for a Ray of its own; 0 and None stand for what the machine has.
    """

    kind = "ray"
    sets_visible_devices = False

    def __init__(
        self,
        address: str | None = None,
        *,
        namespace: str = "outrider",
        num_nodes: int = 1,
        num_gpus: float = 0,
        num_cpus: float | None = None,
        known_nodes: Sequence[Sequence[str]] = (),
    ) -> None:
        self._leave = connect(address, namespace, num_gpus=num_gpus or None, num_cpus=num_cpus)
        try:
            await_nodes(num_nodes)
        except BaseException:
            self._leave()
            raise
        self.driver_ip = own_ip()
        self._namespace = namespace
        self._roll = Roll(known_nodes)
        self._seats: dict[str, tuple[RaySeat, Placement]] = {}
        self._known: set[str] = set()
        self._classes: dict[tuple[bool, tuple[str, ...]], Any] = {}
        self._lock = threading.Lock()
        self._settled_at = 0.0
        self._is_closed = False

    @classmethod
    def attached(cls, description: Mapping[str, Any], post: Post) -> Self:  # noqa: ARG003 its calls go by Ray
        """The engine of a worker: on the Ray whose actor it is."""
        if not ray.is_initialized():
            raise ClusterError(
                "this process is not one of Ray's: only a worker that Ray started can launch groups on it"
            )
        return cls(namespace=description["namespace"], known_nodes=description["nodes"])

    def nodes(self) -> tuple[NodeInfo, ...]:
        self._check()
        time.sleep(max(0.0, self._settled_at - time.monotonic()))
        taken: dict[str, tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
        with self._lock:
            for seat, place in self._seats.values():
                n_cpus, n_gpus = taken[seat.node]
                taken[seat.node] = n_cpus + place.n_cpus, n_gpus + place.n_gpus
        return self._roll.nodes(taken)

    def start(self, spec: SeatSpec, place: Placement) -> Any:
        self._check()
        with self._lock:
            old = self._seats.get(spec.address)
        if old is not None:
            old[0].kill()
        node = self._roll.name(place.node_id)
        try:
            actor = self._actor(spec, place, node)
        except ValueError as exc:
            return VacantSeat(spec, _refusal(spec.address, self._namespace, exc))
        if spec.rank == 0:
            note = Membership(spec.directory, spec.key, spec.engine, spec.node_id, spec.node_ip)
            _internal_kv_put(self._key(spec.address), note.to_text())
        seat = RaySeat(spec, actor, node, self._ended)
        with self._lock:
            self._seats[spec.address] = seat, place
        return seat

    def _actor(self, spec: SeatSpec, place: Placement, node: str) -> Any:
        """Ask Ray for it. The name of a worker of ours that has died is free a moment later than we know of it."""
        ends_at = time.monotonic() + (NAME_SECONDS if spec.address in self._known else 0.0)
        self._known.add(spec.address)
        while True:
            try:
                return (
                    self._actors(spec)
                    .options(
                        name=spec.address,
                        namespace=self._namespace,
                        num_cpus=place.n_cpus,
                        num_gpus=place.n_gpus,
                        max_concurrency=MAX_COROUTINES if spec.is_async else spec.max_concurrency or 1,
                        scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
                    )
                    .remote(spec)
                )
            except ValueError as exc:
                if "already taken" not in str(exc) or time.monotonic() >= ends_at:
                    raise
                time.sleep(LOOK_SECONDS)

    def call(
        self, seats: Sequence[Any], method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> list[RayToken]:
        self._check()
        if len(seats) > 1 and (args or kwargs):
            shared, named = tuple(map(_stored, args)), {key: _stored(value) for key, value in kwargs.items()}
        else:
            shared, named = args, dict(kwargs)
        try:
            return [RayToken(seat.remote(method, *shared, **named), seat.address, method) for seat in seats]
        except Exception as exc:
            if any(map(fault, (*args, *kwargs.values()))):
                raise refuse_unpicklable(f"{method}()", args, kwargs, exc) from exc
            if isinstance(exc, RayError):
                raise ClusterError(f"{method}() cannot be called: {exc}") from exc
            raise

    def gather(self, tokens: Sequence[RayToken], seconds: float) -> list[Any] | None:
        self._check()
        try:
            found: list[Any] = ray.get([token.ref for token in tokens], timeout=seconds)
        except Exception:  # noqa: BLE001 what it means is found out for each rank
            return None
        return found

    def future(self, token: RayToken) -> "Future[Any]":
        return outcome_of(token)

    def cancel(self, token: RayToken) -> None:
        if ray.is_initialized():
            ray.cancel(token.ref)

    def describe(self) -> dict[str, Any]:
        return {"kind": self.kind, "namespace": self._namespace, "nodes": self._roll.known()}

    def membership(self, group: str) -> Membership | None:
        """As the starter of a group has noted it in Ray; a group whose first worker is gone is none."""
        try:
            ray.get_actor(f"{group}:0", namespace=self._namespace)
        except ValueError:
            return None
        note = _internal_kv_get(self._key(f"{group}:0"))
        return None if note is None else from_json(note, Membership)

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        with self._lock:
            left = [seat for seat, _ in self._seats.values()]
        end_all(left, END_SECONDS)
        self._leave()

    def _check(self) -> None:
        """Ray starts itself again when it is used after its end, which nobody wants."""
        if self._is_closed or not ray.is_initialized():
            raise ClusterError("the cluster is closed" if self._is_closed else "Ray was shut down in this process")

    def _ended(self, seat: RaySeat) -> None:
        self._settled_at = time.monotonic() + SETTLE_SECONDS
        with self._lock:
            found = self._seats.get(seat.address)
            if found is not None and found[0] is seat:
                del self._seats[seat.address]
        if seat.spec.rank == 0 and ray.is_initialized():
            _internal_kv_del(self._key(seat.address))

    def _key(self, address: str) -> str:
        return f"outrider/{self._namespace}/{address}"

    def _actors(self, spec: SeatSpec) -> Any:
        """Ray's class of the actors for this class of workers; it is sent to the nodes once."""
        kind = (spec.is_async, spec.methods)
        if kind not in self._classes:
            self._classes[kind] = ray.remote(max_restarts=0, max_task_retries=0)(actor_class(spec))
        return self._classes[kind]


def _stored(value: Any) -> Any:
    """A large value as a reference to one copy of it, which Ray hands to the method as the value again."""
    if value is None or isinstance(value, int | float | ray.ObjectRef):
        return value
    try:
        size = len(value) if isinstance(value, str | bytes) else sum(memoryview(part).nbytes for part in pack(value))
    except Exception:  # noqa: BLE001 pickling runs the user's code; what Ray says of it counts
        return value
    return ray.put(value) if size >= LARGE_BYTES else value


def _refusal(address: str, namespace: str, error: ValueError) -> Exception:
    if "already taken" in str(error):
        return InvalidInput(
            f"there is a worker {address} in namespace {namespace!r} of this Ray already, of another program; "
            "close that group, or give this one another name or namespace"
        )
    return ClusterError(f"Ray cannot place worker {address}: {error}")
