"""A metric: what it expects, which options it has, and how it scores."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from msgspec import Struct

from outrider.env.osworld.getters import GotFile


class Expected(Enum):
    """What a metric compares with, where it is not rules written in the task."""

    FILE = "file"
    ANYTHING = "anything"


FILE = Expected.FILE
ANYTHING = Expected.ANYTHING


class NoOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """None."""


@dataclass(frozen=True, slots=True)
class Metric:
    """`score` takes the result, what is expected, and the options, and gives 0 for a result it can make nothing of.

    `expects` is the type of the task's rules, if it compares with rules.
    """

    score: Callable[[Any, Any, Any], float]
    expects: Any
    options: type[Struct] = NoOptions


def text_of(value: object) -> str | None:
    """The text of a file or a command; None for anything else."""
    if isinstance(value, GotFile):
        return value.text
    return value if isinstance(value, str) else None
