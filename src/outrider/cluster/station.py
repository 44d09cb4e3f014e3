"""What a worker is and what it talks through: its identity, its post, and the directory of its cluster."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec

from outrider.cluster.address import WorkerAddress
from outrider.cluster.collective.group import CollectiveGroup
from outrider.cluster.directory import DirectoryClient
from outrider.cluster.info import WorkerInfo
from outrider.cluster.post import Endpoint, Post
from outrider.core.decoding import from_json
from outrider.core.errors import InvalidInput

if TYPE_CHECKING:
    from outrider.cluster.cluster import Cluster

CLUSTER_VARIABLE = "OUTRIDER_CLUSTER"
JOIN_SECONDS = 10.0

_current: ContextVar["Station | None"] = ContextVar("outrider_station", default=None)
_own: list["Station"] = []
"""The station of this process where there is one for all of it, whatever thread asks."""


class Membership(msgspec.Struct, frozen=True):
    """How a process finds the cluster that it belongs to. Printed without its key."""

    directory: Endpoint
    key: bytes
    engine: dict[str, Any]
    node_id: int
    node_ip: str

    def __repr__(self) -> str:
        return f"Membership(node_id={self.node_id}, node_ip={self.node_ip!r})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("node_id", self.node_id), ("node_ip", self.node_ip)]

    def to_text(self) -> str:
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_environment(cls) -> "Membership":
        """The cluster of the worker that started this process."""
        text = os.environ.get(CLUSTER_VARIABLE)
        if text is None:
            raise InvalidInput(
                f"{CLUSTER_VARIABLE} is not set: a worker that launch() did not start can only be made in a process "
                "that a worker started, with that worker's environment"
            )
        return from_json(text, cls)


class Station:
    """Owned by the seat, or by the process that a worker started itself; `close` ends all communication."""

    def __init__(self, info: WorkerInfo, membership: Membership) -> None:
        self.info = info
        self.pid = os.getpid()
        self.membership = membership
        self.post = Post(info.address.get_name(), membership.key, host=info.node_ip)
        self.directory = DirectoryClient(self.post, membership.directory)
        self.collective = CollectiveGroup(info.address, self.post, self.directory)

    @property
    def address(self) -> WorkerAddress:
        return self.info.address

    @cached_property
    def cluster(self) -> "Cluster":
        """The worker's own view of its cluster; groups that it starts end with it."""
        from outrider.cluster.cluster import WorkersCluster  # noqa: PLC0415 it starts workers, and they have it

        return WorkersCluster(self)

    def found_family(self, parent: str, n_children: int) -> None:
        """Say that this worker has so many siblings, unless one of them has said so."""
        with suppress(InvalidInput):
            self.post.run(self.directory.declare(parent, n_children), timeout=JOIN_SECONDS)

    def join(self) -> None:
        """Be found by others. Mail that comes from now on is kept until the worker asks for it."""
        self.post.run(self.directory.join(self.info), timeout=JOIN_SECONDS)

    def close(self) -> None:
        if "cluster" in self.__dict__:
            self.cluster.close()
        self.collective.close()
        self.post.close()
        if self in _own:
            _own.remove(self)

    def own_process(self) -> None:
        """Be the station of each thread of this process."""
        _own.append(self)

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Be the current station of what runs inside."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)


def current_station() -> Station | None:
    """The station of the worker whose code is running; None in a driver."""
    found = _current.get() or (_own[-1] if _own else None)
    return found if found is not None and found.pid == os.getpid() else None  # a forked process is not the worker
