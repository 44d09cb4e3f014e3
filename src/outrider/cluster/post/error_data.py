"""Exceptions as plain data, so that nothing a peer says about an error is ever run.

What travels is the name of the class, its arguments and its attributes. The receiver makes the exception again if it
has loaded a class of that name already and that class is an exception. It imports nothing, unpickles nothing and does
not call `__init__`. Otherwise the error is known by its name and message alone.
"""

import sys
from typing import Any

import msgspec

from outrider.core.decoding import convert, msgpack_decoder
from outrider.core.errors import message_of

_encode = msgspec.msgpack.Encoder().encode


class ErrorData(msgspec.Struct, frozen=True, array_like=True):
    """An exception. Attributes that MessagePack cannot hold are left out."""

    module: str
    name: str
    message: str
    arguments: list[Any] | None = None
    """None: the exception would not be the same if it were made again."""
    attributes: dict[str, Any] = {}

    @classmethod
    def of(cls, error: BaseException) -> "ErrorData":
        kind = type(error)
        message = message_of(error)
        attributes = {name: value for name, value in vars(error).items() if _is_plain(value)}
        arguments = OSError.__reduce__(error)[1] if isinstance(error, OSError) else error.args  # with the file's name
        whole = cls(kind.__module__, kind.__qualname__, message, list(arguments), attributes)
        return whole if _returns(whole, kind, message) else cls(kind.__module__, kind.__qualname__, message)

    def exception(self) -> Exception | None:
        """The exception again; None if this process does not know its class, or cannot make one from the data."""
        kind = _loaded_class(self.module, self.name)
        if kind is None or self.arguments is None:
            return None
        try:
            error = kind.__new__(kind, *self.arguments)
            vars(error).update(self.attributes)
        except Exception:  # noqa: BLE001 a class may want other arguments than it was given
            return None
        return error

    def __str__(self) -> str:
        return f"{self.name}: {self.message}" if self.message else self.name


def _loaded_class(module: str, name: str) -> type[Exception] | None:
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = vars(found).get(part) if hasattr(found, "__dict__") else None
    return found if isinstance(found, type) and issubclass(found, Exception) else None


def _is_plain(value: Any) -> bool:
    try:
        _encode(value)
    except Exception:  # noqa: BLE001 values of the user's classes may raise anything
        return False
    return True


def _returns(data: ErrorData, kind: type[BaseException], message: str) -> bool:
    """Whether the exception is the same after the journey."""
    try:
        arrived = convert(msgpack_decoder().decode(_encode(data)), ErrorData).exception()
    except Exception:  # noqa: BLE001 values of the user's classes may raise anything
        return False
    return type(arrived) is kind and message_of(arrived) == message
