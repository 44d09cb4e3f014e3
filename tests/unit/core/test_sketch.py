"""Quantiles in bounded memory, checked against sorted lists; spans against a grid."""

import math

from hypothesis import given
from hypothesis import strategies as st

from outrider.core.sketch import Sketch
from outrider.evaluate.spans import Spans

values = st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=200)


@given(values, st.sampled_from([0.01, 0.5, 0.95, 0.99, 1.0]))
def test_a_quantile_is_within_two_percent_of_the_value_of_that_rank(numbers: list[float], q: float):
    sketch = Sketch()
    for number in numbers:
        sketch.add(number)
    exact = sorted(numbers)[max(math.ceil(q * len(numbers)), 1) - 1]
    found = sketch.quantile(q)
    assert found is not None
    assert abs(found - exact) <= 0.02 * exact
    assert (sketch.least, sketch.greatest, sketch.n) == (min(numbers), max(numbers), len(numbers))


@given(st.lists(st.integers(0, 40), min_size=1, max_size=100))
def test_small_whole_numbers_come_back_exactly(numbers: list[int]):
    sketch = Sketch()
    for number in numbers:
        sketch.add(number)
    assert sketch.quantile(0.5) == sorted(numbers)[math.ceil(len(numbers) / 2) - 1]


def test_a_million_numbers_take_no_more_room_than_their_orders_of_magnitude():
    sketch = Sketch()
    for step in range(100_000):
        sketch.add(1.0001 ** (step * 2))
    assert len(list(sketch.buckets())) < 1100


def test_an_empty_sketch_knows_nothing():
    sketch = Sketch()
    assert (sketch.mean, sketch.quantile(0.5), sketch.least, sketch.greatest) == (None, None, None, None)


@given(st.lists(st.tuples(st.integers(0, 200), st.integers(0, 30)), max_size=40))
def test_spans_cover_what_a_grid_of_their_seconds_covers(spans: list[tuple[int, int]]):
    """On a grid of 5 seconds no gap is short enough to be closed."""
    covered = Spans()
    grid = set()
    for begin, length in spans:
        covered.add(begin * 5, (begin + length) * 5)
        grid |= set(range(begin, begin + length))
    assert covered.covered == 5 * len(grid)
    if spans:
        assert covered.first_at is not None
        assert covered.first_at.timestamp() == 5 * min(begin for begin, _ in spans)


def test_short_gaps_are_closed_so_that_spans_do_not_pile_up():
    covered = Spans()
    for number in range(10_000):
        covered.add(number * 0.5, number * 0.5 + 0.1)
    assert len(covered._begins) == 1
