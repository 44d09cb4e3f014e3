"""Which node the next worker of a run goes to.

A node on which a worker was lost is *doubted* for a while, unless another is up there and stays so: the node may be
gone, and the engine not know yet. It gets a worker only if no other node is left.
"""

import math
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from outrider.cluster.info import NodeInfo
from outrider.cluster.placement.place import Placement
from outrider.core.clock import Clock
from outrider.core.errors import ClusterError
from outrider.runner.worker import WorkerSpec

DOUBT_SECONDS = 20.0
"""Longer than an engine takes to notice that a node is gone."""
SETTLE_SECONDS = 3.0
"""The workers of a node that is gone are all lost within this time of each other."""

Choice = Callable[[WorkerSpec, Sequence[NodeInfo]], Awaitable[tuple[NodeInfo, WorkerSpec] | None]]
"""Takes the next worker and the nodes it could go to, the best first; says where it goes, and as what.

None: to a node that has no room just now.
"""


async def the_best(spec: WorkerSpec, nodes: Sequence[NodeInfo]) -> tuple[NodeInfo, WorkerSpec]:
    return nodes[0], spec


class Occupant(Protocol):
    """A worker as those know it who care for what it uses."""

    index: int

    def recall(self, reason: str) -> None:
        """End it, since it can do nothing more where it is; it is replaced."""

    async def answers(self) -> bool:
        """Whether it is up and says so within a moment: then its node is there too."""


@dataclass(slots=True, eq=False)
class Berth:
    """The place of one worker, or of the pool of several, from before it is started until it is gone."""

    node: NodeInfo
    n_cpus: float = 0.0
    asked_at: float = math.inf
    """When the engine was asked for it: what it counts as free from then on does not include it."""
    is_up: bool = False
    occupant: Occupant | None = None


class Berths:
    """The places that the workers of one run have taken."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._taken: set[Berth] = set()
        self._lost_at: dict[str, float] = {}
        self._left_out: set[str] = set()

    def now(self) -> float:
        return self._clock.monotonic()

    def ranked(self, nodes: Sequence[NodeInfo], n_cpus: float, *, as_of: float) -> list[NodeInfo]:
        """The nodes that had so many CPUs free at that time and still have, those with the fewest of ours first."""
        n_ours = Counter(berth.node.name for berth in self._taken)
        sure = {berth.node.name for berth in self._taken if berth.is_up}
        now = self.now()

        def has_room(node: NodeInfo) -> bool:
            if node.name in self._left_out:
                return False
            since = (berth for berth in self._taken if berth.node.name == node.name and berth.asked_at >= as_of)
            return node.free_cpus - sum(berth.n_cpus for berth in since) >= n_cpus

        def doubt(node: NodeInfo) -> float:
            ago = now - self._lost_at.get(node.name, -math.inf)
            if node.name in sure:
                return 1.0 if ago < SETTLE_SECONDS else 0.0
            return max(0.0, 1.0 + DOUBT_SECONDS - ago) if ago < DOUBT_SECONDS else 0.0

        def rank(node: NodeInfo) -> tuple[float, int, int]:
            return doubt(node), n_ours[node.name], node.node_id

        return sorted(filter(has_room, nodes), key=rank)

    def leave_out(self, node: NodeInfo) -> bool:
        """Send nothing there any more; whether that is new."""
        is_new = node.name not in self._left_out
        self._left_out.add(node.name)
        return is_new

    @property
    def taken(self) -> tuple[Berth, ...]:
        return tuple(self._taken)

    def take(self, node: NodeInfo, n_cpus: float) -> Berth:
        berth = Berth(node, n_cpus)
        self._taken.add(berth)
        return berth

    def leave(self, berth: Berth, *, is_lost: bool) -> None:
        self._taken.remove(berth)
        if is_lost:
            self._lost_at[berth.node.name] = self.now()


class OnNode(msgspec.Struct, frozen=True):
    """One worker on the node of this name."""

    name: str
    n_cpus: float

    def places(self, nodes: Sequence[NodeInfo]) -> list[Placement]:
        node = next((node for node in nodes if node.name == self.name), None)
        if node is None:
            raise ClusterError(f"node {self.name} is gone")
        return [
            Placement(
                rank=0,
                node_id=node.node_id,
                local_rank=0,
                local_world_size=1,
                n_gpus=0,
                gpus=(),
                n_cpus=self.n_cpus,
            )
        ]
