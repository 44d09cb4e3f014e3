"""What is known of a worker, and of a node of the cluster."""

from collections.abc import Mapping

import msgspec

from outrider.cluster.address import WorkerAddress


class WorkerInfo(msgspec.Struct, frozen=True):
    """One running worker. Ranks count within its group; `node_id` within the cluster."""

    address: WorkerAddress
    rank: int
    node_id: int
    gpu_id: int = -1
    """The first of its GPUs as its node numbers them; -1 for a worker without."""
    node_ip: str = "127.0.0.1"
    available_gpus: tuple[int, ...] = ()
    """All GPUs it may use, as its node numbers them."""
    group_world_size: int = 1
    pid: int = 0
    local_rank: int = 0
    local_world_size: int = 1


class NodeInfo(msgspec.Struct, frozen=True):
    """One node: what it has, and what of it nobody has reserved."""

    node_id: int
    """Its index in the cluster."""
    ip: str
    name: str
    """The engine's own id."""
    n_cpus: float
    n_gpus: float
    free_cpus: float
    free_gpus: float
    labels: Mapping[str, str] = {}
    free_by_gpu: tuple[float, ...] = ()
    """What is free of each GPU, from 0 to 1, where the engine knows it; empty where it knows the sum only."""
