"""Estimates, checked against enumeration and simulation."""

import math
import random
from itertools import combinations
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.evaluate.estimate import ClusteredMean, pass_at, pass_sizes, student_critical, wilson


@given(st.integers(1, 9).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n), st.integers(0, n))))
def test_pass_at_k_is_the_share_of_all_choices_of_k_samples_that_hold_a_correct_one(case: tuple[int, int, int]):
    n, k, n_correct = case
    samples = [True] * n_correct + [False] * (n - n_correct)
    choices = list(combinations(samples, k))
    assert pass_at(k, n, n_correct) == pytest.approx(sum(map(any, choices)) / len(choices))


def test_pass_at_k_needs_k_samples():
    with pytest.raises(ValueError, match="pass@3 needs at least 3 samples, not 2"):
        pass_at(3, 2, 1)


def test_pass_at_k_of_thousands_of_samples_neither_overflows_nor_loses_the_one_that_passed():
    assert pass_at(1, 5000, 1) == pytest.approx(1 / 5000)
    assert pass_at(2500, 5000, 1) == pytest.approx(0.5)


def test_sizes_are_the_powers_of_two_and_the_number_of_samples_itself():
    assert [pass_sizes(n) for n in (1, 2, 6, 8)] == [(1,), (1, 2), (1, 2, 4, 6), (1, 2, 4, 8)]


@pytest.mark.parametrize(
    ("degrees", "critical"),
    [(1, 12.7062), (2, 4.3027), (3, 3.1824), (4, 2.7764), (5, 2.5706), (10, 2.2281), (30, 2.0423), (1000, 1.9623)],
)
def test_critical_values_are_those_of_the_tables(degrees: int, critical: float):
    assert student_critical(degrees) == pytest.approx(critical, rel=2e-3)


clusters = st.lists(st.lists(st.floats(-5, 5), min_size=1, max_size=4), min_size=2, max_size=8)


@given(clusters)
def test_sums_give_what_the_formula_over_all_values_gives(values: list[list[float]]):
    mean = ClusteredMean()
    for cluster in values:
        mean.add(cluster)
    found = mean.estimate()
    everything = [value for cluster in values for value in cluster]
    expected = fmean(everything)
    residuals = [sum(value - expected for value in cluster) for cluster in values]
    n = len(values)
    error = math.sqrt(n / (n - 1) * sum(residual**2 for residual in residuals)) / len(everything)
    assert found is not None
    assert found.mean == pytest.approx(expected, abs=1e-9)
    assert found.n == len(everything)
    if not all(value in (0.0, 1.0) for value in everything):
        half = student_critical(n - 1) * error
        assert (found.low, found.high) == (
            pytest.approx(expected - half, abs=1e-6),
            pytest.approx(expected + half, abs=1e-6),
        )


def test_great_numbers_do_not_drown_their_differences():
    mean = ClusteredMean()
    for value in (1e12 + 1, 1e12 + 2, 1e12 + 3):
        mean.add([value])
    found = mean.estimate()
    assert found is not None
    assert found.low is not None
    assert found.high is not None
    assert (found.high - found.low) / 2 == pytest.approx(student_critical(2) / math.sqrt(3), rel=1e-3)


def test_no_value_gives_no_estimate_and_one_cluster_no_interval():
    mean = ClusteredMean()
    mean.add([])
    assert mean.estimate() is None
    mean.add([1.0, 0.0])
    found = mean.estimate()
    assert found is not None
    assert (found.mean, found.n, found.low, found.high) == (0.5, 2, None, None)


def test_an_interval_of_ones_alone_does_not_shrink_to_nothing():
    mean = ClusteredMean()
    for _ in range(20):
        mean.add([1.0] * 8)
    found = mean.estimate()
    assert found is not None
    assert (found.mean, found.high) == (1.0, 1.0)
    assert found.low is not None
    assert 0.7 < found.low < 0.9


def test_wilson_is_that_of_the_textbooks():
    low, high = wilson(0.5, 10, 1.959964)
    assert (low, high) == (pytest.approx(0.2366, abs=1e-4), pytest.approx(0.7634, abs=1e-4))


def test_intervals_hold_the_truth_nineteen_times_in_twenty_where_independent_samples_would_not():
    """200 runs of 30 tasks with 8 alike samples each; the truth is 0.5."""
    random_ = random.Random(5)
    n_held = n_held_if_independent = 0
    for _ in range(200):
        mean = ClusteredMean()
        passed = 0
        for _ in range(30):
            chance = random_.betavariate(0.5, 0.5)
            samples = [float(random_.random() < chance) for _ in range(8)]
            passed += int(sum(samples))
            mean.add(samples)
        found = mean.estimate()
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        n_held += found.low <= 0.5 <= found.high
        low, high = wilson(passed / 240, 240, 1.96)
        n_held_if_independent += low <= 0.5 <= high
    assert 180 <= n_held <= 199
    assert n_held_if_independent < 160
