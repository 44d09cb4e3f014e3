"""Workers as threads of one process: the same results and errors, where a debugger reaches them."""

import os
import threading

import pytest

from cluster_workers import Broken, Calculator, Parent
from outrider.cluster import Cluster, Worker, WorkerGroup, scatter
from outrider.core.errors import ClusterError, WorkerFailed

SECONDS = 30.0


class Neighbour(Worker):
    """Of this process: it need not be importable elsewhere, since nothing is."""

    def __init__(self):
        self.variables = {name: os.environ.get(name) for name in ("RANK", "WORLD_SIZE", "WORKER_NAME")}

    def in_init(self):
        return self.variables

    def turn(self, item):
        peer = 1 - self._rank
        self.send(item, self._group_name, peer)
        return self.recv(self._group_name, peer, timeout=SECONDS)


@pytest.fixture(scope="module")
def cluster():
    with Cluster(local=True, processes=False, num_nodes=2) as cluster:
        yield cluster


def test_workers_are_in_this_process_and_find_their_environment_in_init(cluster):
    before = dict(os.environ)
    with Neighbour.create_group().launch(cluster, name="neighbours") as group:
        assert [info.pid for info in group.worker_info_list] == [os.getpid()] * 2
        assert group.in_init().wait(SECONDS) == [
            {"RANK": str(rank), "WORLD_SIZE": "2", "WORKER_NAME": f"neighbours:{rank}"} for rank in range(2)
        ]
        assert group.turn(scatter(["a", "b"])).wait(SECONDS) == ["b", "a"]
    assert dict(os.environ) == before


def test_calls_give_what_they_give_between_processes(cluster):
    with Calculator.create_group().launch(cluster, name="threads") as group:
        assert group.add(1).wait(SECONDS) == [1, 101]
        assert [call.wait(SECONDS) for call in [group.meet(3) for _ in range(3)]] == [[3, 3]] * 3
        assert WorkerGroup.from_group_name(Calculator, "threads").add(1).wait(SECONDS) == [1, 101]
        with pytest.raises(KeyError) as caught:
            group.fail(1).wait(SECONDS)
        assert "raised in worker threads:1" in caught.value.__notes__[0]
        with pytest.raises(WorkerFailed, match="cannot be pickled"):
            group.lock().wait(SECONDS)


def test_children_and_failing_starts_are_as_between_processes(cluster):
    with Parent.create_group().launch(cluster, "0", name="parents") as group:
        ((names, pids),) = group.launch_children(2).wait(SECONDS)
        assert names == ["parents:0:0", "parents:0:1"]
        assert pids == [os.getpid()] * 2
    with pytest.raises(ValueError, match="rank 0 does not like it"):
        Broken.create_group(0).launch(cluster, "0")


def test_closing_leaves_no_thread():
    before = set(threading.enumerate())
    with Cluster(local=True, processes=False) as cluster:
        assert Cluster.current() is cluster
        group = Calculator.create_group().launch(cluster)
        assert group.meet(1).wait(SECONDS) == [1]
        assert group.add(1).wait(SECONDS) == [1]
    for thread in set(threading.enumerate()) - before:
        thread.join(SECONDS)
        assert not thread.is_alive()
    with pytest.raises(ClusterError, match="closed"):
        group.add(1)
