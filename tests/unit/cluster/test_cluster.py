"""What a cluster says of its nodes."""

from types import SimpleNamespace

import pytest

from outrider.cluster import Cluster, NodeInfo


def node(node_id: int, n_cpus: float) -> NodeInfo:
    return NodeInfo(node_id, f"10.0.0.{node_id}", f"node-{node_id}", n_cpus, 0, n_cpus, 0)


@pytest.mark.parametrize(("cpus", "working"), [([0, 4, 4], [1, 2]), ([2, 0], [0]), ([0, 0], [0, 1])])
def test_a_node_without_cpus_is_not_for_rollouts_unless_all_are(cpus, working):
    cluster = SimpleNamespace(nodes=tuple(node(i, n) for i, n in enumerate(cpus)))
    assert [found.node_id for found in Cluster.working_nodes.fget(cluster)] == working
