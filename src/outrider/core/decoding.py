"""Data made into values of a type. All of Outrider reads through here, since types must be prepared one at a time.

msgspec prepares a struct or a dataclass when it is first read, and other threads find it before it is done: one that
reads it just then ends the process. Each decoder is therefore made under one lock.
"""

import threading
from collections.abc import Hashable
from functools import lru_cache
from typing import Any, TypeVar, overload

import msgspec

from outrider.core.secret import secret_of

T = TypeVar("T")

_N_KEPT = 1024
_preparing = threading.RLock()


@lru_cache(maxsize=_N_KEPT)
def msgpack_decoder(kind: Hashable = Any) -> "msgspec.msgpack.Decoder[Any]":
    with _preparing:
        return msgspec.msgpack.Decoder(kind, dec_hook=secret_of)


@lru_cache(maxsize=_N_KEPT)
def json_decoder(kind: Hashable = Any) -> "msgspec.json.Decoder[Any]":
    with _preparing:
        return msgspec.json.Decoder(kind, dec_hook=secret_of)


@overload
def from_json(data: bytes | str, kind: type[T]) -> T: ...
@overload
def from_json(data: bytes | str, kind: Any = Any) -> Any: ...
def from_json(data: bytes | str, kind: Any = Any) -> Any:
    """What a text of JSON says; `msgspec.DecodeError` if it is none, or `ValidationError` if it is of another type."""
    return json_decoder(kind).decode(data)


@overload
def convert(value: Any, kind: type[T], *, strict: bool = True) -> T: ...
@overload
def convert(value: Any, kind: Any, *, strict: bool = True) -> Any: ...
def convert(value: Any, kind: Any, *, strict: bool = True) -> Any:
    """A value of JSON-like parts as this type, or `msgspec.ValidationError`; not `strict`, also from text."""
    msgpack_decoder(kind)
    return msgspec.convert(value, kind, strict=strict, dec_hook=secret_of)
