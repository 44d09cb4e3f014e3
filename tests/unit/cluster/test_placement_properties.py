"""What holds for every strategy on every cluster: each rank once, no GPU beyond its share, no worker on two nodes."""

from collections import Counter
from contextlib import suppress

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from outrider.cluster.info import NodeInfo
from outrider.cluster.placement import (
    CpuPlacementStrategy,
    FlexiblePlacementStrategy,
    NodePlacementStrategy,
    PackedPlacementStrategy,
    SpreadPlacementStrategy,
    default_placement,
    parse_placement,
)
from outrider.core.errors import InvalidInput

parts = st.sampled_from([0.1, 0.25, 1 / 3, 0.5, 1.0])
worker_gpus = st.sampled_from([0, 0.1, 0.3, 1 / 3, 0.5, 0.7, 1, 2, 3])
worker_cpus = st.sampled_from([0, 0, 0, 0.5, 1, 2])
groups = st.sampled_from([None, None, None, {"zone": "a"}, {"zone": "b"}])


@st.composite
def nodes(draw, node_id):
    n_gpus, n_cpus = draw(st.integers(0, 4)), draw(st.integers(1, 8))
    is_busy, is_known = draw(st.sampled_from([False, False, True])), draw(st.booleans())
    by_gpu = tuple(1 - draw(parts) if is_busy else 1.0 for _ in range(n_gpus)) if is_known else ()
    return NodeInfo(
        node_id=node_id,
        ip="10.0.0.1",
        name=str(node_id),
        n_cpus=n_cpus,
        n_gpus=n_gpus,
        free_cpus=draw(st.integers(0, n_cpus)) if is_busy else n_cpus,
        free_gpus=sum(by_gpu) if by_gpu else draw(st.integers(0, n_gpus)) if is_busy else n_gpus,
        labels={"zone": draw(st.sampled_from("aab"))},
        free_by_gpu=by_gpu,
    )


clusters = st.integers(1, 4).flatmap(lambda n: st.tuples(*(nodes(node_id) for node_id in range(n))))


@st.composite
def packed(draw, n_gpus):
    each, stride = draw(worker_gpus.filter(bool)), draw(st.integers(1, 2))
    block = max(1, int(each)) * stride
    start = draw(st.integers(0, n_gpus))
    end = draw(st.none() | st.integers(0, 4).map(lambda n: start + n) | st.just(start + block - 1))
    return PackedPlacementStrategy(start, end, each, stride if each > 1 else 1, draw(worker_cpus), draw(groups))


@st.composite
def flexible(draw, n_gpus):
    gpus = draw(st.permutations(range(n_gpus + 1)))
    shared = [[gpu] for gpu in gpus[:3] for _ in range(draw(st.integers(0, 3)))]
    alone = gpus[3 : 3 + draw(st.integers(0, 3))]
    lists = [*shared, *([alone] if alone else [])] or [[0]]
    share = draw(parts) if len(alone) < 2 else 1
    return FlexiblePlacementStrategy(lists, share, draw(worker_cpus), draw(groups))


def spread(n_gpus):
    return st.builds(SpreadPlacementStrategy, st.integers(1, 8), worker_gpus, worker_cpus, groups)


def per_node(n_gpus):
    node_ids = st.just("all") | st.lists(st.integers(0, 3), min_size=1, max_size=3)
    return st.builds(NodePlacementStrategy, node_ids, st.integers(1, 3), worker_gpus, worker_cpus, groups)


def cpus(n_gpus):
    return st.builds(CpuPlacementStrategy, st.integers(1, 12), worker_cpus.filter(bool), groups)


def written(n_gpus):
    texts = st.sampled_from(["all", "0-1", "0,2:1-4", "0-3:0-1", "1:0-2", "all:0-5", "0-1:0-5,3"])
    return st.builds(
        lambda text, share, group: parse_placement(text, share=share, node_group=group), texts, parts, groups
    )


@pytest.mark.parametrize("strategies", [packed, spread, per_node, cpus, flexible, written])
@given(data=st.data(), cluster=clusters)
def test_places_that_are_granted_fit(strategies, data, cluster):
    strategy = data.draw(strategies(sum(node.n_gpus for node in cluster)))
    with suppress(InvalidInput):
        check(strategy.places(cluster), cluster)
        event("granted")


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.data())
def test_workers_get_the_very_gpus_they_name_or_are_refused_where_those_lie_on_two_nodes(sizes, data):
    cluster = [NodeInfo(n, "", "", n_cpus=1, n_gpus=size, free_cpus=1, free_gpus=size) for n, size in enumerate(sizes)]
    node_of = [n for n, size in enumerate(sizes) for _ in range(size)]
    each, stride = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 2))
    stride = stride if each > 1 else 1
    start = data.draw(st.integers(0, len(node_of) - 1))
    end = start + each * stride - 1
    lists = tuple(tuple(range(start + offset, end + 1, stride)) for offset in range(stride))
    for strategy in (PackedPlacementStrategy(start, end, each, stride), FlexiblePlacementStrategy(lists)):
        if end < len(node_of) and all(len({node_of[gpu] for gpu in gpus}) == 1 for gpus in lists):
            places = strategy.places(cluster)
            assert tuple(tuple(sum(sizes[: p.node_id]) + gpu for gpu in p.gpus) for p in places) == lists
        else:
            with pytest.raises(InvalidInput, match="a worker lives on one node" if end < len(node_of) else "names GPU"):
                strategy.places(cluster)


@given(clusters)
def test_default_places_that_are_granted_fit(cluster):
    with suppress(InvalidInput):
        places = default_placement(cluster)
        check(places, cluster)
        assert len(places) == (sum(node.n_gpus for node in cluster) or len(cluster))


def check(places, cluster):
    by_id = {node.node_id: node for node in cluster}
    assert places
    assert [place.rank for place in places] == list(range(len(places)))
    gpu_use, use, cpu_use, seated = Counter(), Counter(), Counter(), Counter()
    sizes = Counter(place.node_id for place in places)
    for place in places:
        node = by_id[place.node_id]
        assert (place.local_rank, place.local_world_size) == (seated[node.node_id], sizes[node.node_id])
        assert place.node_rank == sorted(sizes).index(node.node_id)
        seated[node.node_id] += 1
        assert len(set(place.gpus)) == len(place.gpus)
        assert set(place.gpus) <= set(range(int(node.n_gpus)))
        assert len(place.gpus) == (place.n_gpus if place.n_gpus >= 1 else bool(place.n_gpus))
        for gpu in place.gpus:
            gpu_use[node.node_id, gpu] += place.n_gpus / len(place.gpus)
        use[node.node_id] += place.n_gpus
        cpu_use[node.node_id] += place.n_cpus
    for node_id, node in by_id.items():
        assert use[node_id] <= node.free_gpus + 1e-6
        assert cpu_use[node_id] <= node.free_cpus + 1e-6
        for gpu, free in enumerate(node.free_by_gpu or [1.0] * int(node.n_gpus)):
            assert gpu_use[node_id, gpu] <= free + 1e-6


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 40))
def test_spread_workers_differ_by_one_between_like_nodes(n_nodes, n_cpus, n_workers):
    cluster = [NodeInfo(n, "", "", n_cpus=n_cpus, n_gpus=0, free_cpus=n_cpus, free_gpus=0) for n in range(n_nodes)]
    places = SpreadPlacementStrategy(n_workers).places(cluster)
    sizes = [sum(place.node_id == n for place in places) for n in range(n_nodes)]
    assert max(sizes) - min(sizes) <= 1


@given(clusters, worker_cpus.filter(bool))
def test_cpu_slots_that_are_free_can_all_be_had_and_not_one_more(cluster, num_cpus):
    room = sum(int(node.free_cpus / num_cpus) for node in cluster)
    if room:
        assert len(CpuPlacementStrategy(room, num_cpus).places(cluster)) == room
    with pytest.raises(InvalidInput, match=f"for {room} workers only"):
        CpuPlacementStrategy(room + 1, num_cpus).places(cluster)
