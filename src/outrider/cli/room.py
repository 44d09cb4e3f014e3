"""Whether the store's server has room for the workers of a command."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from outrider.cli.machines import Demand, n_pools_of
from outrider.cli.options import opened
from outrider.store import Store, StoreUrl

if TYPE_CHECKING:
    from outrider.cluster.cluster import Cluster


async def url_for_workers(
    store: Store,
    n_workers: int,
    say: Callable[[str], None],
    *,
    as_tasks: bool,
    cluster: "Cluster | None",
    demand: Demand | None = None,
) -> StoreUrl:
    """The URL that workers and the pools of their machines shall open.

    Raises `InvalidInput` if the server has no connection for each of their processes.
    """
    if not store.url.scheme.startswith("postgres") or (as_tasks and cluster is None):
        return store.url
    from outrider.store.postgres.room import url_with_room  # noqa: PLC0415 its client is an extra

    n_machines = 1 if cluster is None else len(cluster.working_nodes)
    n_pools = n_pools_of(demand, cluster)
    url, note = await url_with_room(store.url, n_workers, n_pools=n_pools, n_machines=n_machines)
    if note:
        say(f"note: {note}")
    return url


async def check_store(
    url: StoreUrl | None, n_workers: int, *, as_tasks: bool, cluster: "Cluster | None", demand: Demand | None
) -> None:
    """Raise `InvalidInput` if the store that was named cannot be used, before a folder is made for the run."""
    if url is not None:
        async with opened(url, create=True) as store:
            await url_for_workers(store, n_workers, _unsaid, as_tasks=as_tasks, cluster=cluster, demand=demand)


def _unsaid(_note: str) -> None:
    """It is said when the workers are started."""
