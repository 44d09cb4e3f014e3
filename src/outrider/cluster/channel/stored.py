"""Items of durable channels as the store keeps them: plain data in MessagePack, whose reading runs no code.

Lists, dicts, tuples, text, bytes, numbers and NumPy arrays come back as they were. Anything else is refused, or pickled
if the channel allows that. A pickle is kept as text, so that a reader can tell it from plain data without loading it.
"""

import base64
import pickle
import sys
from typing import Any

import msgspec

from outrider.cluster.cargo import fault, pickled
from outrider.core import wire
from outrider.core.errors import ChannelError, InvalidInput

TUPLE, ARRAY = 1, 2
"""Types of our own in MessagePack: a list that is a tuple; type, shape (None: a scalar) and bytes of a NumPy array."""

ARRAY_KINDS = "biufcmMSU"
"""Of NumPy's types, those that are nothing but bytes."""

_PLAIN = frozenset({type(None), bool, int, float, str, bytes})
_encode = msgspec.msgpack.Encoder().encode


def to_stored(item: Any, *, allow_pickle: bool) -> bytes | str:
    """What the store shall keep; `InvalidInput` if it cannot."""
    try:
        return _encode(_plain(item))
    except (InvalidInput, OverflowError, RecursionError) as exc:
        if not allow_pickle:
            raise InvalidInput(f"{exc}; allow_pickle=True keeps it as a pickle") from exc
    if (why := fault(item)) is not None:
        raise InvalidInput(why)
    return base64.b64encode(pickled(item)).decode()


def from_stored(stored: Any, *, allow_pickle: bool) -> Any:
    """The item again; `ChannelError` if it cannot be read, or is a pickle and may not be."""
    if isinstance(stored, str) and not allow_pickle:
        raise ChannelError(
            "is a pickle, whose reading may run any code. If you trust everyone who can write to this store, open the "
            "channel with allow_pickle=True"
        )
    try:
        if isinstance(stored, str):
            return pickle.loads(base64.b64decode(stored))  # noqa: S301 the user has allowed it
        return _restored(wire.decode(stored))
    except Exception as exc:
        raise ChannelError(f"cannot be read: {type(exc).__name__}: {exc}") from exc


def _plain(value: Any) -> Any:
    """The value in parts that MessagePack holds as they are."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is list:
        return [_plain(each) for each in value]
    if kind is dict:
        return {_key(key): _plain(each) for key, each in value.items()}
    if kind is tuple:
        return msgspec.msgpack.Ext(TUPLE, _encode([_plain(each) for each in value]))
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.ndarray | numpy.generic) and value.dtype.kind in ARRAY_KINDS:
        shape = list(value.shape) if kind is numpy.ndarray else None
        if shape is not None or kind.__module__ == "numpy":
            return msgspec.msgpack.Ext(ARRAY, _encode([value.dtype.str, shape, value.tobytes()]))
    raise InvalidInput(
        f"{kind.__name__} is not plain data (lists, dicts, tuples, text, bytes, numbers, NumPy arrays of numbers)"
    )


def _key(key: Any) -> Any:
    if type(key) not in _PLAIN:
        raise InvalidInput(f"a key of a dict is text, bytes or a number, not {type(key).__name__}")
    return key


def _restored(value: Any) -> Any:
    if isinstance(value, list):
        return [_restored(each) for each in value]
    if isinstance(value, dict):
        return {key: _restored(each) for key, each in value.items()}
    if not isinstance(value, msgspec.msgpack.Ext):
        return value
    content = wire.decode(bytes(value.data))
    if value.code == TUPLE:
        return tuple(_restored(each) for each in content)
    if value.code == ARRAY:
        return _array(*content)
    raise InvalidInput(f"it has values of type {value.code}, which this Outrider does not know")


def _array(dtype: str, shape: list[int] | None, content: bytes) -> Any:
    import numpy  # noqa: PLC0415, ICN001 only who receives an array needs it

    kind = numpy.dtype(dtype)
    if kind.kind not in ARRAY_KINDS or min(shape or [0]) < 0:
        raise InvalidInput(f"an array of {dtype} with shape {shape} is not plain data")
    array = numpy.frombuffer(bytearray(content), kind)
    return array[0] if shape is None else array.reshape(shape)
