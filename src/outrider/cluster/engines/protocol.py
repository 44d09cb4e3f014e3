"""What an engine does: it starts seats where they belong, and carries group calls to them.

A *seat* is one worker process (or actor, or thread) as its starter sees it; inside, a `Seated` (`cluster/seat.py`)
holds the user's instance. A *token* stands for one call of one seat and belongs to the engine that made it; nothing
else looks into it.

The outcome of a call is the value that the method returned, or a `Failure` (`cluster/failure.py`). Nothing that a
worker does is raised by an engine: a method's exception, a result that cannot be pickled, a cancelled call and a death
are all failures, each of its own rank.

How a group call goes:

1. `tokens = caller.call(seats, method, args, kwargs)`: at once, in the order of the seats, no waiting.
2. `handle.wait()`: `caller.gather(tokens, seconds)`, the quickest way there is to wait for all of them (one
   `ray.get(list)`). It answers None if they have not all ended within `seconds`, or if the engine itself failed one of
   them, or if there is no way quicker than step 3.
3. Otherwise, and for `await handle`: `caller.future(token)` of each. The handle completes when each rank has an
   outcome, and the directory's word that a worker died is the outcome of that rank, whatever the engine knows of it.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import msgspec

from outrider.cluster.info import NodeInfo
from outrider.cluster.placement.place import Placement
from outrider.cluster.post import Endpoint

if TYPE_CHECKING:
    from outrider.cluster.station import Membership

Token: TypeAlias = Any


class SeatSpec(msgspec.Struct, frozen=True, kw_only=True):
    """All that a worker's process needs to become the worker. It may be pickled, and msgpack can hold it."""

    address: str
    """The worker's address: "Group:0"."""
    group_id: str
    """One launch of a group: two groups that have the same name one after the other differ in it."""
    seat_id: str
    """One start of one worker: a restarted worker has its old address and a new seat id. Unique everywhere."""
    rank: int
    world_size: int
    node_id: int
    node_ip: str
    local_rank: int
    local_world_size: int
    node_rank: int
    gpus: tuple[int, ...]
    """The GPUs of its node that it may use."""
    sets_visible_devices: bool
    """Whether the seat sets CUDA_VISIBLE_DEVICES from `gpus` (local clusters); on Ray, Ray has done so."""
    env: dict[str, str | None]
    """Variables to set before the user's class is imported; None removes one."""
    path: list[str]
    """Where the launcher finds modules (`sys.path`); the worker looks there too, after its own places."""
    worker: bytes
    """The pickle of (class, args, kwargs)."""
    directory: Endpoint
    key: bytes
    engine: dict[str, Any]
    """`Engine.describe()` of the launcher: from it the worker makes the engine of `self.cluster`."""
    methods: tuple[str, ...]
    """What can be called."""
    is_async: bool
    """Whether the class has coroutine methods, so that they need an event loop."""
    max_concurrency: int | None
    """How many plain methods may run at once; None: one."""
    start_seconds: float


class Seat(Protocol):
    """One started worker, as its starter sees it."""

    spec: SeatSpec
    opened: Token
    """Its outcome is None when the worker is up, or the `Failure` of its start: its own `__init__`'s, or a death."""

    def kill(self) -> None:
        """End the worker now, without waiting and without its cleanup. Idempotent."""

    def release(self, seconds: float) -> None:
        """End the worker in order, by force after `seconds`. On return its process is gone. Idempotent."""

    def why_ended(self, seconds: float) -> str | None:
        """How it ended ("killed by SIGKILL", "exit code 3"); None if the engine does not know after `seconds`."""


class Caller(Protocol):
    """Carries calls to seats. Its methods may be used from any thread except the post's own."""

    def call(self, seats: Sequence[Any], method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Token]:
        """Call every seat with the same arguments, which are pickled once if they are large.

        Calls to one seat begin in the order in which they were made. Raises `InvalidInput`, naming the argument, when
        one cannot be pickled: no seat has been called then (`cluster/cargo.py`: `refuse_unpicklable`).
        """

    def gather(self, tokens: Sequence[Token], seconds: float) -> list[Any] | None:
        """Each token's outcome, or None (see above). Never raises what a worker or the engine did to a call."""

    def future(self, token: Token) -> "Future[Any]":
        """Completes with the token's outcome, never with an exception."""

    def cancel(self, token: Token) -> None:
        """Cancel a coroutine method, drop a plain one that has not begun; one that runs goes on unheard."""


class Engine(Caller, Protocol):
    """Starts seats.

    The driver makes one (`RayEngine(address, namespace=…, num_nodes=…, num_gpus=…, num_cpus=…)`); a worker that
    launches groups makes its own from what the driver's `describe()` gave (`RayEngine.attached(description, post)`).
    """

    kind: str
    """What names it in `describe()`: local, inline or ray."""
    sets_visible_devices: bool
    driver_ip: str
    """Where workers on all nodes reach the process that made the engine."""

    def nodes(self) -> tuple[NodeInfo, ...]:
        """The nodes in their order, with what is free on them now."""

    def start(self, spec: SeatSpec, place: Placement) -> Seat:
        """Begin to start a worker and return at once, so that groups start in parallel. Failures: `Seat.opened`."""

    def describe(self) -> dict[str, Any]:
        """What a worker needs to use the same engine, `kind` among it. msgpack can hold it."""

    def membership(self, group: str) -> "Membership | None":
        """The cluster to which a group belongs that another program has launched; None if there is none."""

    def close(self) -> None:
        """Release all seats that are left, and the engine's own resources. Idempotent, bounded."""
