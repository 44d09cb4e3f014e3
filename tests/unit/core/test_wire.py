from dataclasses import dataclass

import msgspec
import pytest

from outrider.core import wire
from outrider.core.attempt import Failure
from outrider.core.errors import Boundary, InvalidInput
from outrider.core.page import Page
from outrider.core.rollout import RolloutConfig


def test_a_tuple_comes_back_as_a_list():
    assert wire.decode(wire.encode({"a": (1, (2,))})) == {"a": [1, [2]]}


def test_what_would_come_back_as_something_else_is_refused():
    for value in [{1}, frozenset(), Boundary, 1j, {"a": [{1: {2}}]}, range(3), Failure]:
        with pytest.raises(InvalidInput, match="cannot be stored"):
            wire.encode(value)


def test_a_nan_can_be_stored():
    assert wire.decode(wire.encode([float("nan")]))[0] != 0


def test_nesting_without_end_is_refused():
    endless: list[object] = []
    endless.append(endless)
    with pytest.raises(InvalidInput):
        wire.encode(endless)


def test_a_record_is_read_by_a_later_version_that_knows_more_and_by_one_that_knows_less():
    @dataclass(frozen=True, kw_only=True)
    class Later:
        boundary: Boundary
        kind: str
        message: str
        colour: str = "red"

    failure = Failure(boundary=Boundary.ENV, kind="K", message="m", stage="s")
    later = wire.from_record(wire.to_record(failure), Later)
    assert (later.kind, later.colour) == ("K", "red")
    assert wire.from_record(wire.to_record(later), Failure).stage == ""


def test_a_record_of_a_newer_schema_is_refused():
    record = msgspec.msgpack.encode((wire.SCHEMA + 1, RolloutConfig()))
    with pytest.raises(InvalidInput, match="upgrade"):
        wire.from_record(record, RolloutConfig)


def test_values_of_ours_have_a_json_form():
    page = Page(items=(RolloutConfig(retry_condition=frozenset()),), total=1, limit=-1, offset=0)
    assert '"max_attempts":3' in wire.to_json(page)
    with pytest.raises(InvalidInput):
        wire.to_json(object())


def test_a_page_is_iterable_and_sized():
    page = Page(items=("a", "b"), total=9, limit=2, offset=0)
    assert (list(page), len(page), page[1], page.total) == (["a", "b"], 2, "b", 9)
