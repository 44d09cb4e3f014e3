"""The cluster that the workers of a run shall be on, checked against the run's store."""

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from outrider.core.errors import InvalidInput
from outrider.store import StoreUrl

if TYPE_CHECKING:
    from outrider.cluster.cluster import Cluster


@contextmanager
def open_cluster(
    address: str, store_url: StoreUrl, *, say: Callable[[str], None] = lambda _: None
) -> Iterator["Cluster"]:
    """The Ray cluster at `address`. Empty: that of RAY_ADDRESS, or one of our own, ended here.

    `InvalidInput` if there is none, or if its nodes could not all reach the store. Blocks: nothing else is under way
    when a command opens its cluster.
    """
    _refuse_memory(store_url)
    from outrider.cluster.cluster import Cluster  # noqa: PLC0415 Ray is an extra, and takes its time

    found = address or os.environ.get("RAY_ADDRESS")
    say(f"Joining Ray at {found} …" if found else "Starting a Ray on this machine …")
    with Cluster(address or None) as cluster:
        check_reach(store_url, [node.ip for node in cluster.nodes])
        yield cluster


def _refuse_memory(store_url: StoreUrl) -> None:
    if store_url.scheme == "memory":
        raise InvalidInput("a memory:// store lives in one process; with --ray give --store postgresql://…")


def check_reach(store_url: StoreUrl, ips: list[str]) -> None:
    """Raise `InvalidInput` unless workers on nodes with these addresses can open the store."""
    if store_url.scheme != "sqlite" or is_one_here(ips):
        return
    where = f"has {len(ips)} nodes" if len(ips) > 1 else f"is on another machine, {ips[0]}"
    raise InvalidInput(
        f"the Ray cluster {where}, and a SQLite store is a file of this one; "
        "give a store that all nodes reach: --store postgresql://USER@HOST/DATABASE"
    )


def is_one_here(ips: list[str]) -> bool:
    """Whether the cluster is one node, and that is this machine."""
    return len(ips) == 1 and _is_here(ips[0])


def _is_here(ip: str) -> bool:
    """Whether the address is one of this machine's own."""
    with socket.socket(socket.AF_INET6 if ":" in ip else socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((ip, 0))
        except OSError:
            return False
    return True
