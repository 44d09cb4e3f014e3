"""How the tests' process and the submission's process speak: frames of JSON, in which only plain data is itself.

Whatever is not plain data stays where it is and is passed as a reference. A subclass of a plain type is a reference
that carries its plain form. So nothing the submission sends can bring code, or an `__eq__` of its own, along.
"""

from __future__ import annotations

import importlib
import json
import operator
import os
from types import MappingProxyType

TYPE_CHECKING = False  # `typing` takes longer to import than all else here
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

MAX_FRAME_BYTES = 16 * 1024 * 1024
PREFIX_BYTES = 8
_PLAIN_INT_BITS = 1024
"""Longer numbers are sent in hexadecimal: Python refuses to read very long decimal ones."""

SEQUENCES: tuple[type, ...] = (list, tuple, set, frozenset)
MUTABLE_TYPES: tuple[type, ...] = (list, dict, set, bytearray)
PLAIN_TYPES: tuple[type, ...] = (bool, int, float, complex, str, bytes, bytearray, dict, *SEQUENCES)

BINARY: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        **{name: getattr(operator, f"__{name}__") for name in ("add", "sub", "mul", "matmul", "truediv", "floordiv")},
        **{name: getattr(operator, f"__{name}__") for name in ("mod", "lshift", "rshift", "and", "xor", "or")},
        "divmod": divmod,
        "pow": pow,
    }
)
"""Operators that make one value of two; those that change the left one have an `i` before the name."""

COMPARING: Mapping[str, Callable[[Any, Any], Any]] = MappingProxyType(
    {name: getattr(operator, f"__{name}__") for name in ("lt", "le", "gt", "ge")}
)

VALUE_TYPES = frozenset(
    {
        "decimal.Decimal",
        "fractions.Fraction",
        *(f"datetime.{name}" for name in ("date", "datetime", "time", "timedelta", "timezone")),
    }
)
"""Types of the standard library that are passed by value: made anew from the arguments that they reduce to."""

_ARGUMENT_TYPES = frozenset({"int", "str", "bytes", "timedelta", "timezone"})
"""What these are made from. An object of the submission in its place would stay inside the value."""


class Channel:
    """Two pipes, one each way."""

    def __init__(self, incoming: int, outgoing: int) -> None:
        self._incoming = incoming
        self._outgoing = outgoing

    def send(self, message: object) -> None:
        content = json.dumps(message).encode()
        frame = memoryview(len(content).to_bytes(PREFIX_BYTES, "big") + content)
        while frame:
            frame = frame[os.write(self._outgoing, frame) :]

    def receive(self) -> Any:
        """The next message. Raises `EOFError` when there will be none, `ValueError` if it is not one."""
        length = int.from_bytes(self._read(PREFIX_BYTES), "big")
        if length > MAX_FRAME_BYTES:
            raise ValueError(f"a message of {length} bytes is too long")
        try:
            return json.loads(self._read(length))
        except RecursionError as exc:
            raise ValueError("it is too deeply nested") from exc

    def _read(self, length: int) -> bytes:
        parts = []
        while length:
            part = os.read(self._incoming, min(length, 1 << 20))
            if not part:
                raise EOFError("the other process has ended")
            parts.append(part)
            length -= len(part)
        return b"".join(parts)


def encode(value: Any, refer: Callable[[Any], dict[str, Any]]) -> Any:
    """`value` as JSON; `refer` writes down what is not plain data."""
    kind = type(value)
    if value is None or kind in (bool, float, str) or (kind is int and value.bit_length() <= _PLAIN_INT_BITS):
        return value
    if kind is list:
        return [encode(item, refer) for item in value]
    name = kind.__name__ if kind in PLAIN_TYPES else f"{kind.__module__}.{kind.__qualname__}"
    if kind in SEQUENCES:
        content: Any = [encode(item, refer) for item in value]
    elif kind is dict:
        content = [[encode(key, refer), encode(item, refer)] for key, item in value.items()]
    elif kind in PLAIN_TYPES:
        content = _written(value)
    elif name in VALUE_TYPES:
        content = [encode(item, refer) for item in value.__reduce__()[1]]
    else:
        return refer(value)
    return {"type": name, "content": content}


def _written(value: Any) -> Any:
    match value:
        case int():
            return hex(value)
        case complex():
            return [value.real, value.imag]
        case _:
            return value.hex()


def decode(message: Any, resolve: Callable[[dict[str, Any]], Any]) -> Any:
    """The value in a message; `resolve` finds what is referred to. Raises `ValueError` if it is none."""
    if not isinstance(message, dict):
        return [decode(item, resolve) for item in message] if isinstance(message, list) else message
    try:
        name = message["type"]
        if name in READERS:
            return READERS[name](message["content"])
        if name == "dict":
            return {decode(key, resolve): decode(item, resolve) for key, item in message["content"]}
        if name not in MAKERS and name not in VALUE_TYPES:
            return resolve(message)
        items = [decode(item, resolve) for item in message["content"]]
        return MAKERS[name](items) if name in MAKERS else _value(name, items)
    except (KeyError, TypeError, RecursionError) as exc:
        raise ValueError(f"not a value: {message!r:.200}") from exc


def _value(name: str, arguments: list[Any]) -> Any:
    if any(type(item).__name__ not in _ARGUMENT_TYPES for item in arguments):
        raise TypeError("a value is made from plain data and other values")
    module, _, attribute = name.partition(".")
    return getattr(importlib.import_module(module), attribute)(*arguments)


READERS: Mapping[str, Callable[[Any], Any]] = MappingProxyType(
    {
        "int": lambda content: int(content, 16),
        "bytes": bytes.fromhex,
        "bytearray": bytearray.fromhex,
        "complex": lambda content: complex(*content),
    }
)
MAKERS: Mapping[str, Callable[[Any], Any]] = MappingProxyType({"tuple": tuple, "set": set, "frozenset": frozenset})


def plain_kind(value: Any) -> type | None:
    """The plain type of which a value is, or from which its class derives."""
    return next((kind for kind in PLAIN_TYPES if isinstance(value, kind)), None)


def plain_form(value: Any) -> Any:
    """The plain data in an instance of a subclass of a plain type; None if it is none."""
    kind = plain_kind(value)
    if kind is None:
        return None
    return str.__str__(value) if kind is str else kind(value)


def restore(original: Any, changed: Any) -> None:
    """Give a container the content that the other process left in its copy."""
    if type(original) not in MUTABLE_TYPES or type(original) is not type(changed):
        return
    if isinstance(original, list | bytearray):
        original[:] = changed
    else:
        original.clear()
        original.update(changed)
