"""The numbers that can be given: refused at the door, where the caller is told, instead of where they are used.

A configuration writes the bounds of a number into its type, and calls `check_bounds` in its `__post_init__`, which runs
when it is made in code as well as when it is read from a file or from flags.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from outrider.core.errors import OutOfBounds

MAX_SECONDS = 100 * 365 * 86_400.0
"""The longest time that can be given, a hundred years. Much longer ones end in dates that do not exist."""

MAX_COUNT = 2**31 - 1
"""The largest number of things that can be given: what every database keeps."""

MAX_BYTES = 2**50
MAX_AMOUNT = 1e15
MAX_REWARD = 1e30
"""No sum or square of such rewards is too large to compute with."""


def is_number(value: object) -> bool:
    """Whether it is one, and not a flag."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


@dataclass(frozen=True, slots=True)
class Within:
    """Between which numbers one must be, both included; `above`: the least is not."""

    least: float
    most: float
    above: bool = False
    or_infinite: bool = False
    """Infinity stands for no limit."""

    def check(self, name: str, value: object, *, whole: bool) -> None:
        """Refuse what is not such a number, by name; `whole`: also what has a point."""
        if self.or_infinite and value == math.inf:
            return
        is_kind = type(value) is int if whole else is_number(value) and value == value  # noqa: PLR0124 not a number
        if not is_kind or not (value > self.least if self.above else value >= self.least):  # type: ignore[operator]
            kind = "" if is_kind else "a whole number, " if whole else "a number, "
            wanted = f"more than {_text(self.least)}" if self.above else f"{_text(self.least)} or more"
            raise OutOfBounds(f"{name} is {value!r:.40}; give {kind}{wanted}")
        if value > self.most:  # type: ignore[operator]
            raise OutOfBounds(f"{name} is {value!r:.40}; give {_text(self.most)} at most")


PositiveCount = Annotated[int, Within(1, MAX_COUNT)]
Count = Annotated[int, Within(0, MAX_COUNT)]
Bytes = Annotated[int, Within(0, MAX_BYTES)]
SomeBytes = Annotated[int, Within(1, MAX_BYTES)]
Pixels = Annotated[int, Within(1, 2**15 - 1)]
Port = Annotated[int, Within(1, 2**16 - 1)]
Seed = Annotated[int, Within(-(2**63), 2**63 - 1)]
PositiveSeconds = Annotated[float, Within(0, MAX_SECONDS, above=True)]
Seconds = Annotated[float, Within(0, MAX_SECONDS)]
SecondsLimit = Annotated[float, Within(0, MAX_SECONDS, above=True, or_infinite=True)]
PositiveTokenCount = Annotated[int, Within(1, 10**15)]
TokenCount = Annotated[int, Within(0, 10**15)]
TopK = Annotated[int, Within(-1, MAX_COUNT)]
"""-1 and 0 stand for all tokens with some servers."""
SecondsOrNoLimit = Annotated[float, Within(0, MAX_SECONDS, or_infinite=True)]
Share = Annotated[float, Within(0, 1)]
PositiveAmount = Annotated[float, Within(0, MAX_AMOUNT, above=True)]
Amount = Annotated[float, Within(0, MAX_AMOUNT)]
"""Of CPUs, of money, of anything that is not counted in whole ones."""
Temperature = Annotated[float, Within(0, 100)]
Reward = Annotated[float, Within(-MAX_REWARD, MAX_REWARD)]


def check_bounds(settings: Any) -> None:
    """Refuse the first number of a configuration that is out of its bounds: `OutOfBounds` with its name."""
    for number in _numbers(settings.__class__):
        value = getattr(settings, number.name)
        if value in number.others:
            continue
        for each in value if number.is_many else (value,):
            number.bounds.check(number.name, each, whole=number.is_whole)


@dataclass(frozen=True, slots=True)
class _Number:
    """A field that holds one, or `is_many`. It may also hold one of `others`, such as None."""

    name: str
    bounds: Within
    is_whole: bool
    is_many: bool
    others: tuple[object, ...]


@cache
def _numbers(kind: type[Any]) -> tuple[_Number, ...]:
    hints = get_type_hints(kind, include_extras=True)
    return tuple(number for name, hint in hints.items() for number in _numbers_of(name, hint))


def _numbers_of(name: str, hint: Any, others: tuple[object, ...] = (), *, is_many: bool = False) -> Iterator[_Number]:
    """The number that a field of this type holds, if it holds one with bounds."""
    if get_origin(hint) is Annotated:
        number, *notes = get_args(hint)
        for bounds in notes:
            if isinstance(bounds, Within):
                yield _Number(name=name, bounds=bounds, is_whole=number is int, is_many=is_many, others=others)
    elif get_origin(hint) is tuple:
        yield from _numbers_of(name, get_args(hint)[0], others, is_many=True)
    elif get_origin(hint) in (Union, UnionType):
        parts = get_args(hint)
        words = (word for part in parts if get_origin(part) is Literal for word in get_args(part))
        beside = (*words, *(None for part in parts if part is NoneType))
        for part in parts:
            yield from _numbers_of(name, part, beside)


def _text(number: float) -> str:
    return str(int(number)) if number == int(number) and abs(number) <= MAX_BYTES else f"{number:g}"
