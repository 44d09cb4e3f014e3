"""The class to subclass: its instances run in processes of their own, anywhere in the cluster."""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

from outrider.cluster.address import WorkerAddress
from outrider.cluster.group import WorkerGroup
from outrider.cluster.info import WorkerInfo
from outrider.cluster.station import Membership, Station, current_station
from outrider.core.errors import ClusterError, InvalidInput

if TYPE_CHECKING:
    from outrider.cluster.channel import Channel
    from outrider.cluster.cluster import Cluster
    from outrider.cluster.pending import Pending


class Worker:
    """One worker of a group. What it is was decided by the group: `__init__` takes the user's arguments only.

    Every public method can be called on the group. Coroutine methods of one worker run concurrently on one event loop;
    plain methods one at a time, unless the group was launched with `max_concurrency`.

    The arguments of `Worker.__init__` itself are for a process that a worker started: there, `Worker("Group:0",
    world_size=2, rank=1)` is the worker "Group:0:1", until the process ends.
    """

    _station: Station | None
    _rank: int
    _world_size: int
    _local_rank: int
    _group_name: str

    def __new__(cls, *_: Any, **__: Any) -> Self:
        worker = super().__new__(cls)
        station = current_station()
        worker._station = station
        if station is not None:
            worker._become(station.info)
        return worker

    def __init__(
        self,
        parent_address: WorkerAddress | str | None = None,
        world_size: int | None = None,
        rank: int | None = None,
    ) -> None:
        if parent_address is None:
            return
        if not isinstance(parent_address, str | WorkerAddress):
            raise InvalidInput(f"{type(self).__name__} has no __init__ that takes {parent_address!r}")
        if world_size is None or rank is None or not 0 <= rank < world_size:
            raise InvalidInput(
                f"a child of {parent_address} needs world_size and a rank below it, not {world_size}, {rank}"
            )
        self._station = _child(parent_address, world_size, rank)
        self._become(self._station.info)

    @classmethod
    def create_group(cls, *args: Any, **kwargs: Any) -> "WorkerGroup[Self]":
        """A group of this class; `launch` starts it. The arguments are those of `__init__` in each worker."""
        return WorkerGroup(cls, args, kwargs)

    @property
    def worker_address(self) -> WorkerAddress:
        return self._seated.address

    @property
    def worker_info(self) -> WorkerInfo:
        return self._seated.info

    @property
    def cluster(self) -> "Cluster":
        """The cluster this worker is in. Groups that it launches end when it does."""
        return self._seated.cluster

    def get_name(self) -> str:
        return self.worker_address.get_name()

    def send(
        self,
        object: Any,
        dst_group_name: str,
        dst_rank: int | Sequence[int],
        async_op: bool = False,
        timeout: float | None = None,
    ) -> "Pending[None] | None":
        """Send any object to a worker. Returns when the peer's process has it; with `async_op` a handle, at once."""
        return self._seated.collective.send(object, WorkerAddress.child_of(dst_group_name, dst_rank), async_op, timeout)

    def recv(
        self, src_group_name: str, src_rank: int | Sequence[int], async_op: bool = False, timeout: float | None = None
    ) -> Any:
        """The next object that this worker was sent by that one; with `async_op` a handle of it."""
        return self._seated.collective.recv(WorkerAddress.child_of(src_group_name, src_rank), async_op, timeout)

    def send_tensor(
        self,
        tensor: Any,
        dst_group_name: str,
        dst_rank: int | Sequence[int],
        async_op: bool = False,
        timeout: float | None = None,
    ) -> "Pending[None] | None":
        """Send one tensor or array, for `recv_tensor` on the other side."""
        return self._seated.collective.send_tensor(
            tensor, WorkerAddress.child_of(dst_group_name, dst_rank), async_op, timeout
        )

    def recv_tensor(
        self,
        tensor: Any,
        src_group_name: str,
        src_rank: int | Sequence[int],
        async_op: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """Receive into `tensor`, which must have the size of what is sent."""
        return self._seated.collective.recv_tensor(
            tensor, WorkerAddress.child_of(src_group_name, src_rank), async_op, timeout
        )

    def create_channel(self, name: str, node_id: int = 0, maxsize: int = 0, *, max_bytes: int = 0) -> "Channel":
        """A new channel on that node; `maxsize` 0 is no bound."""
        from outrider.cluster.channel import Channel  # noqa: PLC0415 a channel is served by a worker

        channel: Channel = Channel.create(name, node_id, maxsize, max_bytes=max_bytes, cluster=self.cluster)
        return channel

    def connect_channel(self, name: str) -> "Channel":
        """A channel that somebody has created, or is about to."""
        from outrider.cluster.channel import Channel  # noqa: PLC0415 a channel is served by a worker

        channel: Channel = Channel.connect(name, cluster=self.cluster)
        return channel

    @property
    def _seated(self) -> Station:
        if self._station is None:
            raise ClusterError(
                f"this {type(self).__name__} is a plain object, not a worker of a cluster: start it by "
                f"{type(self).__name__}.create_group(...).launch(cluster)"
            )
        return self._station

    def _become(self, info: WorkerInfo) -> None:
        self._rank = info.rank
        self._world_size = info.group_world_size
        self._local_rank = info.local_rank
        self._group_name = info.address.group_name


def _child(parent_address: WorkerAddress | str, world_size: int, rank: int) -> Station:
    """The station of a worker whose process a worker started by itself."""
    parent = parent_address if isinstance(parent_address, WorkerAddress) else WorkerAddress.from_name(parent_address)
    membership = Membership.from_environment()
    info = WorkerInfo(
        address=parent.get_child_address(rank),
        rank=rank,
        node_id=membership.node_id,
        node_ip=membership.node_ip,
        group_world_size=world_size,
        pid=os.getpid(),
        local_rank=rank,
        local_world_size=world_size,
    )
    station = Station(info, membership)
    station.found_family(parent.get_name(), world_size)
    station.join()
    station.own_process()
    return station
