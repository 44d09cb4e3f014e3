"""What passes between tests and submission is plain data or a reference, whatever is put in."""

import datetime as dt
import decimal
import enum
import fractions
import json
import time
from collections import Counter, OrderedDict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.env.sandbox.inside.exchange import decode, encode, plain_form, restore

hashable = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(),
    st.binary(),
    st.complex_numbers(allow_nan=False),
)
plain = st.recursive(
    hashable | st.builds(bytearray, st.binary()),
    lambda inner: st.one_of(
        st.lists(inner),
        st.lists(inner).map(tuple),
        st.dictionaries(hashable, inner),
        st.sets(hashable),
        st.frozensets(hashable),
    ),
)


def refuse(value: Any) -> Any:
    raise AssertionError(f"{value!r} is not plain")


def passed(value: Any) -> Any:
    return decode(json.loads(json.dumps(encode(value, refuse))), refuse)


def typed(value: Any) -> Any:
    """With the types of all that is inside, for 1 == 1.0 == True."""
    if isinstance(value, dict):
        return [(typed(key), typed(item)) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return type(value), [typed(item) for item in value]
    return type(value), value


@settings(max_examples=50)
@given(plain)
def test_plain_data_comes_out_as_it_went_in(value):
    assert typed(passed(value)) == typed(value)


@pytest.mark.parametrize(
    "value",
    [
        -(2**5000),
        "\ud800\0",
        decimal.Decimal("-1.50"),
        fractions.Fraction(-2, 3),
        dt.date(2024, 2, 29),
        dt.datetime(2024, 2, 29, 1, 2, 3, 4, tzinfo=dt.UTC),
        dt.timedelta(-1, 2, 3),
        dt.time(1, 2),
    ],
)
def test_values_of_the_standard_library_are_passed_by_value(value):
    assert typed(passed(value)) == typed(value)


def test_what_is_not_plain_is_referred_to():
    class Evil(int):
        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = int.__hash__

    class Fake:
        __module__, __qualname__ = "decimal", "Context"

    held: list[Any] = []

    def refer(value: Any) -> dict[str, Any]:
        held.append(value)
        return {"type": "object", "id": len(held) - 1}

    values = [Evil(1), print, Fake(), object(), range(3), OrderedDict()]
    message = json.loads(json.dumps(encode(values, refer)))
    assert message == [{"type": "object", "id": number} for number in range(len(values))]
    assert all(one is other for one, other in zip(held, values, strict=True))


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"type": None},
        {"type": "tuple"},
        {"type": "dict", "content": [1]},
        {"type": "dict", "content": [[[], 1]]},
        {"type": "set", "content": [[]]},
        {"type": "bytes", "content": "x"},
        {"type": "int", "content": 5},
        {"type": "complex", "content": [1, 2, 3]},
        {"type": ["tuple"], "content": []},
        {"type": "datetime.date", "content": ["x"]},
        {"type": "decimal.Decimal", "content": [{}]},
    ],
)
def test_what_is_no_message_is_an_error_not_a_value(message):
    with pytest.raises(ValueError):  # noqa: PT011 any will do
        decode(message, lambda unknown: unknown["no"])


def test_the_plain_form_of_a_kind_of_plain_data_is_of_the_plain_type():
    for value, form in [
        (time.struct_time(range(9)), tuple(range(9))),
        (Counter("aab"), {"a": 2, "b": 1}),
        (enum.StrEnum("Colour", {"RED": "red"}).RED, "red"),
        (enum.IntEnum("N", {"ONE": 1}).ONE, 1),
    ]:
        assert typed(plain_form(value)) == typed(form)
    assert plain_form(object()) is None


def test_only_containers_of_the_same_type_are_restored():
    numbers, names, text = [1], {"a": 1}, "text"
    restore(numbers, [2, 3])
    restore(names, [4])
    restore(text, "other")
    assert (numbers, names, text) == ([2, 3], {"a": 1}, "text")
    restore(names, {"b": 2})
    assert names == {"b": 2}
