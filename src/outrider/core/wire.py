"""How values cross a process border or reach a disk: msgpack, with a schema number on every record of ours."""

from types import NoneType
from typing import Any, TypeVar, cast

import msgspec

from outrider.core.decoding import msgpack_decoder
from outrider.core.errors import InvalidInput
from outrider.core.secret import Secret, revealed, shown_of

T = TypeVar("T")

SCHEMA = 1
"""Raised when a record changes so that an older reader would misread it; new fields with defaults do not count."""

_decode_any = msgpack_decoder().decode
_decode_record = msgpack_decoder(tuple[int, msgspec.Raw]).decode
_encode = msgspec.msgpack.Encoder().encode
_encode_shown = msgspec.msgpack.Encoder(enc_hook=shown_of).encode
_encode_revealed = msgspec.msgpack.Encoder(enc_hook=revealed).encode


def encode(value: Any) -> bytes:
    """`value` as msgpack. Refuses what would not come back the same on another machine, but for tuples as lists."""
    try:
        data = _encode(value)
        comes_back = _decode_any(data) == value
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as exc:
        raise InvalidInput(f"{type(value).__name__} cannot be stored: {exc}; use JSON-like values or bytes") from exc
    if not comes_back:
        _refuse_changelings(value)
    return data


def _refuse_changelings(value: Any) -> None:
    """Refuse what msgspec would quietly turn into something else, such as a set or a date."""
    if isinstance(value, dict):
        for key, item in value.items():
            _refuse_changelings(key)
            _refuse_changelings(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _refuse_changelings(item)
    elif not isinstance(value, (str, int, float, bytes, bytearray, memoryview, NoneType)):
        raise InvalidInput(f"{type(value).__name__} cannot be stored: {value!r} would come back as another type")


def decode(data: bytes) -> Any:
    """The JSON-like value that `encode` was given."""
    return _decode_any(data)


def to_record(value: object) -> bytes:
    """A dataclass of ours as a self-describing record. Its secrets are masked."""
    return _encode_shown((SCHEMA, value))


def to_private_record(value: object) -> bytes:
    """The same with its secrets, for a process that needs them: through a pipe or an authenticated connection only."""
    return _encode_revealed((SCHEMA, value))


def from_record(data: bytes, kind: type[T]) -> T:
    """The dataclass that `to_record` was given; fields this version does not know are ignored."""
    schema, body = _decode_record(data)
    if schema > SCHEMA:
        raise InvalidInput(f"a {kind.__name__} record has schema {schema}, this Outrider knows up to {SCHEMA}; upgrade")
    return cast("T", msgpack_decoder(cast("Any", kind)).decode(body))


def to_json(value: object) -> str:
    """Any value of ours as one line of JSON for scripts: datetimes as ISO 8601, bytes as base64, secrets masked."""
    try:
        return msgspec.json.encode(value, enc_hook=_json_fallback).decode()
    except (TypeError, ValueError, RecursionError) as exc:
        raise InvalidInput(f"{type(value).__name__} has no JSON form: {exc}") from exc


def _json_fallback(value: object) -> object:
    if isinstance(value, Secret):
        return value.shown
    raise InvalidInput(f"{type(value).__name__} has no JSON form")
