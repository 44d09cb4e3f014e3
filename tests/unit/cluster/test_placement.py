"""Strategies: who sits where, and what is refused with a look at what is free."""

from functools import partial

import pytest
from msgspec.structs import replace

from outrider.cluster.info import NodeInfo
from outrider.cluster.placement import (
    CpuPlacementStrategy,
    FlexiblePlacementStrategy,
    NodePlacementStrategy,
    PackedPlacementStrategy,
    PlacementStrategy,
    SpreadPlacementStrategy,
    default_placement,
    parse_placement,
)
from outrider.core.errors import InvalidInput


def node(node_id, gpus=0, cpus=4, *, free_gpus=None, free_cpus=None, free_by_gpu=(), **labels):
    return NodeInfo(
        node_id=node_id,
        ip=f"10.0.0.{node_id}",
        name=f"n{node_id}",
        n_cpus=cpus,
        n_gpus=gpus,
        free_cpus=cpus if free_cpus is None else free_cpus,
        free_gpus=gpus if free_gpus is None else free_gpus,
        labels=labels,
        free_by_gpu=free_by_gpu,
    )


def seats(strategy: PlacementStrategy, nodes):
    return [(place.node_id, place.gpus) for place in strategy.places(nodes)]


TWO_OF_FOUR = [node(0, 4), node(1, 4)]
CPU_ONLY = [node(0), node(1), node(2)]


def test_packed_fills_the_gpus_in_order_and_numbers_workers_on_each_node():
    places = PackedPlacementStrategy(2, 5).places(TWO_OF_FOUR)
    assert [(p.rank, p.node_id, p.gpus, p.local_rank, p.local_world_size, p.node_rank) for p in places] == [
        (0, 0, (2,), 0, 2, 0),
        (1, 0, (3,), 1, 2, 0),
        (2, 1, (0,), 0, 2, 1),
        (3, 1, (1,), 1, 2, 1),
    ]
    assert [p.n_gpus for p in places] == [1, 1, 1, 1]


def test_node_rank_counts_the_nodes_of_the_group_only():
    places = PackedPlacementStrategy(4, 7).places(TWO_OF_FOUR)
    assert {(p.node_id, p.node_rank) for p in places} == {(1, 0)}


def test_packed_without_an_end_takes_all_gpus():
    assert len(PackedPlacementStrategy().places(TWO_OF_FOUR)) == 8


def test_packed_with_a_stride_interleaves_neighbours():
    strategy = PackedPlacementStrategy(0, 7, num_gpus_per_process=2, stride=2)
    assert seats(strategy, [node(0, 8)]) == [(0, (0, 2)), (0, (1, 3)), (0, (4, 6)), (0, (5, 7))]


def test_packed_halves_put_two_workers_on_a_gpu():
    places = PackedPlacementStrategy(3, 4, num_gpus_per_process=0.5, num_cpus=0.5).places(TWO_OF_FOUR)
    assert [(p.node_id, p.gpus, p.n_gpus, p.n_cpus) for p in places] == [
        (0, (3,), 0.5, 0.5),
        (0, (3,), 0.5, 0.5),
        (1, (0,), 0.5, 0.5),
        (1, (0,), 0.5, 0.5),
    ]


@pytest.mark.parametrize(("part", "per_gpu"), [(1 / 3, 3), (0.3, 3), (0.1, 10), (0.6, 1), (0.7, 1), (1 / 7, 7)])
def test_as_many_parts_go_on_a_gpu_as_fit(part, per_gpu):
    assert len(PackedPlacementStrategy(num_gpus_per_process=part).places([node(0, 1)])) == per_gpu


def test_a_worker_whose_gpus_would_lie_on_two_nodes_is_refused_with_the_reason():
    with pytest.raises(InvalidInput, match=r"rank 3 GPU 7, which is on node 0, and GPU 8, which is on node 1"):
        PackedPlacementStrategy(1, 8, num_gpus_per_process=2).places([node(0, 8), node(1, 8)])
    with pytest.raises(InvalidInput, match=r"rank 1 GPU 3, which is on node 0, and GPU 4, which is on node 1"):
        FlexiblePlacementStrategy([[0], [3, 4]]).places(TWO_OF_FOUR)


def test_a_refusal_shows_in_a_line_for_each_node_what_is_there_and_what_is_free():
    nodes = [node(0, 8, 64, free_gpus=1.5, free_cpus=60, zone="a", disk="ssd"), node(1, 4)]
    with pytest.raises(InvalidInput) as refused:
        PackedPlacementStrategy(0, 3).places(nodes)
    first, *table = str(refused.value).splitlines()
    assert first.startswith("PackedPlacementStrategy(end_gpu_id=3) does not fit: node 0 lacks 2.5 GPUs; take less")
    assert table == [
        "  node 0  10.0.0.0  1.5 of 8 GPUs free  60 of 64 CPUs free  disk=ssd zone=a",
        "  node 1  10.0.0.1  4 of 4 GPUs free    4 of 4 CPUs free",
    ]


def test_a_gpu_that_is_known_to_be_taken_is_not_given_again():
    nodes = [node(0, 2, free_gpus=1.5, free_by_gpu=(0.5, 1.0))]
    with pytest.raises(InvalidInput, match=r"GPU 0 of node 0 lacks 0.5;(.|\n)*1.5 of 2 GPUs free \(0: 0.5\)"):
        PackedPlacementStrategy(0, 0).places(nodes)
    assert seats(PackedPlacementStrategy(1, 1), nodes) == [(0, (1,))]
    assert seats(SpreadPlacementStrategy(1, num_gpus=1), nodes) == [(0, (1,))]
    assert seats(SpreadPlacementStrategy(3, num_gpus=0.5), nodes) == [(0, (0,)), (0, (1,)), (0, (1,))]


@pytest.mark.parametrize(
    ("strategy", "reason"),
    [
        (PackedPlacementStrategy(0, 8), "names GPU 8; there are 0-7"),
        (PackedPlacementStrategy(9), "names GPU 9; there are 0-7"),
        (PackedPlacementStrategy(0, 4, num_gpus_per_process=2), "cannot divide the 5 GPUs 0-4 into blocks of 2"),
        (PackedPlacementStrategy(0, 3, num_cpus=2), "node 0 lacks 4 CPUs"),
        (FlexiblePlacementStrategy([[0], [12]]), "names GPU 12"),
        (SpreadPlacementStrategy(9, num_gpus=1), "finds room for 8 workers only"),
        (SpreadPlacementStrategy(3, num_gpus=3), "finds room for 2 workers only"),
        (CpuPlacementStrategy(9), "finds free CPUs for 8 workers only"),
        (NodePlacementStrategy([0, 2]), "names node 2; there are 0-1"),
        (NodePlacementStrategy(per_node=3, num_gpus=2), "has no room for rank 2 on node 0"),
        (PackedPlacementStrategy(node_group="robots"), "finds no node labelled node_group=robots"),
        (SpreadPlacementStrategy(1, node_group={"zone": "b"}), "finds no node labelled zone=b"),
        (parse_placement("0-8"), "placement '0-8' names GPU 8"),
        (parse_placement("0-2", unit="node"), "placement '0-2' names node 2"),
        (parse_placement("0-1:0", unit="node"), "several nodes"),
        (parse_placement("all:0-2"), "3 processes cannot be divided evenly over 8 resources"),
        (parse_placement("0:0-10000"), "10001 workers on one GPU"),
    ],
)
def test_what_the_cluster_does_not_have_is_refused(strategy, reason):
    with pytest.raises(InvalidInput, match=reason):
        strategy.places(TWO_OF_FOUR)


@pytest.mark.parametrize("strategy", [PackedPlacementStrategy(), parse_placement("0", unit="gpu")])
def test_gpus_that_do_not_exist_are_refused(strategy):
    with pytest.raises(InvalidInput, match="needs GPUs, and there are none"):
        strategy.places(CPU_ONLY)


def test_an_empty_cluster_is_refused():
    with pytest.raises(InvalidInput, match="no node in the cluster"):
        default_placement([])


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: PackedPlacementStrategy(-1), "start_gpu_id"),
        (lambda: PackedPlacementStrategy(4, 3), "end_gpu_id"),
        (lambda: PackedPlacementStrategy(num_gpus_per_process=0), "CpuPlacementStrategy"),
        (lambda: PackedPlacementStrategy(num_gpus_per_process=1.5), "a part of one GPU, or a whole number"),
        (lambda: PackedPlacementStrategy(num_gpus_per_process=0.00001), "at least 0.0001"),
        (lambda: PackedPlacementStrategy(stride=2), "two GPUs or more"),
        (lambda: PackedPlacementStrategy(num_cpus=float("nan")), "num_cpus"),
        (lambda: SpreadPlacementStrategy(0), "n_workers"),
        (lambda: SpreadPlacementStrategy(1, num_gpus=-1), "num_gpus"),
        (lambda: CpuPlacementStrategy(1, num_cpus=0), "num_cpus"),
        (lambda: NodePlacementStrategy([]), "node_ids"),
        (lambda: NodePlacementStrategy(2), "node_ids"),
        (lambda: NodePlacementStrategy("0:1"), "name processes"),
        (lambda: NodePlacementStrategy(per_node=0), "per_node"),
        (lambda: FlexiblePlacementStrategy([]), "a list of GPUs for each worker, not"),
        (lambda: FlexiblePlacementStrategy(None), "a list of GPUs for each worker, not None"),
        (lambda: FlexiblePlacementStrategy([[True]]), "must be a whole number"),
        (lambda: NodePlacementStrategy(1.5), "must be a list of numbers, not 1.5"),
        (lambda: SpreadPlacementStrategy(10**30), "at most 1,000,000"),
        (lambda: CpuPlacementStrategy(1, num_cpus=10**400), "at most 1,000,000"),
        (lambda: CpuPlacementStrategy(True), "must be a whole number"),
        (lambda: parse_placement(["0"]), "written as a text"),
        (lambda: parse_placement("0", unit="cpu"), "unit must be 'gpu', 'node' or None, not 'cpu'"),
        (lambda: FlexiblePlacementStrategy(2), "gpu_ids"),
        (lambda: FlexiblePlacementStrategy([0, 1]), "GPUs of rank 0"),
        (lambda: FlexiblePlacementStrategy([[0], [1, 1]]), "rank 1 lists a GPU twice"),
        (lambda: FlexiblePlacementStrategy([[0], [0, 1]]), "rank 1 lists GPUs"),
        (lambda: FlexiblePlacementStrategy([[0, 1]], share=0.5), "share=1"),
        (lambda: FlexiblePlacementStrategy([[0]], share=1.5), "up to 1"),
        (lambda: FlexiblePlacementStrategy([[0]], share=0), "up to 1"),
    ],
)
def test_arguments_that_make_no_sense_anywhere_are_refused_at_once(make, reason):
    with pytest.raises(InvalidInput, match=reason):
        make()


@pytest.mark.parametrize("group", [["a"], 1, b"a", {"a": 1}, {1: "a"}, True])
@pytest.mark.parametrize(
    "make",
    [
        PackedPlacementStrategy,
        partial(CpuPlacementStrategy, 1),
        partial(SpreadPlacementStrategy, 1),
        NodePlacementStrategy,
        partial(FlexiblePlacementStrategy, [[0]]),
        partial(parse_placement, "0"),
    ],
)
def test_what_cannot_be_a_group_of_nodes_is_refused_at_once(make, group):
    with pytest.raises(InvalidInput, match="node_group must be the label node_group of the wanted nodes"):
        make(node_group=group)


def test_spread_goes_round_the_nodes_and_passes_over_full_ones():
    assert [n for n, _ in seats(SpreadPlacementStrategy(5), CPU_ONLY)] == [0, 1, 2, 0, 1]
    nodes = [node(0, 1), node(1, 3), node(2)]
    assert seats(SpreadPlacementStrategy(4, num_gpus=1), nodes) == [(0, (0,)), (1, (0,)), (1, (1,)), (1, (2,))]


def test_where_only_the_sum_of_free_gpus_is_known_no_more_are_given():
    nodes = [node(0, 4, free_gpus=1), node(1, 4)]
    assert [n for n, _ in seats(SpreadPlacementStrategy(4, num_gpus=1), nodes)] == [0, 1, 1, 1]


def test_a_part_of_a_gpu_is_taken_from_one_that_is_broken_already():
    nodes = [node(0, 3, free_gpus=2.5, free_by_gpu=(1.0, 0.5, 1.0))]
    assert seats(SpreadPlacementStrategy(2, num_gpus=0.5), nodes) == [(0, (1,)), (0, (0,))]


def test_cpus_are_filled_node_by_node_as_far_as_they_are_free():
    nodes = [node(0, cpus=4, free_cpus=3), node(1, cpus=4)]
    places = CpuPlacementStrategy(3, num_cpus=2).places(nodes)
    assert [(p.node_id, p.n_cpus, p.n_gpus) for p in places] == [(0, 2, 0), (1, 2, 0), (1, 2, 0)]


@pytest.mark.parametrize(
    ("strategy", "node_ids"),
    [
        (NodePlacementStrategy(), [0, 1, 2]),
        (NodePlacementStrategy("all", per_node=2), [0, 0, 1, 1, 2, 2]),
        (NodePlacementStrategy("0-1"), [0, 1]),
        (NodePlacementStrategy([2, 0]), [2, 0]),
        (NodePlacementStrategy([1] * 8), [1] * 8),
    ],
)
def test_nodes_get_their_workers_in_the_order_given(strategy, node_ids):
    assert [n for n, _ in seats(strategy, CPU_ONLY)] == node_ids


def test_a_list_given_to_a_strategy_may_be_changed_afterwards():
    given = [[0], [1]]
    strategy = FlexiblePlacementStrategy(given)
    given[0].append(7)
    assert seats(strategy, TWO_OF_FOUR) == [(0, (0,)), (0, (1,))]


def test_workers_that_list_the_same_gpu_share_it_and_leave_the_rest_to_others():
    places = FlexiblePlacementStrategy([[0, 1], [4], [5], [5], [5]]).places(TWO_OF_FOUR)
    assert [(p.node_id, p.gpus, p.n_gpus) for p in places] == [
        (0, (0, 1), 2),
        (1, (0,), 1),
        *[(1, (1,), 0.3333)] * 3,
    ]
    assert [p.n_gpus for p in FlexiblePlacementStrategy([[0], [0]], share=0.5).places(TWO_OF_FOUR)] == [0.25, 0.25]


def test_a_group_of_nodes_is_counted_from_zero():
    nodes = [node(0, 2, zone="b"), node(1, 2, zone="a", node_group="robots"), node(2, 2, zone="a")]
    assert seats(PackedPlacementStrategy(0, 2, node_group={"zone": "a"}), nodes) == [(1, (0,)), (1, (1,)), (2, (0,))]
    assert seats(NodePlacementStrategy([1], node_group={"zone": "a"}), nodes) == [(2, ())]
    assert seats(parse_placement("all", node_group="robots"), nodes) == [(1, (0,)), (1, (1,))]
    assert seats(SpreadPlacementStrategy(3, node_group={"zone": "a"}), nodes) == [(1, ()), (2, ()), (1, ())]


def test_by_default_there_is_a_worker_for_each_gpu_and_without_gpus_one_for_each_node():
    assert [(p.node_id, p.gpus) for p in default_placement([node(0), node(1, 2)])] == [(1, (0,)), (1, (1,))]
    assert [(p.node_id, p.gpus, p.n_cpus) for p in default_placement(CPU_ONLY)] == [(n, (), 0) for n in range(3)]


def test_nodes_keep_their_ids_when_one_is_gone():
    left = [CPU_ONLY[0], CPU_ONLY[2]]
    assert [n for n, _ in seats(NodePlacementStrategy([2]), left)] == [2]
    with pytest.raises(InvalidInput, match="names node 1; there are 0, 2"):
        NodePlacementStrategy("0-1").places(left)


def test_nodes_may_come_in_any_order():
    nodes = [replace(n, n_gpus=2, free_gpus=2) for n in CPU_ONLY]
    assert PackedPlacementStrategy().places(nodes[::-1]) == PackedPlacementStrategy().places(nodes)
