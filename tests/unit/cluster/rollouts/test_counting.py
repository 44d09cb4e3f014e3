"""What several pools have counted, added up."""

import pytest

from outrider.cluster.rollouts.counting import of_the_gone, summed
from outrider.cluster.rollouts.shares import divided
from outrider.core.errors import InvalidInput
from outrider.core.machine import MachineState
from outrider.pool import PoolConfig, PoolStatistics
from outrider.pool.spec import MachineSpec
from outrider.pool.statistics import Counts
from outrider.runner.machines import SupplySpec


def counted(waits: list[float], *, n_machines: int = 2, leased: float = 0.0, idle: float = 0.0) -> PoolStatistics:
    counts = Counts()
    for seconds in waits:
        counts.wait.add(seconds)
    counts.n_leases = len(waits)
    counts.failures["reset"] = 1
    counts.pass_time(0.0, n_leased=0, n_free=0, n_wanted=0)
    counts.pass_time(leased, n_leased=1, n_free=0, n_wanted=0)
    counts.pass_time(leased + idle, n_leased=0, n_free=1, n_wanted=1)
    return counts.summary([MachineState.READY] * n_machines, n_machines=n_machines, n_waiting=1, n_wanted=1)


def test_one_pool_is_what_it_is():
    one = counted([0.1, 0.2, 5.0], leased=3, idle=1)
    assert summed([one]) == one


def test_counts_are_added_and_utilisation_is_that_of_all_machines():
    total = summed([counted([1.0] * 3, leased=9, idle=1), counted([1.0] * 4, n_machines=1, leased=0, idle=10)])
    assert (total.n_machines, total.n_leases, total.n_waiting) == (3, 7, 2)
    assert total.states == {"ready": 3}
    assert total.n_failures == {"reset": 2}
    assert total.utilisation == pytest.approx(9 / 20)


def test_a_quantile_of_all_is_never_told_smaller_than_it_is():
    quick, slow = [0.1 * n for n in range(1, 91)], [20.0 + n for n in range(10)]
    both = summed([counted(quick), counted(slow)]).wait_seconds
    exact = counted(quick + slow).wait_seconds
    assert both is not None
    assert exact is not None
    assert (both.n, both.greatest) == (exact.n, exact.greatest)
    for name in ("p50", "p95", "p99"):
        assert getattr(exact, name) <= getattr(both, name) <= 29.0
    assert both.p50 < 10


def test_of_a_lost_pool_remains_what_it_has_done():
    total = summed([of_the_gone(counted([1.0])), counted([2.0])])
    assert (total.n_machines, total.n_leases, total.n_waiting) == (2, 2, 1)
    assert total.states == {"ready": 2}


def test_shares_have_all_machines_between_them_and_pools_of_their_own():
    supply = SupplySpec(
        machines=MachineSpec(provider="process"), pool=PoolConfig(name="p", n_machines=8), is_shared=True
    )
    parts = divided(supply, 3)
    assert [(part.pool.name, part.pool.n_machines) for part in parts] == [("p.0", 3), ("p.1", 3), ("p.2", 2)]
    assert all(part.machines == supply.machines for part in parts)
    with pytest.raises(InvalidInput, match="8 machines"):
        divided(supply, 9)


def test_machines_of_a_list_are_dealt_out_so_that_no_two_shares_have_the_same():
    listed = MachineSpec(provider="attach", settings={"machines": ["a", "b", "c", "d", "e"], "reuse": True})
    supply = SupplySpec(machines=listed, pool=PoolConfig(name="p", n_machines=4), is_shared=True)
    parts = [part.machines.settings for part in divided(supply, 3)]
    assert parts == [
        {"machines": ["a", "d"], "reuse": True},
        {"machines": ["b", "e"], "reuse": True},
        {"machines": ["c"], "reuse": True},
    ]
