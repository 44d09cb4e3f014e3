"""The start of a group: what workers find, and what is refused."""

import os
import sys
import threading
import time

import cloudpickle
import pytest

from cluster_workers import Broken, Calculator, Clashing, Doomed, Parent
from outrider.cluster import Cluster, PackedPlacementStrategy, Worker, WorkerAddress, scatter
from outrider.core.errors import CallLate, ClusterError, InvalidInput, WorkerDied

SECONDS = 30.0


class Remembering(Worker):
    """Of a module that other processes cannot import, so it travels by value, as classes of a script do."""

    def __init__(self, number):
        self.number = number
        self.seen = {name: os.environ.get(name) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT")}

    def remembered(self):
        return self.number, self.seen


@pytest.fixture(scope="module")
def cluster():
    with Cluster(local=True, num_nodes=2, num_gpus=2, env_vars={"OF_CLUSTER": "c", "OF_BOTH": "c"}) as cluster:
        yield cluster


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_environment_is_there_and_gpus_are_those_of_the_placement(cluster, monkeypatch):
    huge = "x" * 200_000
    monkeypatch.setenv("HUGE", huge)
    for n in range(300):
        monkeypatch.setenv(f"MANY_{n}", "y" * 1000)
    names = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "CUDA_VISIBLE_DEVICES", "OF_CLUSTER", "OF_BOTH", "MANY_299"]
    with Calculator.create_group().launch(cluster, env_vars={"OF_BOTH": "launch"}) as group:
        assert group.variables(*names).wait(SECONDS) == [
            [str(rank), "4", str(rank % 2), str(rank % 2), "c", "launch", "y" * 1000] for rank in range(4)
        ]
        assert group.variables("HUGE").wait(SECONDS) == [[huge]] * 4
        masters = group.variables("MASTER_ADDR", "MASTER_PORT").wait(SECONDS)
        assert masters == [masters[0]] * 4
        assert masters[0][0] == "127.0.0.1"
        assert int(masters[0][1]) > 1023
        with pytest.raises(InvalidInput, match="0 of 2 GPUs free"):
            Calculator.create_group().launch(cluster, PackedPlacementStrategy(0, 1), name="second")
    assert [node.free_gpus for node in cluster.nodes] == [2, 2]


def test_init_gets_its_arguments_and_the_environment(cluster):

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    try:
        with Remembering.create_group(number=scatter([5, 6])).launch(cluster, "0-1") as group:
            (five, first), (six, second) = group.remembered().wait(SECONDS)
            assert group.name == "Worker_group_Remembering"
    finally:
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    assert (five, six) == (5, 6)
    assert (first["RANK"], second["RANK"], first["WORLD_SIZE"]) == ("0", "1", "2")
    assert first["MASTER_PORT"] == second["MASTER_PORT"]


def test_an_init_that_raises_is_raised_by_launch_at_once_and_leaves_nothing(cluster):
    begun = time.monotonic()
    with pytest.raises(ValueError, match="rank 1 does not like it") as caught:
        Broken.create_group(1).launch(cluster)
    assert time.monotonic() - begun < 30.0  # the others sleep for a minute
    assert "raised in worker Worker_group_Broken:1" in caught.value.__notes__[0]
    assert "in __init__\n    raise ValueError" in caught.value.__notes__[0]
    assert [node.free_gpus for node in cluster.nodes] == [2, 2]
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        Broken.create_group().launch(cluster, "0")


def test_a_process_that_dies_while_it_is_started_is_told_at_once(cluster):
    with pytest.raises(WorkerDied, match="Doomed:0 is gone: its process was killed by SIGKILL while it was"):
        Doomed.create_group().launch(cluster, "0")


def test_without_ray_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    for name in [name for name in sys.modules if name.startswith("outrider.cluster.engines.ray")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(InvalidInput, match=r"Ray is not installed: .*pip install -e \S+\[ray\]"):
        Cluster()


def test_workers_that_do_not_come_up_in_time_are_named_and_ended(cluster):
    with pytest.raises(CallLate, match="'Worker_group_Broken': rank 0, 1 was not up within 1 s"):
        Broken.create_group(7).launch(cluster, "0-1", start_seconds=1)
    assert [node.free_gpus for node in cluster.nodes] == [2, 2]


def test_a_name_stands_for_one_group_at_a_time(cluster):
    with (
        Calculator.create_group().launch(cluster, "0", name="only"),
        pytest.raises(InvalidInput, match="there is a group 'only' already"),
    ):
        Calculator.create_group().launch(cluster, "1", name="only")
    with Calculator.create_group().launch(cluster, "0", name="only") as group:
        assert group.add(1).wait(SECONDS) == [1]
    with pytest.raises(ClusterError, match="'only' is closed"):
        group.add(1)


def test_what_cannot_be_a_group_is_refused_before_anything_starts(cluster):
    with pytest.raises(InvalidInput, match=r"Clashing.close\(\) cannot be called on a group"):
        Clashing.create_group()
    with pytest.raises(InvalidInput, match="was not launched"):
        Calculator.create_group().add(1)
    with pytest.raises(InvalidInput, match=r"Parent\(\) cannot be called: argument 1 \(lock\)"):
        Parent.create_group(threading.Lock()).launch(cluster)
    with pytest.raises(InvalidInput, match="may not hold ':'"):
        Calculator.create_group().launch(cluster, name="a:0")
    with pytest.raises(InvalidInput, match="restarts 0 or more"):
        Calculator.create_group().launch(cluster, restarts=-1)
    with pytest.raises(InvalidInput, match="env_vars: 'A'=1"):
        Calculator.create_group().launch(cluster, env_vars={"A": 1})
    with pytest.raises(InvalidInput, match="GPUs free"):
        Calculator.create_group().launch(cluster, "0-7")
    with pytest.raises(InvalidInput, match="has no address"):
        Cluster("ray://somewhere", local=True)
    with pytest.raises(InvalidInput, match="num_nodes=0"):
        Cluster(local=True, num_nodes=0)


def test_a_worker_that_no_group_started_says_so():
    with pytest.raises(ClusterError, match=r"Calculator.create_group\(...\).launch"):
        Calculator().send(1, "group", 0)
    with pytest.raises(InvalidInput, match="OUTRIDER_CLUSTER is not set"):
        Worker("group:0", world_size=1, rank=0)


def test_children_have_addresses_below_their_parents_and_end_with_it(cluster):
    with Parent.create_group().launch(cluster, "0", name="parents") as parents:
        ((names, pids),) = parents.launch_children(2).wait(SECONDS)
        assert names == ["parents:0:0", "parents:0:1"]
        assert all(map(is_alive, pids))
        assert WorkerAddress.from_name(names[1]).get_parent_address() == parents.worker_info_list[0].address
    assert not any(map(is_alive, pids))


def test_a_process_that_a_worker_starts_can_be_its_child(cluster):
    program = """
from outrider.cluster import Worker
child = Worker(parent_address="parents:0", world_size=2, rank=1)
assert (child._rank, child._world_size, child._group_name) == (1, 2, "parents:0")
child.send(child.worker_address.get_name(), "parents", 0)
"""
    with Parent.create_group().launch(cluster, "0", name="parents") as parents:
        assert parents.hear_from_process(program).wait(SECONDS) == ["parents:0:1"]


def test_with_max_concurrency_so_many_plain_methods_run_at_once(cluster):
    with Calculator.create_group().launch(cluster, "0", max_concurrency=2) as group:
        assert [call.wait(SECONDS) for call in [group.overlap(2), group.overlap(2)]] == [[True], [True]]


def test_a_group_may_be_called_before_it_is_up(cluster):
    with Calculator.create_group().launch(cluster, "0-1", wait=False) as group:
        call = group.add(1)
        group.wait(SECONDS)
        assert call.wait(SECONDS) == [1, 101]
