"""How a desktop and its owner speak: a JSON object and bytes behind it, each of a length told ahead."""

import json
import struct
from collections.abc import Iterator
from typing import Any

MAX_HEAD_BYTES = 1024 * 1024
MAX_BODY_BYTES = 256 * 1024 * 1024

_LENGTHS = struct.Struct("!II")


class BadFrame(ValueError):
    """What came is no frame, or a larger one than there may be."""


def frame(head: dict[str, Any], body: bytes = b"") -> bytes:
    text = json.dumps(head).encode()
    if len(text) > MAX_HEAD_BYTES or len(body) > MAX_BODY_BYTES:
        raise BadFrame(f"{len(text)} + {len(body)} bytes are too many at once")
    return _LENGTHS.pack(len(text), len(body)) + text + body


class Frames:
    """Puts frames together from what arrives."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[dict[str, Any], bytes]]:
        """All frames that are complete now. Raises `BadFrame`."""
        self._data += data
        while len(self._data) >= _LENGTHS.size:
            n_head, n_body = _LENGTHS.unpack_from(self._data)
            if n_head > MAX_HEAD_BYTES or n_body > MAX_BODY_BYTES:
                raise BadFrame(f"{n_head} + {n_body} bytes are too many at once")
            end = _LENGTHS.size + n_head + n_body
            if len(self._data) < end:
                return
            text = bytes(self._data[_LENGTHS.size : _LENGTHS.size + n_head])
            body = bytes(self._data[_LENGTHS.size + n_head : end])
            del self._data[:end]
            yield _head(text), body


def _head(text: bytes) -> dict[str, Any]:
    try:
        head = json.loads(text)
    except ValueError as exc:
        raise BadFrame("the head is not JSON") from exc
    if not isinstance(head, dict):
        raise BadFrame("the head is not an object")
    return head
