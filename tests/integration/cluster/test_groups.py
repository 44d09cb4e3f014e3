"""Groups of workers in processes: what a call gives, and how it fails."""

import asyncio
import threading
from concurrent.futures import CancelledError

import numpy as np
import pytest

from cluster_workers import Calculator, CountsPickles
from outrider.cluster import Cluster, WorkerGroup, scatter
from outrider.core.errors import CallLate, InvalidInput, UnknownWorker, WorkerFailed
from outrider.testing import eventually

SECONDS = 30.0


@pytest.fixture(scope="module")
def cluster():
    with Cluster(local=True, num_nodes=3) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def group(cluster):
    return Calculator.create_group().launch(cluster, name="calculators")


async def there(path):
    async def is_there():
        return path.exists()

    await eventually(is_there, within_seconds=SECONDS)


def test_a_method_runs_on_all_workers_and_the_results_come_by_rank(group):
    assert group.add(1, y=2).wait(SECONDS) == [3, 103, 203]
    assert group.world_size == 3
    assert [info.rank for info in group.worker_info_list] == [0, 1, 2]


async def test_a_handle_can_be_awaited_again_and_again(group):
    call = group.add(5)
    assert await call == [5, 105, 205]
    assert await call.async_wait() == call.wait() == [5, 105, 205]
    assert call.done()


def test_workers_know_who_they_are(group):
    names = [f"calculators:{rank}" for rank in range(3)]
    expected = [(rank, 3, 0, "calculators", name) for rank, name in enumerate(names)]
    assert group.identity().wait(SECONDS) == expected


def test_coroutine_methods_of_one_worker_run_at_once_and_plain_ones_one_at_a_time(group):
    one = group.execute_on(0)
    assert [call.wait(SECONDS) for call in [one.meet(5) for _ in range(5)]] == [[5]] * 5


async def test_a_thousand_calls_may_be_under_way(group):
    calls = [group.add(i) for i in range(1000)]
    assert [results[1] for results in await asyncio.gather(*calls)] == [100 + i for i in range(1000)]


def test_plain_calls_of_a_worker_run_in_the_order_in_which_they_were_made(group, tmp_path):
    held = group.execute_on(0).hold(str(tmp_path / "go"))
    later = group.execute_on(0).add(1)
    with pytest.raises(CallLate):
        later.wait(0.1)
    (tmp_path / "go").touch()
    assert held.wait(SECONDS) == [0]
    assert later.wait(SECONDS) == [1]


def test_scatter_gives_each_rank_its_own(group):
    assert group.add(scatter([1, 2, 3]), y=scatter([0, 10, 20])).wait(SECONDS) == [1, 112, 223]
    assert group.execute_on(2, 0).add(scatter([1, 2])).wait(SECONDS) == [201, 2]
    with pytest.raises(InvalidInput, match="2 values for 3 workers"):
        group.add(scatter([1, 2]))


def test_execute_on_is_a_view_and_leaves_the_group_as_it_was(group):
    some = group.execute_on(1)
    assert group.add(0).wait(SECONDS) == [0, 100, 200]
    assert some.add(0).wait(SECONDS) == [100]
    with pytest.raises(InvalidInput, match="ranks 0 to 2"):
        group.execute_on(3)
    with pytest.raises(InvalidInput, match="ranks 0 to 2"):
        group.execute_on()


def test_names_that_cannot_be_called_say_why(group):
    with pytest.raises(AttributeError, match="private"):
        group._secret()
    with pytest.raises(AttributeError, match="did you mean identity"):
        group.identiti()
    with pytest.raises(AttributeError, match="no such public method"):
        group.execute_on(0).nonsense()


def test_an_exception_in_one_worker_is_raised_as_itself_and_nothing_else_happens(group):
    call = group.fail(1)
    with pytest.raises(KeyError, match="no such thing") as caught:
        call.wait(SECONDS)
    (note,) = caught.value.__notes__
    assert "raised in worker calculators:1" in note
    assert "in fail\n    raise KeyError" in note
    results = call.wait(return_exceptions=True)
    assert [results[0], results[2]] == [0, 2]
    assert isinstance(results[1], KeyError)
    assert group.add(0).wait(SECONDS) == [0, 100, 200]


def test_an_exception_that_several_workers_raise_names_them(group):
    with pytest.raises(
        WorkerFailed,
        match=r"calculators:0 raised cluster_workers.Calculator.fail_oddly.<locals>.Unknown: this and that",
    ) as caught:
        group.fail_oddly().wait(SECONDS)
    assert "in fail_oddly" in str(caught.value)
    assert "calculators:1: cluster_workers.Calculator.fail_oddly.<locals>.Unknown" in caught.value.__notes__[0]


def test_a_worker_that_calls_exit_in_a_method_lives_on(group):
    with pytest.raises(WorkerFailed, match="SystemExit: 3"):
        group.leave().wait(SECONDS)
    assert group.add(0).wait(SECONDS) == [0, 100, 200]


def test_what_cannot_be_pickled_is_named(group):
    with pytest.raises(InvalidInput, match=r"add\(\) cannot be called: argument 2 \(lock\)"):
        group.add(1, threading.Lock())
    with pytest.raises(InvalidInput, match=r"argument 'y' \(lock\)"):
        group.add(1, y=threading.Lock())
    with pytest.raises(WorkerFailed, match=r"calculators:0: what lock\(\) returned \(lock\) cannot be pickled"):
        group.lock().wait(SECONDS)


def test_arguments_for_all_ranks_are_pickled_once(group):
    before = CountsPickles.n_pickled
    assert group.identity(CountsPickles(3)) is not None
    assert CountsPickles.n_pickled == before + 1


def test_arguments_are_those_of_the_moment_of_the_call(group, tmp_path):
    array = np.ones(300_000)
    held = group.execute_on(0).hold(str(tmp_path / "go"))
    call = group.execute_on(0).add(array)
    array[:] = 7
    (tmp_path / "go").touch()
    held.wait(SECONDS)
    assert call.wait(SECONDS)[0].sum() == array.size


def test_a_deadline_names_the_ranks_that_have_not_answered_and_the_call_goes_on(group, tmp_path):
    call = group.hold_if(1, str(tmp_path / "go"))
    with pytest.raises(CallLate, match=r"hold_if\(\) of calculators: rank 1 has not answered within 0.2 s"):
        call.wait(0.2)
    assert not call.done()
    (tmp_path / "go").touch()
    assert call.wait(SECONDS) == [0, 1, 2]


async def test_cancelling_ends_coroutines_drops_what_waits_and_lets_the_running_method_run(group, tmp_path):
    one = group.execute_on(0)
    endless = one.forever(str(tmp_path / "cancelled"))
    held, dropped = one.hold(str(tmp_path / "go")), one.write(str(tmp_path / "dropped"))
    await there(tmp_path / "cancelled.began")
    for call in (dropped, held, endless):  # what is given up first is given up over there first
        assert call.cancel()
        assert call.done()
        with pytest.raises(CancelledError, match="calculators:0"):
            await call
    await there(tmp_path / "cancelled")
    (tmp_path / "go").touch()
    assert await one.add(1) == [1]
    assert not (tmp_path / "dropped").exists()
    assert not endless.cancel()


def test_a_group_is_found_by_its_name_from_the_driver_and_from_a_worker(cluster, group):
    found = WorkerGroup.from_group_name(Calculator, "calculators", cluster)
    found.wait(SECONDS)
    assert found.add(1).wait(SECONDS) == [1, 101, 201]
    assert found.execute_on(2).add(1).wait(SECONDS) == [201]
    found.close()
    with Calculator.create_group().launch(cluster, "0", name="callers") as callers:
        assert callers.call_others("calculators", 4).wait(SECONDS) == [[4, 104, 204]]
    with pytest.raises(UnknownWorker, match="did you mean 'calculators'"):
        WorkerGroup.from_group_name(Calculator, "calculator", cluster)
    assert group.add(1).wait(SECONDS) == [1, 101, 201]
