"""The submission's objects as the tests see them.

No verdict hangs on what a remote object says of its own worth: it is equal to plain data only by the plain form it
sends, without having seen the other side, and what would show it an expected value to answer to is refused.
"""

from __future__ import annotations

import operator
from types import MappingProxyType

TYPE_CHECKING = False  # `typing` takes longer to import than all else here
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

    from outrider.env.sandbox.inside.examiner import Examiner

FORWARDED = (
    *("__len__", "__getitem__", "__setitem__", "__delitem__", "__next__", "__str__", "__repr__", "__enter__"),
    *("__exit__", "__int__", "__float__", "__index__", "__round__", "__neg__", "__pos__", "__abs__", "__invert__"),
    *("__add__", "__radd__", "__iadd__", "__mul__", "__rmul__", "__imul__", "__matmul__", "__pow__"),
    *("__and__", "__or__", "__xor__", "__lshift__", "__rshift__"),
)
"""What the object does itself, in its own process."""

COMPARING: Mapping[str, Callable[[Any, Any], Any]] = MappingProxyType(
    {
        "__lt__": operator.lt,
        "__le__": operator.le,
        "__gt__": operator.gt,
        "__ge__": operator.ge,
        "__sub__": operator.sub,
        "__rsub__": lambda own, other: other - own,
        "__truediv__": operator.truediv,
        "__rtruediv__": lambda own, other: other / own,
        "__floordiv__": operator.floordiv,
        "__mod__": operator.mod,
    }
)
"""How tests compare with an expected value: done on plain forms, here, unless both sides are remote."""


class Remote:
    """An object that lives in the submission's process."""

    def __init__(self, examiner: Examiner, number: int) -> None:
        self.__dict__.update(_examiner=examiner, _number=number)

    def __getattr__(self, name: str) -> Any:
        return self._examiner.ask("getattr", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._examiner.ask("setattr", self, name, value)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return self._examiner.ask("call", self, *arguments, **keywords)

    def __instancecheck__(self, instance: Any) -> bool:
        return type(instance) is Remote and self._examiner.ask("isinstance", instance, self) is True

    def __subclasscheck__(self, subclass: Any) -> bool:
        return type(subclass) is Remote and self._examiner.ask("issubclass", subclass, self) is True

    def __eq__(self, other: object) -> bool:
        mine, other_form = plain_of(self), plain_of(other)
        if mine is None and type(other) is Remote and other_form is None:
            return self._number == other._number or self._examiner.ask("__eq__", self, other) is True
        return mine is not None and bool(mine == other_form)

    def __hash__(self) -> int:
        return int(self._examiner.ask("hash", self))

    def __bool__(self) -> bool:
        return self._examiner.ask("bool", self) is True

    def __iter__(self) -> Iterator[Any]:
        plain = plain_of(self)
        made: Iterator[Any] = self._examiner.ask("iter", self) if plain is None else iter(plain)
        return made

    def __contains__(self, item: object) -> bool:
        return any(item is each or item == each for each in self)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """The type of its plain form, so that a test for `dict` holds for what derives from it."""
        plain = plain_of(self)
        return Remote if plain is None else type(plain)


def plain_of(value: Any) -> Any:
    """An object of the submission as plain data, None if it is nothing of the kind; other values as they are."""
    if type(value) is not Remote:
        return value
    plain = value.__dict__["_examiner"].ask("plain", value)
    return None if type(plain) is Remote else plain


def _forwarded(name: str) -> Callable[..., Any]:
    def method(self: Remote, *arguments: Any) -> Any:
        return self._examiner.ask(name, self, *arguments)

    return method


def _comparing(name: str, operation: Callable[[Any, Any], Any]) -> Callable[[Remote, Any], Any]:
    def method(self: Remote, other: Any) -> Any:
        mine, other_form = plain_of(self), plain_of(other)
        if mine is not None and other_form is not None:
            return operation(mine, other_form)
        if type(other) is Remote and mine is None and other_form is None:
            return self._examiner.ask(name, self, other)
        raise TypeError("the submission gave an object of its own where plain data is compared with")

    return method


for _name in FORWARDED:
    setattr(Remote, _name, _forwarded(_name))
for _name, _operation in COMPARING.items():
    setattr(Remote, _name, _comparing(_name, _operation))
