"""Workers that run anywhere in a cluster, groups of them that are called as one, and how they talk to each other."""

from outrider.cluster.address import WorkerAddress
from outrider.cluster.calls import Call
from outrider.cluster.channel import Channel
from outrider.cluster.channel.durable import DurableChannel
from outrider.cluster.cluster import Cluster
from outrider.cluster.collective.group import CollectiveGroup
from outrider.cluster.group import GroupView, WorkerGroup
from outrider.cluster.info import NodeInfo, WorkerInfo
from outrider.cluster.pending import Pending
from outrider.cluster.placement import (
    CpuPlacementStrategy,
    FlexiblePlacementStrategy,
    NodePlacementStrategy,
    PackedPlacementStrategy,
    Placement,
    PlacementStrategy,
    SpreadPlacementStrategy,
    parse_placement,
)
from outrider.cluster.scatter import scatter
from outrider.cluster.worker import Worker

__all__ = [
    "Call",
    "Channel",
    "Cluster",
    "CollectiveGroup",
    "CpuPlacementStrategy",
    "DurableChannel",
    "FlexiblePlacementStrategy",
    "GroupView",
    "NodeInfo",
    "NodePlacementStrategy",
    "PackedPlacementStrategy",
    "Pending",
    "Placement",
    "PlacementStrategy",
    "SpreadPlacementStrategy",
    "Worker",
    "WorkerAddress",
    "WorkerGroup",
    "WorkerInfo",
    "parse_placement",
    "scatter",
]
