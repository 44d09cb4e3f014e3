"""The nodes of a local cluster: as many as one likes, all on this machine."""

import os
from collections.abc import Iterable

import msgspec

from outrider.cluster.info import NodeInfo
from outrider.cluster.placement.place import Placement
from outrider.core.bounds import Count, PositiveAmount, PositiveCount, check_bounds
from outrider.core.errors import InvalidInput

LOCAL_IP = "127.0.0.1"


class Pretence(msgspec.Struct, frozen=True):
    """What the nodes shall be: `n_gpus` and `n_cpus` are of each of them."""

    n_nodes: PositiveCount = 1
    n_gpus: Count = 0
    n_cpus: PositiveAmount = msgspec.field(default_factory=lambda: float(os.cpu_count() or 1))

    def __post_init__(self) -> None:
        try:
            check_bounds(self)
        except InvalidInput as exc:
            raise InvalidInput(
                f"a local cluster has at least one node, each with some CPUs, not num_nodes={self.n_nodes!r:.40}, "
                f"num_gpus={self.n_gpus!r:.40}, num_cpus={self.n_cpus!r:.40}: {exc}"
            ) from exc

    def nodes(self, taken: Iterable[Placement]) -> tuple[NodeInfo, ...]:
        """The nodes, less what these workers have of them."""
        places = list(taken)
        return tuple(
            self._node(node_id, [p for p in places if p.node_id == node_id]) for node_id in range(self.n_nodes)
        )

    def _node(self, node_id: int, places: list[Placement]) -> NodeInfo:
        free = [1.0] * self.n_gpus
        for place in places:
            for gpu in place.gpus:
                free[gpu] -= place.n_gpus / len(place.gpus)
        return NodeInfo(
            node_id=node_id,
            ip=LOCAL_IP,
            name=f"local-{node_id}",
            n_cpus=self.n_cpus,
            n_gpus=float(self.n_gpus),
            free_cpus=self.n_cpus - sum(place.n_cpus for place in places),
            free_gpus=sum(free),
            free_by_gpu=tuple(free),
        )
