"""Items as a store keeps them."""

import enum
import math
import pickle
from collections import OrderedDict

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.cluster.channel.stored import ARRAY, from_stored, to_stored
from outrider.core import wire
from outrider.core.errors import ChannelError, InvalidInput

scalars = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text() | st.binary()
)
items = st.recursive(
    scalars,
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(scalars, inner),
    max_leaves=20,
)


def after_the_store(item):
    stored = wire.decode(wire.encode(to_stored(item, allow_pickle=False)))
    return from_stored(stored, allow_pickle=False)


@given(items)
def test_plain_data_comes_back_as_it_was(item):
    found = after_the_store(item)
    assert found == item
    assert repr(found) == repr(item), "types too"


@pytest.mark.parametrize(
    "array",
    [
        np.arange(24, dtype=np.int32).reshape(2, 3, 4),
        np.asfortranarray(np.ones((3, 2), np.float16)),
        np.array(3.5),
        np.zeros((0, 4), np.uint8),
        np.array(["a", "bcd"]),
        np.array([True, False])[::-1],
        np.array(["2026-01-01"], "M8[D]"),
        np.array([1 + 2j], ">c16"),
    ],
    ids=lambda array: f"{array.dtype} {array.shape}",
)
def test_arrays_come_back_as_they_were_and_can_be_written(array):
    (found,) = after_the_store((array,))
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    np.testing.assert_array_equal(found, array)
    assert found.flags.writeable


@pytest.mark.parametrize("scalar", [np.float32(0.1), np.int64(-3), np.bool_(True), np.float64(math.pi)])
def test_scalars_of_numpy_keep_their_type(scalar):
    found = after_the_store(scalar)
    assert (type(found), found) == (type(scalar), scalar)


class Colour(enum.IntEnum):
    RED = 1


@pytest.mark.parametrize(
    "item",
    [
        {1, 2},
        object(),
        Colour.RED,
        OrderedDict(a=1),
        bytearray(b"a"),
        {(1, 2): 3},
        2**70,
        np.array([object()]),
        np.zeros(2, [("a", "i4")]),
        np.ma.masked_array([1], [True]),
        [[{"deep": lambda: None}]],
    ],
    ids=lambda item: type(item).__name__,
)
def test_what_would_come_back_as_something_else_is_refused(item):
    with pytest.raises(InvalidInput, match="allow_pickle=True"):
        to_stored(item, allow_pickle=False)


def test_what_is_nested_too_deeply_is_refused():
    item = []
    for _ in range(100_000):
        item = [item]
    with pytest.raises(InvalidInput):
        to_stored(item, allow_pickle=False)


def forged(code, *content):
    return msgspec.msgpack.encode(msgspec.msgpack.Ext(code, msgspec.msgpack.encode(content)))


@pytest.mark.parametrize(
    "stored",
    [
        b"",
        b"\xc1",
        b"\x91" * 100_000,
        pickle.dumps("a pickle"),
        forged(ARRAY, "O", [1], b"12345678"),
        forged(ARRAY, "i4", [1000000000000], b"1234"),
        forged(ARRAY, "i4", [-5], b"1234"),
        forged(ARRAY, "nonsense", [1], b"1234"),
        forged(ARRAY, "i4"),
        forged(9, 1),
        {"not": "bytes"},
        None,
    ],
)
def test_what_was_not_put_by_a_channel_is_an_error_that_runs_nothing(stored):
    with pytest.raises(ChannelError, match="cannot be read"):
        from_stored(stored, allow_pickle=False)
