"""A store that not all workers could reach is refused before anything runs."""

import pytest

from outrider.cluster.rollouts.opening import check_reach, open_cluster
from outrider.core.errors import InvalidInput
from outrider.store import StoreUrl

FAR = "192.0.2.1"


@pytest.mark.parametrize(
    ("store_url", "ips", "says"),
    [
        ("sqlite:///runs.db", ["127.0.0.1", FAR], "has 2 nodes"),
        ("sqlite:///runs.db", [FAR], f"is on another machine, {FAR}"),
    ],
)
def test_a_file_is_refused_where_others_would_have_to_read_it(store_url: str, ips: list[str], says: str):
    with pytest.raises(InvalidInput, match=f"{says}, .*--store postgresql://"):
        check_reach(StoreUrl(store_url), ips)


@pytest.mark.parametrize(
    ("store_url", "ips"),
    [
        ("sqlite:///runs.db", ["127.0.0.1"]),
        ("sqlite:///runs.db", ["::1"]),
        ("postgresql://there/runs", ["127.0.0.1", FAR]),
    ],
)
def test_a_store_that_all_workers_reach_is_taken(store_url: str, ips: list[str]):
    check_reach(StoreUrl(store_url), ips)


def test_a_store_in_memory_is_refused_before_a_cluster_is_looked_for():
    with (
        pytest.raises(InvalidInput, match="lives in one process"),
        open_cluster("no-such-place:1", StoreUrl("memory://")),
    ):
        pass
