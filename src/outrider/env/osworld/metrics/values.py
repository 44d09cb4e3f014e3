"""Metrics that compare a value: what a command printed, a size, a list."""

from typing import Any, Literal

from msgspec import Struct

from outrider.env.osworld.metrics.metric import NoOptions, text_of
from outrider.env.scoring.text import LONGEST_COMPARED, likeness


class ValueRules(Struct, frozen=True):
    """One value."""

    expected: Any


class TextRules(Struct, frozen=True):
    """One text."""

    expected: str


class AmongRules(Struct, frozen=True):
    """Several values, or a text of which each part will do."""

    expected: list[Any] | str


class IncludeExcludeRules(Struct, frozen=True):
    """Parts that must all be there, and parts of which none may be."""

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()


class LiteralOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """As what the two are compared."""

    type: Literal["str", "list"] = "str"
    ignore_case: bool = False


def exact_match(result: Any, rules: ValueRules, _: NoOptions) -> float:
    return float(result == rules.expected)


def match_in_list(result: Any, rules: AmongRules, _: NoOptions) -> float:
    """Whether the result is one of several, or stands in a text."""
    if isinstance(rules.expected, str):
        return float(isinstance(result, str) and result in rules.expected)
    return float(result in rules.expected)


def is_in_list(result: Any, rules: ValueRules, _: NoOptions) -> float:
    """Whether what is expected is in the result: an item of a list, or a part of a text."""
    text = text_of(result)
    if text is not None:
        return float(isinstance(rules.expected, str) and rules.expected in text)
    return float(isinstance(result, list | tuple | dict) and rules.expected in list(result))


def check_include_exclude(result: Any, rules: IncludeExcludeRules, _: NoOptions) -> float:
    text = text_of(result)
    if text is None:
        return 0.0
    return float(all(part in text for part in rules.include) and not any(part in text for part in rules.exclude))


def literal_match(result: Any, expected: Any, options: LiteralOptions) -> float:
    def written(value: Any) -> str:
        text = text_of(value)
        found = str(value) if text is None else text
        return found.lower() if options.ignore_case else found

    if options.type == "str":
        return float(written(result) == written(expected))
    if not isinstance(result, list | tuple) or not isinstance(expected, list | tuple):
        return 0.0
    return float([written(item) for item in result] == [written(item) for item in expected])


def fuzzy_match(result: Any, rules: TextRules, _: NoOptions) -> float:
    text = text_of(result)
    return 0.0 if text is None else alike(text, rules.expected)


def alike(one: str, other: str) -> float:
    """How alike two texts are, by what they begin with."""
    return likeness(one[:LONGEST_COMPARED], other[:LONGEST_COMPARED])
