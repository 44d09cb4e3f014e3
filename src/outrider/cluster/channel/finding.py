"""How a channel's name becomes a process of the cluster, and the other way round."""

from typing import TYPE_CHECKING

from outrider.cluster.channel.worker import ChannelWorker
from outrider.cluster.group import WorkerGroup
from outrider.cluster.placement import NodePlacementStrategy
from outrider.cluster.post import Endpoint
from outrider.core.errors import ChannelLost, InvalidInput, UnknownWorker, WorkerDied

if TYPE_CHECKING:
    from outrider.cluster.cluster import Cluster

FIND_SECONDS = 30.0


def start(
    cluster: "Cluster", name: str, node_id: int, maxsize: int, max_bytes: int
) -> tuple[WorkerGroup[ChannelWorker], Endpoint]:
    """A process for a new channel; it ends with the cluster, or with the worker that this is."""
    if maxsize < 0 or max_bytes < 0:
        raise InvalidInput(f"channel {name!r}: maxsize and max_bytes are 0 (no bound) or more: {maxsize}, {max_bytes}")
    group = ChannelWorker.create_group(maxsize, max_bytes)
    group.launch(cluster, NodePlacementStrategy([node_id]), name=_group_name(name))
    return group, _where(group)


def find(cluster: "Cluster", name: str) -> Endpoint:
    """The process of a channel that somebody has created, or is about to."""
    try:
        return _where(WorkerGroup.from_group_name(ChannelWorker, _group_name(name), cluster))
    except UnknownWorker as exc:
        raise UnknownWorker(f"there is no channel {name!r}: {exc}") from exc
    except WorkerDied as exc:
        raise ChannelLost(f"channel {name!r} is gone, and what it held with it: {exc.cause}") from exc


def _where(group: WorkerGroup[ChannelWorker]) -> Endpoint:
    (endpoint,) = group.where().wait(FIND_SECONDS)
    assert isinstance(endpoint, Endpoint)
    return endpoint


def _group_name(name: str) -> str:
    return f"channel {name}"
