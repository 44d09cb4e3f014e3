"""Which node the next worker goes to."""

import pytest

from outrider.cluster.info import NodeInfo
from outrider.cluster.rollouts.berths import DOUBT_SECONDS, SETTLE_SECONDS, Berths, OnNode
from outrider.core.errors import ClusterError
from outrider.testing import FakeClock


def node(node_id: int, *, n_cpus: float = 4.0, free: float | None = None) -> NodeInfo:
    free_cpus = n_cpus if free is None else free
    return NodeInfo(node_id, f"10.0.0.{node_id}", f"node-{node_id}", n_cpus, 0, free_cpus, 0)


def ranked(berths: Berths, nodes: list[NodeInfo], n_cpus: float = 0) -> list[NodeInfo]:
    return berths.ranked(nodes, n_cpus, as_of=berths.now())


def names(nodes: list[NodeInfo]) -> list[int]:
    return [one.node_id for one in nodes]


def test_workers_are_spread_evenly_and_a_place_that_is_left_is_filled_first(clock: FakeClock):
    berths, nodes = Berths(clock), [node(0), node(1), node(2)]
    taken = [berths.take(ranked(berths, nodes)[0], 0) for _ in range(6)]
    assert names([berth.node for berth in taken]) == [0, 1, 2, 0, 1, 2]

    berths.leave(taken[4], is_lost=False)

    assert ranked(berths, nodes)[0] is nodes[1]


async def test_a_node_where_a_worker_was_lost_is_the_last_choice_for_a_while(clock: FakeClock):
    berths, nodes = Berths(clock), [node(0), node(1), node(2)]
    for one in nodes[1:]:
        berths.take(one, 0)
    berths.leave(berths.take(nodes[0], 0), is_lost=True)

    assert names(ranked(berths, nodes)) == [1, 2, 0]
    assert names(ranked(berths, nodes[:1])) == [0], "it is better than none"

    await clock.advance(DOUBT_SECONDS / 2)
    berths.leave(berths.take(nodes[1], 0), is_lost=True)
    assert names(ranked(berths, nodes)) == [2, 0, 1], "what was lost lately is doubted most"

    await clock.advance(DOUBT_SECONDS)
    assert names(ranked(berths, nodes)) == [0, 1, 2]


@pytest.mark.parametrize("jump", [3600.0, -3600.0], ids=["forward", "back"])
async def test_a_jump_of_the_wall_clock_ends_no_doubt_and_prolongs_none(clock: FakeClock, jump: float):
    berths, nodes = Berths(clock), [node(0), node(1)]
    berths.leave(berths.take(nodes[0], 0), is_lost=True)
    clock.jump(jump)
    await clock.advance(DOUBT_SECONDS - 1)
    assert names(ranked(berths, nodes)) == [1, 0]
    await clock.advance(2)
    assert names(ranked(berths, nodes)) == [0, 1]


@pytest.mark.parametrize("jump", [3600.0, -3600.0], ids=["forward", "back"])
async def test_a_jump_of_the_wall_clock_gives_no_cpu_away_twice(clock: FakeClock, jump: float):
    berths, nodes = Berths(clock), [node(0, n_cpus=1)]
    seen_at = berths.now()
    berth = berths.take(nodes[0], 1.0)
    await clock.advance(1)
    berth.asked_at = berths.now()
    clock.jump(jump)
    assert berths.ranked(nodes, 1.0, as_of=seen_at) == [], "it was asked for after the engine was looked at"
    await clock.advance(1)
    assert berths.ranked(nodes, 1.0, as_of=berths.now()) != []


async def test_a_node_where_another_worker_stays_up_is_not_doubted_for_long(clock: FakeClock):
    berths, nodes = Berths(clock), [node(0), node(1)]
    berths.take(nodes[0], 0).is_up = True
    for one in (nodes[0], nodes[1]):
        berths.leave(berths.take(one, 0), is_lost=True)
    assert names(ranked(berths, nodes)) == [0, 1]
    assert names(ranked(berths, [*nodes, node(2)])) == [2, 0, 1]

    await clock.advance(SETTLE_SECONDS + 1)
    berths.take(nodes[1], 0)
    assert names(ranked(berths, [node(2), *nodes])) == [2, 0, 1]
    berths.take(node(2), 0)
    berths.take(node(2), 0)
    assert names(ranked(berths, [node(2), *nodes])) == [0, 2, 1]


def test_workers_that_reserve_cpus_go_where_these_are_free(clock: FakeClock):
    berths, nodes = Berths(clock), [node(0, n_cpus=4, free=1), node(1, n_cpus=1), node(2, n_cpus=4, free=2)]
    berths.take(nodes[2], 0)

    assert names(ranked(berths, nodes, 1)) == [0, 1, 2]
    assert names(ranked(berths, nodes, 2)) == [2]
    assert names(ranked(berths, nodes, 5)) == []


def test_a_place_is_found_by_the_name_of_its_node_and_not_by_its_number():
    place = OnNode("node-7", 1.5)
    (found,) = place.places([node(3), node(7)])
    assert (found.rank, found.node_id, found.n_cpus, found.local_world_size) == (0, 7, 1.5, 1)
    with pytest.raises(ClusterError, match="node-7 is gone"):
        place.places([node(3)])


async def test_what_the_engine_does_not_count_yet_is_not_given_away_twice(clock: FakeClock):
    berths, nodes = Berths(clock), [node(0, n_cpus=2)]
    seen_at = berths.now()
    first, second = (berths.take(nodes[0], 1.0) for _ in range(2))
    assert berths.ranked(nodes, 1.0, as_of=seen_at) == []

    await clock.advance(1)
    first.asked_at = second.asked_at = berths.now()
    assert berths.ranked(nodes, 1.0, as_of=seen_at) == [], "they were asked for after the engine was looked at"

    await clock.advance(1)
    assert berths.ranked([node(0, n_cpus=2, free=1)], 1.0, as_of=berths.now()) != []
