r"""Formulas compared as text and numbers, which mostly is enough; the symbolic library is for the rest."""

import re
from fractions import Fraction

from outrider.env.scoring.numbers import Number, last_number, readings, whole_number
from outrider.env.scoring.text import normalised

_ROUNDING = Fraction(1, 10**6)
"""How far a decimal may be off, as in 0.333333 for a third."""

_RELATIVE_ROUNDING = Fraction(1, 10**4)
"""So that a small number is not equal to every other small number."""

_WRAPPERS = (("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]"))
_NOISE = re.compile(r"\\(?:left|right|displaystyle)(?![A-Za-z])|(?<!\\)\\[,!;: ]")
_FRACTION = re.compile(r"\\[dt]?frac(?![A-Za-z])")
_SHORT_FRACTION = re.compile(r"\\frac\s*(\d)\s*(\d)")
_TEXT = re.compile(r"\\(?:text|textbf|mathrm|mbox)\s*\{([^{}]*)\}")
_WORDS = re.compile(r"[^\W\d_]{3,}(?:[\s,-]+[^\W\d_]+)*|yes|no", re.IGNORECASE)
_ASSIGNED = re.compile(r"\\?[A-Za-z]\w?\s*=\s*(?=[^=]+$)")
_LOOSE_SPACE = re.compile(r"(?<!\d)\s+|\s+(?!\d)")

_WORD = r"(?<![A-Za-z\\])(?!(?:sin|cos|tan|log|ln|exp|sqrt|pi|inf|infinity|infty|oo|and|or)\b)[A-Za-z]{2,}(?![A-Za-z(])"
_INTRODUCTION = re.compile(rf"(?:{_WORD}[,:]?\s+)+(?=\S)")
_PROSE = re.compile(rf"[\s,;:]*{_WORD}")
_SENTENCE = re.compile(r"[A-Za-z]{2,}\s+[A-Za-z]{2,}")
_VARIABLE = re.compile(r"\d\s?\*?\s?[A-Za-z](?![A-Za-z])")


def tidied(text: str) -> str:
    """A formula without what only changes its looks."""
    text = text.strip()
    for opening, closing in _WRAPPERS:
        if text.startswith(opening) and text.endswith(closing) and len(text) > len(opening) + len(closing):
            text = text[len(opening) : -len(closing)].strip()
    if "\\" in text:
        text = _FRACTION.sub(r"\\frac", _NOISE.sub(" ", text))
        text = _SHORT_FRACTION.sub(r"\\frac{\1}{\2}", text)
        text = text.replace("\\%", "%").replace("\\$", "$").replace("{,}", ",").strip()
    return text[:-1].rstrip() if text.endswith(".") else text


def formula_in(prose: str) -> str:
    """The first formula of a sentence: `x + 1` in "so we get x + 1 as the sum"."""
    text = prose
    if introduction := _INTRODUCTION.match(prose):
        text = prose[introduction.end() :]
    return _PROSE.split(text, maxsplit=1)[0] or prose


def ends_with_number(prose: str, expected: str) -> bool:
    """Whether the last number of a sentence is the expected one; that of a term such as `5x` does not count."""
    wanted = whole_number(expected)
    if wanted is None or not _SENTENCE.search(prose) or _VARIABLE.search(prose):
        return False
    found = last_number(prose)
    return found is not None and _equal_numbers(wanted, found)


def equal_at_sight(expected: str, given: str) -> bool | None:
    """Whether two tidy formulas are equal, as far as text and numbers can tell; None: they cannot."""
    if ("=" in expected) != ("=" in given):
        expected, given = _unassigned(expected), _unassigned(given)
    if expected == given or _compact(expected) == _compact(given):
        return True
    number = whole_number(expected)
    if number is not None:
        given_number = whole_number(given)
        return None if given_number is None else _equal_numbers(number, given_number)
    words = _TEXT.sub(r"\1", expected).strip()
    if _WORDS.fullmatch(words):  # to the library, `no` and `on` are one product of two variables
        return normalised(words) == normalised(_TEXT.sub(r"\1", given))
    return None


def _unassigned(text: str) -> str:
    match = _ASSIGNED.match(text)
    return text[match.end() :] if match else text


def _compact(text: str) -> str:
    """Without spaces, but for those between digits: `1 1/2` is not `11/2`."""
    return _LOOSE_SPACE.sub("", text)


def _equal_numbers(expected: Number, given: Number) -> bool:
    pairs = readings(expected, given)
    if expected.exact and given.exact:
        return any(one == other for one, other in pairs)
    return any(abs(one - other) <= min(_ROUNDING, _RELATIVE_ROUNDING * abs(one)) for one, other in pairs)
