"""Arguments that differ from rank to rank."""

import pytest

from outrider.cluster.scatter import dealt, is_scattered, scatter
from outrider.core.errors import InvalidInput


def test_each_rank_is_dealt_its_own_value_and_what_is_shared():
    assert dealt("f()", (scatter("ab"), 1), {"k": scatter(range(2)), "s": 5}, 2) == [
        (("a", 1), {"k": 0, "s": 5}),
        (("b", 1), {"k": 1, "s": 5}),
    ]


def test_lists_are_not_scattered():
    assert not is_scattered(([1, 2],), {"k": (1, 2)})
    assert is_scattered((), {"k": scatter([])})


def test_a_value_for_each_rank_is_needed():
    with pytest.raises(InvalidInput, match=r"f\(\): scatter of 3 values for 2 workers"):
        dealt("f()", (scatter([1, 2, 3]),), {}, 2)
