"""The place of one worker, and what decides on the places of a group."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import msgspec

from outrider.cluster.info import NodeInfo


class Placement(msgspec.Struct, frozen=True):
    """Where one worker of a group runs, and what is reserved for it there."""

    rank: int
    node_id: int
    local_rank: int
    """Its index among the group's workers on this node."""
    local_world_size: int
    n_gpus: float
    """How much of GPUs is reserved: a whole number, or a part of the one in `gpus`."""
    gpus: tuple[int, ...]
    """Its GPUs, as its node numbers them. An engine that picks GPUs itself keeps to their count."""
    n_cpus: float
    node_rank: int = 0
    """The index of its node among the nodes of the group."""


@runtime_checkable
class PlacementStrategy(Protocol):
    """Decides how many workers a group has, and where each of them runs."""

    def places(self, nodes: Sequence[NodeInfo]) -> list[Placement]:
        """One place for each rank, in order of rank. What does not fit raises `InvalidInput`, which shows what is free.

        The nodes come in the order of their ids.
        """
        ...
