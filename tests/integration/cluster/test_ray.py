"""Groups on a Ray cluster of two nodes: the same workers as elsewhere, started and called by Ray."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import CancelledError
from pathlib import Path

import numpy as np
import pytest
import ray
from ray.cluster_utils import Cluster as RayNodes

from cluster_workers import Broken, Calculator, Parent
from outrider.cluster import Cluster, NodePlacementStrategy
from outrider.core.errors import InvalidInput, WorkerDied, WorkerFailed
from outrider.testing import eventually
from processes import is_running
from promptly import within

SECONDS = 60.0
NOTICED_SECONDS = 5.0


@pytest.fixture(scope="module")
def nodes():
    head = {"num_cpus": 4, "include_dashboard": False, "dashboard_port": None}  # any port: other Rays may run here
    found = RayNodes(initialize_head=True, head_node_args=head)
    found.add_node(num_cpus=2, num_gpus=2, labels={"kind": "gpu"})
    yield found
    found.shutdown()


@pytest.fixture(scope="module")
def cluster(nodes):
    """Joined by a process that had a Ray of its own before, which asked for a token; this one does not."""
    with Cluster(num_cpus=1):
        pass
    with Cluster(nodes.address, num_nodes=2) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def group(cluster):
    """Two workers on each node."""
    return Calculator.create_group().launch(cluster, NodePlacementStrategy([0, 0, 1, 1]), name="calculators")


def family(pid: int) -> list[int]:
    """The process and all it has started, and so on."""
    children = [int(pid) for file in Path(f"/proc/{pid}/task").glob("*/children") for pid in file.read_text().split()]
    return [pid, *(found for child in children for found in family(child))]


def test_the_nodes_are_numbered_from_the_head_and_show_what_is_free(cluster):
    head, other = cluster.nodes
    assert (head.node_id, head.n_cpus, other.node_id, other.n_gpus, other.free_gpus) == (0, 4.0, 1, 2.0, 2.0)
    assert dict(other.labels) == {"kind": "gpu"}


def test_a_group_of_four_knows_who_it_is_and_where(cluster, group):
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE")
    assert group.variables(*names).wait(SECONDS) == [[str(r), str(r % 2), "4"] for r in range(4)]
    assert len({tuple(found) for found in group.variables("MASTER_ADDR", "MASTER_PORT").wait(SECONDS)}) == 1
    assert [info.node_id for info in group.worker_info_list] == [0, 0, 1, 1]
    assert cluster.engine.membership("calculators").directory == cluster.post.endpoint
    assert cluster.engine.membership("calculator") is None
    assert group.pid().wait(SECONDS) == [info.pid for info in group.worker_info_list]


async def test_a_call_runs_on_all_workers_whether_it_is_waited_for_or_awaited(group):
    assert group.add(1, y=2).wait(SECONDS) == [3, 103, 203, 303]
    assert await group.add(1) == [1, 101, 201, 301]
    calls = [group.add(n) for n in range(50)]
    assert [await call for call in calls] == [[n, 100 + n, 200 + n, 300 + n] for n in range(50)]
    assert await asyncio.wait_for(group.execute_on(0).meet(1).async_wait(), SECONDS) == [1]


def test_a_large_argument_is_stored_once_for_all_workers(group, monkeypatch):
    stored = []
    put = ray.put
    monkeypatch.setattr(ray, "put", lambda value: stored.append(value) or put(value))
    sums = [found.sum() for found in group.add(np.ones(1_000_000), y=np.ones(10)[0]).wait(SECONDS)]
    assert sums == [2e6, 1.02e8, 2.02e8, 3.02e8]
    assert [value.shape for value in stored] == [(1_000_000,)]


def test_an_exception_is_raised_as_itself_with_the_traceback_of_the_worker(group):
    with pytest.raises(KeyError, match="no such thing") as raised:
        group.fail(2).wait(SECONDS)
    (note,) = raised.value.__notes__
    assert "raised in worker calculators:2" in note
    assert "in fail" in note
    assert group.fail(2).wait(SECONDS, return_exceptions=True)[:2] == [0, 1]


def test_what_cannot_be_pickled_is_refused_on_either_side(group):
    with pytest.raises(InvalidInput, match=r"add\(\) cannot be called: argument 1 \(generator\)"):
        group.add(x for x in ())
    with pytest.raises(WorkerFailed, match=r"calculators:0: what lock\(\) returned cannot be pickled"):
        group.lock().wait(SECONDS)
    assert group.add(0).wait(SECONDS) == [0, 100, 200, 300]


async def test_a_cancelled_coroutine_ends_in_the_worker(group, tmp_path):
    ended = tmp_path / "ended"
    call = group.execute_on(3).forever(str(ended))

    async def began():
        return Path(f"{ended}.began").exists()

    await eventually(began, within_seconds=SECONDS)
    assert call.cancel()
    with pytest.raises(CancelledError):
        await call

    async def is_there():
        return ended.exists()

    await eventually(is_there, within_seconds=SECONDS)


async def test_a_worker_that_is_killed_in_a_call_fails_that_call_alone_and_is_started_again(cluster, tmp_path):
    with Calculator.create_group().launch(
        cluster, NodePlacementStrategy([0, 0]), name="mortals", restarts=1
    ) as mortals:
        held = mortals.execute_on(1).hold(str(tmp_path / "go"))
        with within(NOTICED_SECONDS), pytest.raises(WorkerDied, match=r"mortals:0.*(killed|crashed|ended)"):
            mortals.execute_on(0).die(0).wait(SECONDS)
        (tmp_path / "go").touch()
        assert held.wait(SECONDS) == [1]

        async def is_back() -> bool:
            return (await mortals.add(0).async_wait(return_exceptions=True)) == [0, 100]

        await eventually(is_back, within_seconds=SECONDS)


def test_an_init_that_raises_is_raised_at_once_and_nobody_is_left(cluster):
    began_at = time.monotonic()
    with pytest.raises(ValueError, match="rank 1 does not like it") as raised:
        Broken.create_group(1).launch(cluster, NodePlacementStrategy([0, 0]), name="broken")
    assert time.monotonic() - began_at < SECONDS
    assert "broken:1" in raised.value.__notes__[0]
    with pytest.raises(ValueError, match="Failed to look up actor"):
        ray.get_actor("broken:0", namespace="outrider")


def test_gpus_are_those_that_ray_gave(cluster):
    with Calculator.create_group().launch(cluster, name="on_gpus") as on_gpus:
        assert sorted(info.gpu_id for info in on_gpus.worker_info_list) == [0, 1]
        shown = on_gpus.variables("CUDA_VISIBLE_DEVICES").wait(SECONDS)
        assert shown == [[str(info.gpu_id)] for info in on_gpus.worker_info_list]
        with pytest.raises(InvalidInput, match="0 of 2 GPUs free"):
            Calculator.create_group().launch(cluster, name="too_many")
    assert cluster.nodes[1].free_gpus == 2.0


async def test_children_of_a_worker_run_on_the_same_ray_and_end_with_it(cluster):
    with Parent.create_group().launch(cluster, "0", name="parents") as parents:
        [(names, (child,))] = parents.launch_children(1).wait(SECONDS)
        assert names == ["parents:0:0"]
        assert is_running(child)

    async def is_gone():
        return not is_running(child)

    await eventually(is_gone, within_seconds=SECONDS)


OTHER_DRIVER = """
import sys
from cluster_workers import Calculator
from outrider.cluster import Cluster, WorkerGroup
with Cluster(sys.argv[1]) as cluster:
    group = WorkerGroup.from_group_name(Calculator, "calculators", cluster)
    print(group.add(7).wait(20.0), [info.rank for info in group.worker_info_list])
    try:
        Calculator.create_group().launch(cluster, "0", name="calculators")
    except Exception as exc:
        print(type(exc).__name__, exc)
"""


def test_another_program_finds_the_group_by_its_name_and_cannot_take_the_name(nodes, group):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", OTHER_DRIVER, nodes.address]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert "[7, 107, 207, 307] [0, 1, 2, 3]" in done.stdout, done.stderr
    assert "InvalidInput there is a worker calculators:0 in namespace 'outrider'" in done.stdout
    assert group.add(7).wait(SECONDS) == [7, 107, 207, 307]


def test_a_node_that_is_killed_fails_the_calls_of_its_workers_within_seconds(nodes, cluster, group, tmp_path):
    """The last test of the module: the second node is gone for good."""
    infos = group.worker_info_list
    held = group.hold(str(tmp_path / "go"))
    raylet = nodes.list_all_nodes()[1].all_processes["raylet"][0].process
    victims = family(raylet.pid)
    assert {infos[2].pid, infos[3].pid} <= set(victims)
    for victim in victims:
        os.kill(victim, signal.SIGKILL)
    with within(NOTICED_SECONDS):
        (tmp_path / "go").touch()
        first, second, third, fourth = held.wait(SECONDS, return_exceptions=True)
    assert (first, second) == (0, 1)
    assert isinstance(third, WorkerDied)
    assert isinstance(fourth, WorkerDied)
    assert group.execute_on(0, 1).add(1).wait(SECONDS) == [1, 101]
