"""The text of a placement: what it means, and which piece of it is wrong."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.cluster.info import NodeInfo
from outrider.cluster.placement import parse_placement
from outrider.cluster.placement.grammar import parse_ranks
from outrider.core.errors import InvalidInput


def machine(gpus, node_id=0):
    return NodeInfo(node_id, "127.0.0.1", "n", n_cpus=1, n_gpus=gpus, free_cpus=1, free_gpus=gpus)


def gpus_by_rank(text, n_gpus=12):
    return [list(place.gpus) for place in parse_placement(text).places([machine(n_gpus)])]


@pytest.mark.parametrize(
    ("text", "by_rank"),
    [
        ("0-3", [[0], [1], [2], [3]]),
        ("5", [[5]]),
        (" 0 , 2 , 5 - 7 ", [[0], [2], [5], [6], [7]]),
        ("7,0", [[7], [0]]),
        ("all", [[n] for n in range(12)]),
        ("all:0-2", [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]),
        ("0-1:0-3,2-3:4-7", [[0], [0], [1], [1], [2], [2], [3], [3]]),
        ("0-3:0-1", [[0, 1], [2, 3]]),
        ("0-1:0-3,5", [[0], [0], [1], [1], [5]]),
        ("0-1:0-3,3-5,7-8:7-10", [[0], [0], [1], [1], [3], [4], [5], [7], [7], [8], [8]]),
        ("4:1,9:0", [[9], [4]]),
    ],
)
def test_a_text_says_which_rank_has_which_gpus(text, by_rank):
    assert gpus_by_rank(text) == by_rank


def test_without_gpus_or_where_asked_the_numbers_are_those_of_nodes():
    assert [p.node_id for p in parse_placement("0:0-1,1:2").places([machine(0), machine(0, 1)])] == [0, 0, 1]
    places = parse_placement("all:0-3", unit="node").places([machine(8), machine(8, 1)])
    assert [(p.node_id, p.n_gpus) for p in places] == [(0, 0), (0, 0), (1, 0), (1, 0)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "piece 1 (''): '' is neither a rank"),
        ("0,,2", "piece 2 (''): '' is neither a rank"),
        ("0-3,x-5", "piece 2 ('x-5'): 'x-5' is neither a rank such as '2' nor a range such as '0-3'"),
        ("0-1:a", "piece 1 ('0-1:a'): 'a' is neither"),
        ("0-1:", "'' is neither"),
        ("0:1:2", "piece 1 ('0:1:2'): '1:2' is neither"),
        ("-1", "'-1' is neither"),
        ("٣", "is neither"),
        ("0-100000", "up to 99999"),
        ("9" * 5000, "is neither"),
        ("3-1", "the range '3-1' ends before it begins"),
        ("0-2:0-1", "2 processes cannot be divided evenly over 3 resources"),
        ("0-3,2-5", "'2-5' names resource 2, which '0-3' has already"),
        ("0:0-1,1:1-2", "'1:1-2' places process 1 a second time"),
        ("0:0,1:2", "no piece places process 1, though '1:2' places 2"),
        ("0:1", "no piece places process 0"),
        ("all:1-2", "no piece places process 0"),
        ("0:all", "'all' is neither"),
        ("0,all", "piece 2 ('all'): 'all' must stand alone"),
    ],
)
def test_a_text_that_cannot_be_used_is_refused_and_the_piece_is_named(text, message):
    with pytest.raises(InvalidInput) as refused:
        parse_placement(text)
    assert message in str(refused.value)


@given(st.text(alphabet="0123456789-:, al", max_size=12))
def test_any_text_is_either_refused_or_gives_each_rank_its_gpus(text):
    try:
        strategy = parse_placement(text)
        places = strategy.places([machine(1000)])
    except InvalidInput:
        return
    assert [place.rank for place in places] == list(range(len(places)))
    assert all(place.gpus for place in places)


@st.composite
def rank_sets(draw):
    bounds = draw(st.lists(st.integers(0, 200), min_size=1, max_size=10, unique=True))
    return [(first, last) for first, last in zip(sorted(bounds)[::2], sorted(bounds)[1::2], strict=False)] or [(5, 5)]


@given(rank_sets())
def test_ranges_mean_all_their_numbers(ranges):
    text = ",".join(f"{first}-{last}" if first != last else str(first) for first, last in ranges)
    assert parse_ranks(text) == [n for first, last in ranges for n in range(first, last + 1)]


@st.composite
def pieces(draw):
    """A text made of pieces in any order, with the GPUs it means for each rank."""
    text, expected, gpu, rank = [], [], 0, 0
    for _ in range(draw(st.integers(1, 4))):
        few, times, many_workers = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.booleans())
        n_gpus, n_workers = (few, few * times) if many_workers else (few * times, few)
        text.append(f"{gpu}-{gpu + n_gpus - 1}:{rank}-{rank + n_workers - 1}")
        if many_workers:
            expected += [[gpu + n // times] for n in range(n_workers)]
        else:
            expected += [list(range(gpu + n * times, gpu + (n + 1) * times)) for n in range(n_workers)]
        gpu, rank = gpu + n_gpus + draw(st.integers(0, 2)), rank + n_workers
    return ",".join(draw(st.permutations(text))), expected


@given(pieces())
def test_pieces_mean_the_same_in_any_order(case):
    text, expected = case
    assert gpus_by_rank(text, n_gpus=100) == expected
