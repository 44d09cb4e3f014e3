"""Where the workers of a group run.

A strategy turns the nodes of a cluster into one place for each rank. GPUs are counted from node to node over the whole
cluster, nodes by their id. With a `node_group` both count from 0 within the group, which is given by labels
(`{"zone": "a"}`) or by the value of the nodes' label `node_group` (`"robots"`).
"""

from outrider.cluster.placement.place import Placement, PlacementStrategy
from outrider.cluster.placement.room import NodeGroup
from outrider.cluster.placement.strategies import (
    CpuPlacementStrategy,
    FlexiblePlacementStrategy,
    NodePlacementStrategy,
    PackedPlacementStrategy,
    SpreadPlacementStrategy,
)
from outrider.cluster.placement.written import WrittenPlacementStrategy, default_placement, parse_placement

__all__ = [
    "CpuPlacementStrategy",
    "FlexiblePlacementStrategy",
    "NodeGroup",
    "NodePlacementStrategy",
    "PackedPlacementStrategy",
    "Placement",
    "PlacementStrategy",
    "SpreadPlacementStrategy",
    "WrittenPlacementStrategy",
    "default_placement",
    "parse_placement",
]
