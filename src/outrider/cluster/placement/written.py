"""Placements that are written as a text."""

from collections.abc import Sequence
from typing import Literal

import msgspec

from outrider.cluster.info import NodeInfo
from outrider.cluster.placement.grammar import parse_pieces, shared_out
from outrider.cluster.placement.place import Placement
from outrider.cluster.placement.room import NodeGroup, amount, check_group, members, numbered_gpus, refuse
from outrider.cluster.placement.strategies import (
    FlexiblePlacementStrategy,
    check_share,
    numbered_nodes,
    places_on_gpus,
    places_on_nodes,
)
from outrider.core.errors import InvalidInput


class WrittenPlacementStrategy(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """What `parse_placement` gives."""

    text: str
    unit: Literal["gpu", "node"] | None = None
    share: float = 1
    num_cpus: float = 0
    node_group: NodeGroup | None = None

    def __post_init__(self) -> None:
        check_group(self.node_group)
        if self.unit not in (None, "gpu", "node"):
            raise InvalidInput(f"unit must be 'gpu', 'node' or None, not {self.unit!r}")
        parse_pieces(self.text)
        check_share(self.share)
        amount(self.num_cpus, "num_cpus")

    def __str__(self) -> str:
        return f"placement {self.text!r}"

    def places(self, nodes: Sequence[NodeInfo]) -> list[Placement]:
        chosen = members(nodes, self.node_group, self)
        n_gpus = len(numbered_gpus(chosen))
        if self.unit == "node" or (self.unit is None and not n_gpus):
            by_number = numbered_nodes(chosen, self.node_group)
            lists = self._resources_by_rank(list(by_number), nodes)
            if any(len(numbers) > 1 for numbers in lists):
                refuse(self, "gives a process several nodes, but a worker lives on one", nodes)
            wanted = 0, amount(self.num_cpus, "num_cpus")
            return places_on_nodes([number for (number,) in lists], wanted, by_number, self, nodes)
        lists = self._resources_by_rank(list(range(n_gpus)), nodes)
        return places_on_gpus(FlexiblePlacementStrategy(lists, self.share, self.num_cpus), chosen, self, nodes)

    def _resources_by_rank(self, there: list[int], nodes: Sequence[NodeInfo]) -> list[tuple[int, ...]]:
        found: dict[int, tuple[int, ...]] = {}
        for text, ranks, named in parse_pieces(self.text):
            resources = there if ranks is None else list(ranks)
            if not there:
                refuse(self, "needs GPUs, and there are none", nodes)
            processes = range(len(resources)) if named is None else named
            found |= shared_out(resources, processes, f"placement {self.text!r}, piece {text!r}")
        return [found[rank] for rank in range(len(found))]


def parse_placement(
    text: str,
    *,
    unit: Literal["gpu", "node"] | None = None,
    share: float = 1,
    num_cpus: float = 0,
    node_group: NodeGroup | None = None,
) -> WrittenPlacementStrategy:
    """The strategy that a text describes. Numbers count from 0 and ranges include both ends.

    ```
    placement = "all" [":" ranks] | piece {"," piece}
    piece     = ranks [":" ranks]          resources, and the process ranks that are placed on them
    ranks     = number | number "-" number
    ```

    | text | meaning |
    |---|---|
    | `0-3` | four workers, one on each of the resources 0 to 3 |
    | `0,2,5-7` | five workers, on the resources 0, 2, 5, 6 and 7 |
    | `all` | one worker on each resource there is |
    | `0-1:0-3,2-3:4-7` | ranks 0 to 3 on the resources 0 and 1, two on each; 4 to 7 on 2 and 3 |
    | `0-3:0-1` | rank 0 has the resources 0 and 1, rank 1 has 2 and 3 |
    | `0-1:0-3,5` | a piece without process ranks goes on counting: rank 4 on resource 5 |

    Resources are the GPUs of the cluster, counted from node to node; where there are none, its nodes. `unit` settles
    it. With a `node_group` they are those of its nodes, counted from 0 within the group. In each piece the number of
    processes must divide the number of resources or be a multiple of it, and all process ranks together must be 0 to
    n - 1, each once. Workers on one GPU share it evenly; `share` is the part of each GPU that the group takes, and
    `num_cpus` are reserved for each worker. Errors in the text are raised here and name the piece; what does not fit
    the cluster is refused by `places`.
    """
    return WrittenPlacementStrategy(text, unit, share, num_cpus, node_group)


def default_placement(nodes: Sequence[NodeInfo]) -> list[Placement]:
    """One worker for each GPU; in a cluster without GPUs, one for each node."""
    return WrittenPlacementStrategy("all").places(nodes)
