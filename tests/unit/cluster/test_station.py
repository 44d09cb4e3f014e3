"""How a process finds its cluster."""

from rich.pretty import pretty_repr

from outrider.cluster.post import Endpoint
from outrider.cluster.station import Membership

MEMBERSHIP = Membership(
    directory=Endpoint(name="directory", node="n", unix="", host="127.0.0.1", port=1),
    key=b"the key of the cluster",
    engine={},
    node_id=3,
    node_ip="127.0.0.1",
)


def test_the_key_of_a_cluster_is_not_printed():
    for text in (repr(MEMBERSHIP), f"{MEMBERSHIP}", pretty_repr([MEMBERSHIP])):
        assert "key" not in text
        assert "node_id=3" in text
