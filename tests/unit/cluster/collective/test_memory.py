"""The bytes under tensors, and what cannot be received into."""

import array
import mmap

import numpy as np
import pytest

from outrider.cluster.collective.memory import copy, readable, writable
from outrider.core.errors import InvalidInput


@pytest.mark.parametrize(
    "tensor",
    [
        b"bytes",
        bytearray(b"more"),
        array.array("d", [1, 2, 3]),
        memoryview(b"view")[1:],
        np.arange(12, dtype=np.int16).reshape(3, 4),
        np.arange(12).reshape(3, 4).T,
        np.arange(12)[::3],
        np.zeros((0, 3)),
        np.float64(2.5),
        np.array(1.5),
    ],
    ids=["bytes", "bytearray", "array", "view", "numbers", "transposed", "strided", "empty", "scalar", "no dimension"],
)
def test_what_is_sent_is_the_content_in_its_order(tensor):
    assert bytes(readable(tensor)) == memoryview(tensor).tobytes()


@pytest.mark.parametrize(
    "tensor", [bytearray(8), np.zeros((2, 4), np.uint8), array.array("b", bytes(8)), mmap.mmap(-1, 8)]
)
def test_what_is_received_lies_in_the_buffer(tensor):
    copy(writable(tensor).view, memoryview(b"12345678"))
    assert memoryview(tensor).tobytes() == b"12345678"


@pytest.mark.parametrize(
    ("tensor", "reason"),
    [
        (b"bytes", "a bytes of shape .* is read-only"),
        (np.arange(12).reshape(3, 4).T, r"a ndarray of shape \(4, 3\) and type int64 is not contiguous"),
        (np.frombuffer(b"x", np.uint8), "read-only"),
        ([1, 2], "not list"),
        (None, "not NoneType"),
        (np.array(["2020-01-01"], "datetime64[D]"), "cannot be reached"),
    ],
    ids=["bytes", "transposed", "frozen", "list", "none", "dates"],
)
def test_a_buffer_that_cannot_be_filled_in_place_is_refused_with_the_reason(tensor, reason):
    with pytest.raises(InvalidInput, match=reason):
        writable(tensor)


def test_no_more_is_copied_than_fits():
    target = bytearray(b"......")
    copy(memoryview(target)[1:3], memoryview(b"abcdef"))
    assert target == b".ab..."
