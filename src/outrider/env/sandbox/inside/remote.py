"""The submission's objects as the tests see them.

Invariants:
- What derives from plain data is judged by its plain form: computed with, compared, tested for truth here, by the
  plain type's own methods. An unchangeable one has one plain form for good, whatever the submission says later.
- Any other object is never equal to plain data. An operator may show it a value of the tests, such as the expected
  one, so what comes of that must be an object again, and nothing can be decided by it: neither whether it is true, nor
  how long, how large or how near to nothing it is.
- Two objects of the submission are the submission's own affair.
"""

from __future__ import annotations

import math
import operator
from types import MappingProxyType

from outrider.env.sandbox.inside.exchange import BINARY, COMPARING, MUTABLE_TYPES

TYPE_CHECKING = False  # `typing` takes longer to import than all else here
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

    from outrider.env.sandbox.inside.examiner import Examiner

FORWARDED = ("__setitem__", "__delitem__", "__next__", "__str__", "__repr__", "__enter__", "__exit__")
"""What every object does itself, in its own process."""

UNARY: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        "__bool__": bool,
        "__len__": len,
        "__int__": int,
        "__float__": float,
        "__complex__": complex,
        "__index__": operator.index,
        "__round__": round,
        "__trunc__": math.trunc,
        "__floor__": math.floor,
        "__ceil__": math.ceil,
        "__neg__": operator.neg,
        "__pos__": operator.pos,
        "__abs__": abs,
        "__invert__": operator.invert,
    }
)
"""What tells something of an object by which a test may decide."""

_BUILTIN: Mapping[str, str] = MappingProxyType({"__bool__": "bool", "__hash__": "hash", "__iter__": "iter"})
"""What an object need not define to have."""

_LONG = frozenset({"__len__", "__bool__"})
"""What is asked of a container of the submission that may be large, rather than have it sent."""


class SubmissionError(Exception):
    """The submission raised what tests cannot catch by name, or said what makes no sense."""


class State:
    """What is known of an object: its number, the plain type it derives from, and whether it has seen a value."""

    __slots__ = ("at", "examiner", "has_seen", "kind", "number", "plain")

    def __init__(self, examiner: Examiner, number: int, kind: type | None) -> None:
        self.examiner = examiner
        self.number = number
        self.kind = kind
        self.has_seen = False
        self.plain: Any = None
        self.at: int | None = None
        """How many things had been asked when the plain form was sent."""


class Remote:
    """An object that lives in the submission's process."""

    def __init__(self, examiner: Examiner, number: int, kind: type | None) -> None:
        self.__dict__[_STATE] = State(examiner, number, kind)

    def __getattr__(self, name: str) -> Any:
        state = state_of(self)
        if _is_value(state) and hasattr(state.kind, name):
            return getattr(plain_of(self), name)
        return state.examiner.ask("getattr", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        state_of(self).examiner.ask("setattr", self, name, value)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return state_of(self).examiner.ask("call", self, *arguments, **keywords)

    def __instancecheck__(self, instance: Any) -> bool:
        return type(instance) is Remote and state_of(self).examiner.ask("isinstance", instance, self) is True

    def __subclasscheck__(self, subclass: Any) -> bool:
        return type(subclass) is Remote and state_of(self).examiner.ask("issubclass", subclass, self) is True

    def __eq__(self, other: object) -> bool:
        if _has_plain(self) and _has_plain(other):
            return bool(plain_of(self) == plain_of(other))
        if type(other) is not Remote or _has_plain(self) or _has_plain(other):
            return False
        return state_of(self).number == state_of(other).number or _decided("__eq__", self, other)

    def __hash__(self) -> int:
        return int(_told("__hash__", hash, self))

    def __iter__(self) -> Iterator[Any]:
        told: Iterator[Any] = _told("__iter__", iter, self)
        return told

    def __contains__(self, item: object) -> bool:
        if _has_plain(self):
            return item in plain_of(self)
        return any(item is each or item == each for each in self)

    def __getitem__(self, key: Any) -> Any:
        return plain_of(self)[key] if _is_value(state_of(self)) else _asked("__getitem__", self, key)

    def __format__(self, form: str) -> str:
        return format(plain_of(self) if _is_value(state_of(self)) and form else str(self), form)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """The type of its plain form, so that a test for `dict` holds for what derives from it."""
        return state_of(self).kind or Remote


_STATE = "state of a remote object"
"""No attribute can be called so by mistake."""


def state_of(remote: Remote) -> State:
    state: State = remote.__dict__[_STATE]
    return state


def plain_of(value: Any) -> Any:
    """An object of the submission as plain data, None if it is nothing of the kind; other values as they are."""
    if type(value) is not Remote or (state := state_of(value)).kind is None:
        return None if type(value) is Remote else value
    if state.at is None or (state.kind in MUTABLE_TYPES and state.at != state.examiner.n_asked):
        plain = state.examiner.ask("plain", value)
        if type(plain) is not state.kind:
            raise SubmissionError(f"an object was said to be a kind of {state.kind.__name__}, and is none")
        state.plain, state.at = plain, state.examiner.n_asked
    return state.plain


def _has_plain(value: Any) -> bool:
    return type(value) is not Remote or state_of(value).kind is not None


def _is_value(state: State) -> bool:
    """Whether it derives from plain data that cannot change, and so is as good as that."""
    return state.kind is not None and state.kind not in MUTABLE_TYPES


def _asked(what: str, *arguments: Any) -> Any:
    """What the submission makes of it."""
    owner = next(each for each in arguments if type(each) is Remote)
    return state_of(owner).examiner.ask(what, *arguments)


def _decided(what: str, *arguments: Any) -> bool:
    verdict = _asked(what, *arguments)
    if type(verdict) is not bool:
        raise SubmissionError(f"{what} of the submission's object is neither true nor false")
    return verdict


def _forwarded(name: str) -> Callable[..., Any]:
    def method(self: Remote, *arguments: Any) -> Any:
        return _asked(name, self, *arguments)

    return method


def _told(name: str, operation: Callable[..., Any], remote: Remote, *arguments: Any) -> Any:
    """Something of an object by which a test may decide."""
    state = state_of(remote)
    if _is_value(state) or (state.kind is not None and name not in _LONG):
        return operation(plain_of(remote), *arguments)
    if state.has_seen:
        raise SubmissionError(f"an object of the submission that was shown a value of the tests has no {name}")
    if name == "__bool__":
        return _decided("bool", remote)
    return _asked(_BUILTIN.get(name, name), remote, *arguments)


def _unary(name: str, operation: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: Remote, *arguments: Any) -> Any:
        return _told(name, operation, self, *arguments)

    return method


def _binary(name: str, operation: Callable[..., Any], *, swapped: bool = False) -> Callable[..., Any]:
    def method(self: Remote, other: Any, *more: Any) -> Any:
        sides = (other, self) if swapped else (self, other)
        both_remote = type(other) is Remote
        if _has_plain(self) and _has_plain(other) and (_is_value(state_of(self)) or not both_remote):
            return operation(*map(plain_of, sides), *more)
        made = _asked(name, *sides, *more)
        if both_remote and not (state_of(self).has_seen or state_of(other).has_seen):
            return made
        return _shown(made, name)

    return method


def _in_place(name: str) -> Callable[[Remote, Any], Any]:
    def method(self: Remote, other: Any) -> Any:
        if _is_value(state_of(self)):
            return NotImplemented  # it is replaced, not changed
        made = _asked(name, self, other)
        return made if _has_plain(self) or type(other) is Remote else _shown(made, name)

    return method


def _shown(made: Any, name: str) -> Remote:
    """What has come of showing an object a value of the tests."""
    if type(made) is not Remote or _has_plain(made):
        raise SubmissionError(f"{name} of an object of the submission and a value of the tests gave plain data")
    state_of(made).has_seen = True
    return made


def _comparing(name: str, operation: Callable[[Any, Any], Any]) -> Callable[[Remote, Any], Any]:
    def method(self: Remote, other: Any) -> Any:
        if _has_plain(self) and _has_plain(other):
            return operation(plain_of(self), plain_of(other))
        if type(other) is Remote and not _has_plain(self) and not _has_plain(other):
            return _decided(name, self, other)
        raise TypeError("the submission gave an object of its own where plain data is compared with")

    return method


for _name in FORWARDED:
    setattr(Remote, _name, _forwarded(_name))
for _name, _operation in UNARY.items():
    setattr(Remote, _name, _unary(_name, _operation))
for _name, _operation in BINARY.items():
    setattr(Remote, f"__{_name}__", _binary(f"__{_name}__", _operation))
    setattr(Remote, f"__r{_name}__", _binary(f"__{_name}__", _operation, swapped=True))
    if _name != "divmod":
        setattr(Remote, f"__i{_name}__", _in_place(f"__i{_name}__"))
for _name, _operation in COMPARING.items():
    setattr(Remote, f"__{_name}__", _comparing(f"__{_name}__", _operation))
