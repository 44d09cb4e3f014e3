"""Workers, groups and drivers that end: killed for real, or closed."""

import asyncio
import logging
import os
import signal
import threading
from pathlib import Path

import pytest

from cluster_workers import Calculator, Parent
from outrider.cluster import Cluster, WorkerGroup
from outrider.core.errors import ClusterError, WorkerDied
from outrider.testing import eventually
from processes import is_running, line, program
from promptly import within

TESTS = Path(__file__).parents[2]
SECONDS = 30.0
BOUND_SECONDS = 30.0
FORKING = "import sys; sys.path.insert(0, sys.argv[1]); from cluster_workers import forking_driver_program as go; go()"
DRIVER = "import sys; sys.path.insert(0, sys.argv[1]); from cluster_workers import driver_program; driver_program()"


@pytest.fixture(scope="module")
def cluster():
    with Cluster(local=True, num_nodes=3) as cluster:
        yield cluster


async def ended(pids) -> None:
    async def are_gone():
        return not any(map(is_running, pids))

    await eventually(are_gone, within_seconds=BOUND_SECONDS)


def test_a_worker_killed_in_a_call_is_named_and_the_others_results_are_there(cluster):
    with Calculator.create_group().launch(cluster, name="mortals") as group:
        call = group.die(1)
        with within(5), pytest.raises(WorkerDied, match="mortals:1 is gone: its process was killed by SIGKILL"):
            call.wait(SECONDS)
        results = call.wait(return_exceptions=True)
        assert [results[0], results[2]] == [0, 2]
        with within(5), pytest.raises(WorkerDied, match="mortals:1"):
            group.add(1).wait(SECONDS)
        assert group.execute_on(0, 2).add(1).wait(SECONDS) == [1, 201]


async def test_a_worker_killed_from_outside_fails_the_calls_that_wait_for_it(cluster, tmp_path):
    with Calculator.create_group().launch(cluster, "0-1") as group:
        plain, coroutine = group.hold_if(1, str(tmp_path / "never")), group.forever(str(tmp_path / "x"))
        queued = group.execute_on(1).add(1)
        os.kill(group.worker_info_list[1].pid, signal.SIGKILL)
        with within(5):
            assert isinstance((await plain.async_wait(return_exceptions=True))[1], WorkerDied)
            with pytest.raises(WorkerDied):
                await queued
        assert not coroutine.done()
        coroutine.cancel()
        assert [type(error).__name__ for error in coroutine.wait(return_exceptions=True)] == [
            "CancelledError",
            "WorkerDied",
        ]


async def test_what_a_killed_worker_had_started_is_killed_too(cluster):
    with Parent.create_group().launch(cluster, "0") as group:
        (left_behind,) = group.start_program("import time; time.sleep(60)").wait(SECONDS)
        os.kill(group.worker_info_list[0].pid, signal.SIGKILL)
        await ended([left_behind])


async def test_a_worker_that_dies_is_started_again_as_often_as_the_group_allows(cluster):
    with Calculator.create_group().launch(cluster, "0-1", name="phoenix", restarts=1) as group:
        first = group.pid().wait(SECONDS)
        port = group.variables("MASTER_PORT").wait(SECONDS)
        seen_from_elsewhere = WorkerGroup.from_group_name(Calculator, "phoenix", cluster)
        with pytest.raises(WorkerDied):
            group.die(0).wait(SECONDS)

        async def is_back():
            return (await group.add(1).async_wait(return_exceptions=True)) == [1, 101]

        await eventually(is_back, within_seconds=SECONDS)
        second = group.pid().wait(SECONDS)
        assert second[0] != first[0]
        assert second[1] == first[1]
        assert group.identity().wait(SECONDS)[0] == (0, 2, 0, "phoenix", "phoenix:0")
        assert group.variables("MASTER_PORT").wait(SECONDS) == port
        assert await asyncio.to_thread(seen_from_elsewhere.add(1).wait, SECONDS) == [1, 101]
        with pytest.raises(WorkerDied):
            group.die(0).wait(SECONDS)
        await ended([second[0]])
        with within(5), pytest.raises(WorkerDied, match="SIGKILL"):
            group.add(1).wait(SECONDS)


async def test_the_children_of_a_killed_worker_end_and_its_successor_may_have_children_again(cluster):
    with Parent.create_group().launch(cluster, "0", name="dynasty", restarts=1) as group:
        ((_, children),) = group.launch_children(2).wait(SECONDS)
        old = group.worker_info_list[0].pid
        os.kill(old, signal.SIGKILL)
        await ended([old, *children])

        async def has_children_again():
            (found,) = await group.launch_children(1).async_wait(return_exceptions=True)
            return isinstance(found, tuple)

        await eventually(has_children_again, within_seconds=SECONDS)


async def test_stragglers_are_named_once_in_the_log(cluster, tmp_path, caplog):
    with (
        Calculator.create_group().launch(cluster, name="herd", straggler_seconds=0.2) as group,
        caplog.at_level(logging.WARNING, "outrider.cluster.calls"),
    ):
        call = group.hold_if(2, str(tmp_path / "go"))
        assert not call.done()

        async def is_named():
            return "hold_if() of herd: rank 2 has not answered, though the others have long since" in caplog.text

        await eventually(is_named, within_seconds=SECONDS)
        other = group.execute_on(0, 1).hold_if(1, str(tmp_path / "go"))
        assert not other.done()

        async def is_named_too():
            return "hold_if() of herd: rank 1" in caplog.text

        await eventually(is_named_too, within_seconds=SECONDS)
        (tmp_path / "go").touch()
        assert call.wait(SECONDS) == [0, 1, 2]
        assert other.wait(SECONDS) == [0, 1]
        assert len(caplog.records) == 2


def test_closing_a_group_fails_its_calls_and_leaves_no_process(cluster, tmp_path):
    group = Calculator.create_group().launch(cluster, "0-1")
    pids = group.pid().wait(SECONDS)
    busy, waits = group.hold(str(tmp_path / "never")), group.add(1)
    assert not busy.done()
    assert not waits.done()
    with within(5):
        group.close()
    assert not any(map(is_running, pids))
    for call in (busy, waits):
        with pytest.raises(WorkerDied, match="its group was closed"):
            call.wait(SECONDS)
    group.close()


def test_closing_a_cluster_leaves_no_process_and_no_thread():
    before = set(threading.enumerate())
    with Cluster(local=True, num_nodes=2) as cluster:
        group = Calculator.create_group().launch(cluster)
        pids = group.pid().wait(SECONDS)
    assert not any(map(is_running, pids))
    with pytest.raises(ClusterError, match="closed"):
        group.add(1)
    with pytest.raises(ClusterError, match="closed"):
        Calculator.create_group().launch(cluster)
    cluster.close()
    assert {thread.name for thread in threading.enumerate() if thread not in before} == set()


@pytest.mark.parametrize("end", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.soak)])
async def test_the_workers_of_a_killed_driver_end(end):
    with program(DRIVER, str(TESTS)) as driver:
        pids = [int(pid) for pid in line(driver).split()]
        assert len(pids) == 4
        assert all(map(is_running, pids))
        driver.send_signal(end)
        await ended(pids)


async def test_the_workers_of_a_killed_driver_end_though_a_forked_process_lives_on():
    with program(FORKING, str(TESTS)) as driver:
        forked, *pids = (int(pid) for pid in line(driver).split())
        try:
            driver.kill()
            await ended(pids)
            assert is_running(forked)
        finally:
            os.kill(forked, signal.SIGKILL)
