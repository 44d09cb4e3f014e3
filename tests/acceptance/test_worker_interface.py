"""The guide to the worker programming interface, statement by statement, on Ray and on a cluster without it.

Its examples run as they stand; tensors are NumPy's, and a process group is everybody meeting at rank 0's address.
"""

import os
from collections.abc import Iterator
from inspect import signature

import pytest

from outrider.cluster import Channel, Cluster, CollectiveGroup, Worker, WorkerAddress, WorkerGroup, WorkerInfo
from outrider.cluster.placement import NodePlacementStrategy, SpreadPlacementStrategy
from seed_workers import (
    RECV_GROUP_NAME,
    SEND_GROUP_NAME,
    Consumer,
    MyWorker,
    Producer,
    RecvWorker,
    SendWorker,
)

N_GPUS = 4
SECONDS = 60.0


@pytest.fixture(scope="module", params=["local", "ray"])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """One node that says it has four GPUs, as in the guide's example."""
    with Cluster(local=request.param == "local", num_nodes=1, num_gpus=N_GPUS, num_cpus=4) as cluster:
        yield cluster


WITHOUT_RAY = pytest.mark.parametrize("cluster", ["local", pytest.param("ray", marks=pytest.mark.soak)], indirect=True)
"""For what starts workers once more, as others here do on Ray too."""


@pytest.fixture(scope="module")
def group(cluster: Cluster) -> Iterator[WorkerGroup[MyWorker]]:
    with MyWorker.create_group().launch(cluster=cluster, name="my_worker_group") as group:
        yield group


def test_a_subclass_of_worker_runs_in_processes_of_its_own(group):
    processes = group.process().wait(SECONDS)
    assert len({*processes, os.getpid()}) == N_GPUS + 1


def test_a_worker_has_its_variables_before_its_own_code_runs(group):
    for rank, (at_import, at_init) in enumerate(group.variables().wait(SECONDS)):
        assert at_import == at_init
        assert (at_init["RANK"], at_init["LOCAL_RANK"], at_init["WORLD_SIZE"]) == (str(rank), str(rank), str(N_GPUS))
        assert at_init["MASTER_ADDR"]
        assert at_init["MASTER_PORT"].isdigit()


def test_a_process_group_forms_with_nothing_but_these_variables(group):
    assert group.initialize().wait(SECONDS)[0] == N_GPUS


def test_worker_info_tells_what_a_worker_is(group):
    infos = group.info().wait(SECONDS)
    assert all(isinstance(info, WorkerInfo) for info in infos)
    assert [info.address.get_name() for info in infos] == [f"my_worker_group:{rank}" for rank in range(N_GPUS)]
    assert [info.rank for info in infos] == list(range(N_GPUS))
    assert {info.node_id for info in infos} == {0}
    assert sorted(info.gpu_id for info in infos) == list(range(N_GPUS))
    assert all(info.available_gpus == (info.gpu_id,) and info.node_ip for info in infos)
    assert infos == group.worker_info_list


def test_addresses_lead_up_and_down_the_tree():
    address = WorkerAddress("Worker_group_MyWorker", 0)
    assert address.get_name() == "Worker_group_MyWorker:0"
    child = address.get_child_address(0)
    assert child.get_name() == "Worker_group_MyWorker:0:0"
    assert child.get_parent_rank() == 0
    assert child.get_parent_address() == address


@WITHOUT_RAY
def test_workers_have_children_whose_addresses_go_on(group):
    names, ranks = group.execute_on(1).has_children().wait(SECONDS)[0]
    assert names == ["my_worker_group:1:0", "my_worker_group:1:1"]
    assert ranks == [0, 1]


def test_workers_of_different_groups_send_to_each_other(cluster):
    place = SpreadPlacementStrategy(3)
    with (
        SendWorker.create_group().launch(cluster, place, SEND_GROUP_NAME) as send_group,
        RecvWorker.create_group().launch(cluster, place, RECV_GROUP_NAME) as recv_group,
    ):
        sending = send_group.hello_recv()
        received = recv_group.hello_recv().wait(SECONDS)
        assert received == [
            (f"Hello from SendWorker Rank {rank}!", [[1.0]], 4.0, 5.0, [[1.0], [1.0]]) for rank in range(3)
        ]
        assert sending.wait(SECONDS) == [f"Hello from RecvWorker Rank {rank}!" for rank in range(3)]
        sending = send_group.hello_recv_async()
        assert recv_group.hello_recv_async().wait(SECONDS) == [((3, 1), (4, 1))] * 3
        sending.wait(SECONDS)


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        (Worker.send, ("object", "dst_group_name", "dst_rank", "async_op")),
        (Worker.recv, ("src_group_name", "src_rank", "async_op")),
        (Worker.send_tensor, ("tensor", "dst_group_name", "dst_rank", "async_op")),
        (Worker.recv_tensor, ("tensor", "src_group_name", "src_rank", "async_op")),
        (Worker.create_channel, ("name", "node_id", "maxsize")),
        (Worker.connect_channel, ("name",)),
    ],
)
def test_the_methods_take_what_the_guide_says(method, arguments):
    parameters = signature(method).parameters
    assert tuple(parameters)[1 : len(arguments) + 1] == arguments
    defaults = {"async_op": False, "node_id": 0, "maxsize": 0}
    for name in arguments:
        assert parameters[name].default == defaults.get(name, parameters[name].empty)


def test_a_worker_leaves_communication_to_its_collective_group():
    assert {"send", "recv", "send_tensor", "recv_tensor"} <= set(dir(CollectiveGroup))


def test_a_channel_is_a_fifo_queue_between_workers_with_back_pressure(cluster):
    place = NodePlacementStrategy([0])
    with (
        Producer.create_group().launch(cluster, place) as producers,
        Consumer.create_group().launch(cluster, place) as consumers,
    ):
        producing = producers.produce(9)
        assert consumers.consume(9).wait(SECONDS) == [list(range(9))]
        producing.wait(SECONDS)
    assert {"put", "get", "get_batch"} <= set(dir(Channel))


@WITHOUT_RAY
def test_the_placement_says_how_many_workers_and_where(cluster):
    with MyWorker.create_group().launch(cluster, SpreadPlacementStrategy(2), "two") as group:
        assert group.world_size == 2
        assert group.hello().wait(SECONDS) == [0, 1]


@WITHOUT_RAY
def test_the_cluster_starts_each_worker(cluster, monkeypatch):
    started = []
    allocate = Cluster.allocate
    monkeypatch.setattr(Cluster, "allocate", lambda self, *args: started.append(args) or allocate(self, *args))
    with MyWorker.create_group().launch(cluster, NodePlacementStrategy([0, 0]), "allocated"):
        assert len(started) == 2


def test_a_method_called_on_the_group_runs_on_all_of_its_workers(group):
    assert group.hello().wait(SECONDS) == list(range(N_GPUS))
    assert group.execute_on(0, 3).hello().wait(SECONDS) == [0, 3]
