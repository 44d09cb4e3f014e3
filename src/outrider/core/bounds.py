"""The numbers that can be given: refused at the door, where the caller is told, instead of where they are used."""

import math

from outrider.core.errors import InvalidInput

MAX_SECONDS = 100 * 365 * 86_400.0
"""The longest time that can be given, a hundred years. Much longer ones end in dates that do not exist."""

MAX_COUNT = 2**31 - 1
"""The largest number of things that can be given: what every database keeps."""


def is_number(value: object) -> bool:
    """Whether it is one, and not a flag."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def require_positive(name: str, value: float) -> None:
    """Refuse what is no time above 0, by name."""
    if not is_number(value) or not value > 0:
        raise InvalidInput(f"{name} is {value!r}; give a number of seconds above 0")
    if value > MAX_SECONDS:
        raise InvalidInput(f"{name} is {value!r:.40}; give at most {MAX_SECONDS:g} seconds, a hundred years")


def require_not_negative(name: str, value: float) -> None:
    """Refuse what is no time, by name; 0 is one."""
    if not is_number(value) or not value >= 0:
        raise InvalidInput(f"{name} is {value!r:.40}; give a number of seconds, 0 or more")
    if value > 0:
        require_positive(name, value)


def require_limit(name: str, value: float) -> None:
    """The same, but infinity stands for no limit."""
    if value != math.inf:
        require_positive(name, value)


def require_count(name: str, value: int, least: int) -> None:
    """Refuse what is no whole number from `least` to `MAX_COUNT`."""
    if type(value) is not int or value < least:
        raise InvalidInput(f"{name} is {value!r}; give {least} or more")
    if value > MAX_COUNT:
        raise InvalidInput(f"{name} is {value!r:.40}; give at most {MAX_COUNT}")
