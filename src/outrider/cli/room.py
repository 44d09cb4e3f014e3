"""Whether the store's server has room for the workers of a command."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from outrider.store import Store, StoreUrl

if TYPE_CHECKING:
    from outrider.cluster.cluster import Cluster


async def url_for_workers(
    store: Store, n_workers: int, say: Callable[[str], None], *, as_tasks: bool, cluster: "Cluster | None"
) -> StoreUrl:
    """The URL that workers shall open; `InvalidInput` if the server has no connection for each of their processes."""
    if not store.url.scheme.startswith("postgres") or (as_tasks and cluster is None):
        return store.url
    from outrider.store.postgres.room import url_with_room  # noqa: PLC0415 its client is an extra

    n_machines = 1 if cluster is None else len(cluster.working_nodes)
    url, note = await url_with_room(store.url, n_workers, n_machines=n_machines)
    if note:
        say(f"note: {note}")
    return url
