"""Token ids and log-probabilities as the bytes that a completion keeps: four each, the lowest first."""

from array import array
from collections.abc import Iterable

_IS_BIG_ENDIAN = array("h", [1]).tobytes() != b"\x01\x00"

BYTES_PER_ID = 4


def pack_ids(ids: Iterable[int]) -> bytes:
    """Raises `OverflowError` or `TypeError` for what is not a 32-bit number."""
    return _little_endian(array("i", ids))


def pack_floats(values: Iterable[float]) -> bytes:
    return _little_endian(array("f", values))


def unpack_ids(packed: bytes) -> "array[int]":
    ids = array("i")
    ids.frombytes(packed)
    if _IS_BIG_ENDIAN:
        ids.byteswap()
    return ids


def _little_endian(values: "array[int] | array[float]") -> bytes:
    if _IS_BIG_ENDIAN:
        values.byteswap()
    return values.tobytes()
