from itertools import count

import pytest

from outrider.core.errors import InvalidInput, MachineError
from outrider.core.machine import AFTER, MachineState
from outrider.pool.config import PoolConfig
from outrider.pool.fleet import Fleet
from outrider.pool.orders import Create, Destroy, Grant, Lose, Refuse, Reset
from outrider.pool.waiting import Ticket

READY, LEASED, QUARANTINED = MachineState.READY, MachineState.LEASED, MachineState.QUARANTINED


def fleet_of(n_machines: int, **settings) -> Fleet:
    numbers = count(1)
    config = PoolConfig(n_machines=n_machines, **settings)
    return Fleet(config, pool="p", provider="fake", new_machine_id=lambda: f"m{next(numbers)}")


def warm(n_machines: int, **settings) -> Fleet:
    """All machines made and ready at time 0."""
    fleet = fleet_of(n_machines, max_creating=n_machines, max_resetting=n_machines, **settings)
    for order in fleet.decide(0.0):
        fleet.created(order.machine_id, {"at": order.machine_id}, 0.0)
    for order in fleet.decide(0.0):
        fleet.was_reset(order.machine_id, {"at": order.machine_id}, 0.0)
    assert fleet.n(READY) == n_machines
    return fleet


def ask(fleet: Fleet, n: int = 1, *, run: str = "r", holder: str = "h", now: float = 0.0) -> Ticket:
    return fleet.ask(run=run, holder=holder, n=n, now=now)


def lease(fleet: Fleet, *, holder: str = "h", now: float = 0.0) -> tuple[str, int]:
    ticket = ask(fleet, holder=holder, now=now)
    [granted] = [order for order in fleet.decide(now) if isinstance(order, Grant) and order.ticket == ticket]
    return granted.machines[0]


def state_of(fleet: Fleet, machine_id: str) -> MachineState | None:
    return next((record.state for record in fleet.records() if record.machine_id == machine_id), None)


def test_machines_are_made_in_parallel_up_to_a_bound_and_never_more_than_m():
    fleet = fleet_of(3, max_creating=2)
    assert fleet.decide(0.0) == [Create("m1"), Create("m2")]
    assert fleet.decide(0.0) == [], "asked again, nothing is to be done"
    fleet.created("m1", {}, 1.0)
    assert fleet.decide(1.0) == [Reset("m1", True), Create("m3")]
    fleet.created("m2", {}, 2.0)
    fleet.created("m3", {}, 2.0)
    assert not any(isinstance(order, Create) for order in fleet.decide(2.0))


def test_a_ticket_for_several_gets_all_at_once_and_is_not_overtaken():
    fleet = warm(3)
    held, epoch = lease(fleet)
    several = ask(fleet, 3, run="a")
    single = ask(fleet, 1, run="b")
    assert fleet.decide(0.0) == []
    fleet.release(held, epoch, 1.0)
    fleet.decide(1.0)
    fleet.was_reset(held, {}, 2.0)
    [granted] = fleet.decide(2.0)
    assert isinstance(granted, Grant)
    assert granted.ticket == several
    assert sorted(id for id, _ in granted.machines) == ["m1", "m2", "m3"]
    assert fleet.withdraw(single, 2.0)


def test_an_epoch_is_never_given_twice_and_an_old_one_releases_nothing():
    fleet = warm(1)
    machine_id, first = lease(fleet)
    fleet.revoke(machine_id, "because", 1.0)
    assert fleet.decide(1.0) == [Lose(machine_id, first, "because"), Reset(machine_id, False)]
    assert not fleet.is_held(machine_id, first)
    fleet.was_reset(machine_id, {}, 2.0)
    _, second = lease(fleet, now=2.0)
    assert second > first + 1
    fleet.release(machine_id, first, 3.0)
    assert state_of(fleet, machine_id) is LEASED
    fleet.release(machine_id, second, 3.0)
    assert state_of(fleet, machine_id) is MachineState.RESETTING


def test_resets_are_bounded_in_number():
    fleet = warm(3)
    fleet._config = PoolConfig(n_machines=3, max_resetting=1)
    for machine_id, epoch in [lease(fleet) for _ in range(3)]:
        fleet.release(machine_id, epoch, 1.0)
    [reset] = fleet.decide(1.0)
    assert fleet.decide(1.0) == []
    fleet.was_reset(reset.machine_id, {}, 2.0)
    assert [type(order) for order in fleet.decide(2.0)] == [Reset]


def test_a_lease_that_is_held_too_long_is_revoked():
    fleet = warm(1, max_hold_seconds=10)
    machine_id, epoch = lease(fleet)
    assert fleet.next_due(0.0) == 10.0
    assert fleet.decide(9.9) == []
    [lost, reset] = fleet.decide(10.0)
    assert isinstance(lost, Lose)
    assert (lost.epoch, reset) == (epoch, Reset(machine_id, False))
    assert "more than 10 s" in lost.reason


def test_a_machine_is_replaced_after_its_last_use_or_when_it_is_old():
    fleet = warm(1, max_uses=1)
    machine_id, epoch = lease(fleet)
    fleet.release(machine_id, epoch, 1.0)
    assert fleet.decide(1.0) == [Destroy(machine_id)]
    fleet.destroyed(machine_id, 2.0)
    assert fleet.decide(2.0) == [Create("m2")]

    fleet = warm(1, max_age_seconds=5)
    assert fleet.next_due(0.0) == 5.0
    waiting = ask(fleet, now=5.0)
    assert fleet.decide(5.0) == [Destroy("m1")], "it is not handed out any more"
    assert fleet.withdraw(waiting, 5.0)


def test_a_failed_reset_puts_the_machine_away_and_its_place_is_given_to_who_needs_it():
    fleet = warm(2, quarantine_seconds=100)
    failed, epoch = lease(fleet)
    fleet.release(failed, epoch, 1.0)
    fleet.decide(1.0)
    fleet.reset_failed(failed, "broken", 2.0)
    assert fleet.decide(2.0) == []
    assert state_of(fleet, failed) is QUARANTINED
    assert fleet.next_due(2.0) == 102.0
    lease(fleet, now=3.0)
    ask(fleet, now=4.0)
    assert fleet.decide(4.0) == [Destroy(failed)]
    fleet.destroyed(failed, 5.0)
    assert [type(order) for order in fleet.decide(5.0)] == [Create]


def test_quarantine_ends_and_holds_only_so_many():
    fleet = warm(3, quarantine_seconds=100, max_quarantined=1)
    for machine_id, epoch in [lease(fleet), lease(fleet)]:
        fleet.release(machine_id, epoch, 1.0)
    for now, reset in enumerate(fleet.decide(1.0), start=2):
        fleet.reset_failed(reset.machine_id, "broken", float(now))
    assert fleet.decide(4.0) == [Destroy("m1")]
    assert fleet.n(QUARANTINED) == 1
    assert Destroy("m2") in fleet.decide(103.0)


def test_failed_creations_are_tried_one_at_a_time_after_a_pause_that_grows():
    fleet = fleet_of(3, pause_seconds=1, max_pause_seconds=4)
    now, pauses = 0.0, []
    for order in fleet.decide(now):
        fleet.create_failed(order.machine_id, "no memory", now)
    for _ in range(4):
        assert fleet.decide(now) == []
        due = fleet.next_due(now)
        assert due is not None
        pauses.append(due - now)
        now = due
        [order] = fleet.decide(now)
        fleet.create_failed(order.machine_id, "no memory", now)
    assert pauses == [1.0, 2.0, 4.0, 4.0]
    assert "no memory" in fleet.standing(now)


def test_machines_that_never_become_well_are_not_made_without_a_pause():
    fleet = fleet_of(1, quarantine_seconds=0, pause_seconds=1)
    fleet.decide(0.0)
    fleet.created("m1", {}, 0.0)
    fleet.decide(0.0)
    fleet.reset_failed("m1", "does not answer", 0.0)
    assert fleet.decide(0.0) == [Destroy("m1")]
    fleet.destroyed("m1", 0.0)
    assert fleet.decide(0.0) == []
    assert fleet.decide(1.0) == [Create("m2")]


def test_a_holder_who_loses_three_machines_gets_no_more_and_others_do():
    fleet = warm(4)
    waiting = []
    for n in range(3):
        machine_id, epoch = lease(fleet, holder="poison")
        if n == 1:  # a machine that cannot be reset afterwards is lost as well
            fleet.release(machine_id, epoch, 1.0)
            fleet.decide(1.0)
            fleet.reset_failed(machine_id, "frozen", 1.0)
        elif n == 0:
            fleet.died(machine_id, "panic", 1.0)
        else:
            lease(fleet)
            waiting.append(ask(fleet, holder="poison", now=1.0))
            fleet.died(machine_id, "panic", 1.0)
    refused = [order for order in fleet.decide(1.0) if isinstance(order, Refuse)]
    assert [order.ticket for order in refused] == waiting
    with pytest.raises(MachineError, match=r"poison gets no further machine: 3 were lost.*panic"):
        ask(fleet, holder="poison")
    ask(fleet, holder="innocent")


def test_a_dead_machine_leaves_in_every_state_and_its_holder_is_told():
    fleet = warm(2)
    held, epoch = lease(fleet)
    fleet.died(held, "killed", 1.0)
    fleet.died("m2", "killed", 1.0)
    assert fleet.decide(1.0) == [Lose(held, epoch, "killed"), Destroy(held), Destroy("m2")]
    fleet.died(held, "again", 1.0)
    assert fleet.statistics(1.0).n_deaths == 2


def test_a_machine_that_cannot_be_ended_keeps_its_place():
    fleet = warm(1, pause_seconds=1)
    fleet.stop("m1", "asked", 0.0)
    assert fleet.decide(0.0) == [Destroy("m1")]
    fleet.destroy_failed("m1", "stuck", 0.0)
    assert fleet.decide(0.5) == []
    assert fleet.next_due(0.5) == 1.0
    assert fleet.decide(1.0) == [Destroy("m1")]


def test_a_smaller_pool_ends_idle_machines_at_once_and_leased_ones_later():
    fleet = warm(3)
    held, epoch = lease(fleet)
    several = ask(fleet, 3)
    fleet.resize(1, 1.0)
    orders = fleet.decide(1.0)
    assert [order.ticket for order in orders if isinstance(order, Refuse)] == [several]
    assert len([order for order in orders if isinstance(order, Destroy)]) == 2
    for machine_id in ("m2", "m3"):
        fleet.destroyed(machine_id, 1.0)
    assert fleet.decide(1.0) == []
    assert fleet.is_held(held, epoch)
    fleet.resize(2, 2.0)
    assert [type(order) for order in fleet.decide(2.0)] == [Create]


def test_a_pool_that_shrinks_under_its_leases_makes_nothing_until_they_end():
    fleet = warm(2)
    leases = [lease(fleet), lease(fleet)]
    fleet.resize(1, 1.0)
    assert fleet.decide(1.0) == []
    for machine_id, epoch in leases:
        fleet.release(machine_id, epoch, 2.0)
    orders = fleet.decide(2.0)
    assert sorted(type(order).__name__ for order in orders) == ["Destroy", "Reset"]


def test_closing_refuses_ends_and_makes_nothing():
    fleet = warm(2)
    held, epoch = lease(fleet)
    lease(fleet)
    waiting = ask(fleet)
    fleet.close("closed", 1.0)
    orders = fleet.decide(1.0)
    assert Refuse(waiting, "closed") in orders
    assert Lose(held, epoch, "closed") in orders
    for machine_id in ("m1", "m2"):
        fleet.destroyed(machine_id, 2.0)
    assert fleet.decide(1e6) == []
    with pytest.raises(MachineError, match="closed"):
        ask(fleet)


@pytest.mark.parametrize("n", [0, -1, 3])
def test_more_machines_than_there_can_be_are_refused(n):
    with pytest.raises(InvalidInput, match="asked for"):
        ask(warm(2), n)


def test_every_move_is_journalled_with_its_reason_epoch_holder_and_duration():
    fleet = warm(1)
    machine_id, epoch = lease(fleet, holder="ro-1", now=3.0)
    fleet.release(machine_id, epoch, 8.0)
    records, moves = fleet.drain()
    assert [record.state for record in records] == [MachineState.RESETTING]
    assert [move.before for move in moves][:1] == [None]
    assert all(move.before is None or move.state in AFTER[move.before] for move in moves)
    assert (moves[-2].holder, moves[-2].epoch, moves[-2].seconds, moves[-2].state) == ("ro-1", epoch, 3.0, LEASED)
    assert (moves[-1].reason, moves[-1].seconds) == ("released", 5.0)
    assert fleet.drain() == ((), ())


def test_utilisation_counts_places_that_are_not_leased_while_somebody_waits():
    fleet = warm(2)
    lease(fleet)
    held, epoch = lease(fleet)
    fleet.release(held, epoch, 8.0)
    fleet.decide(8.0)
    ask(fleet, now=8.0)
    fleet.decide(8.0)
    assert fleet.statistics(12.0).utilisation == pytest.approx((2 * 8 + 4) / (2 * 8 + 4 + 4))


@pytest.mark.parametrize(
    "settings", [{"n_machines": 0}, {"max_uses": 0}, {"reset_seconds": -1.0}, {"pause_seconds": 0.0}]
)
def test_settings_that_cannot_be_meant_are_refused(settings):
    with pytest.raises(InvalidInput, match=next(iter(settings))):
        PoolConfig(**settings)


def test_what_machines_say_is_journalled_as_text_that_every_database_takes():
    fleet = warm(1)
    fleet.died("m1", "guest said \0 and \ud800" + "!" * 5000, 1.0)
    (_, moves) = fleet.drain()
    assert moves[-1].reason.startswith("guest said   and ?!!")
    assert len(moves[-1].reason) == 2000
    with pytest.raises(InvalidInput, match="cannot be written down"):
        ask(fleet, holder="nul\0")
