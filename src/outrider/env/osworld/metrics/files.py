"""Metrics that compare the text of files."""

import difflib
import re
from typing import Any

from msgspec import Struct

from outrider.env.osworld.metrics.metric import NoOptions, text_of


class TextOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """What makes no difference. Blanks are all white space."""

    ignore_blanks: bool = False
    ignore_case: bool = False


class CsvOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """What makes no difference."""

    strict: bool = True
    """Whether blanks at the ends of a line count."""
    ignore_case: bool = False


class ContainsRules(Struct, frozen=True):
    """Parts that must all be there."""

    expected: tuple[str, ...]


class ListRules(Struct, frozen=True):
    """Regular expressions that some line fits, and that no line fits."""

    expect: tuple[str, ...] = ()
    unexpect: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for pattern in (*self.expect, *self.unexpect):
            try:
                re.compile(pattern)
            except re.error as exc:
                raise ValueError(f"{pattern!r} is not a regular expression: {exc}") from exc


def compare_text_file(result: Any, expected: Any, options: TextOptions) -> float:
    texts = [text_of(result), text_of(expected)]
    if None in texts:
        return 0.0
    one, other = (_plain(text or "", options) for text in texts)
    return float(one == other)


def _plain(text: str, options: TextOptions) -> str:
    if options.ignore_blanks:
        text = re.sub(r"\s+", " ", re.sub(r"[\t\n]", " ", text).strip())
    return text.lower() if options.ignore_case else text


def compare_csv(result: Any, expected: Any, options: CsvOptions) -> float:
    """Line by line; with several files expected, whether the result is one of them."""
    lines = _lines(result, options)
    candidates = expected if isinstance(expected, list | tuple) else [expected]
    return float(lines is not None and any(lines == _lines(candidate, options) for candidate in candidates))


def _lines(value: Any, options: CsvOptions) -> list[str] | None:
    text = text_of(value)
    if text is None:
        return None
    lines = text.splitlines()
    if not options.strict:
        lines = [line.strip() for line in lines]
    return [line.lower() for line in lines] if options.ignore_case else lines


def diff_text_file(result: Any, expected: Any, _: NoOptions) -> float:
    """How alike the two are, line by line."""
    one, other = text_of(result), text_of(expected)
    if one is None or other is None:
        return 0.0
    return difflib.SequenceMatcher(a=one.splitlines(), b=other.splitlines()).ratio()


def file_contains(result: Any, rules: ContainsRules, _: NoOptions) -> float:
    text = text_of(result)
    return float(text is not None and all(part in text for part in rules.expected))


def check_list(result: Any, rules: ListRules, _: NoOptions) -> float:
    text = text_of(result)
    if text is None:
        return 0.0
    lines = text.split("\n")
    has_all = all(any(re.search(pattern, line) for line in lines) for pattern in rules.expect)
    return float(has_all and not any(re.search(pattern, line) for pattern in rules.unexpect for line in lines))
