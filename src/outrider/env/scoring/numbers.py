"""Numbers as people and models write them: thousands separators, currency, percent, fractions, powers of ten."""

import re
from collections import deque
from fractions import Fraction
from typing import NamedTuple

_DIGITS = r"(?:\d{1,3}(?:,\d{3})++(?!\d)(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)"
_INTEGER = r"\{?(?P<%s>[-+]?\d+)\}?"
_TEN = rf"\s*(?:\u00d7|x|\*|\\times|\\cdot)\s*10\s*(?:\^|\*\*)\s*{_INTEGER % 'ten'}"
_POWER = rf"(?:e(?P<e>[-+]?\d+)|{_TEN}|\s*(?:\^|\*\*)\s*{_INTEGER % 'to'})"
_NUMBER = re.compile(
    r"(?<![\w.])(?P<sign>[-+]?)\s?(?P<currency>\\?[$€£¥₹])?\s?(?P<late_sign>-?)"
    rf"(?:\\[dt]?frac\s*\{{(?P<top>-?\d+)\}}\s*\{{(?P<bottom>\d+)\}}"
    rf"|(?:(?P<whole>\d+)\s+)?(?P<over>\d+)\s?/\s?(?P<under>\d+)(?![\d.])"
    rf"|(?P<digits>{_DIGITS}){_POWER}?)"
    r"(?P<percent>\s?(?:\\?%|per\s?cent\b))?",
    re.IGNORECASE,
)
_SHORT_UNITS = "mm|cm|dm|km|mg|kg|ml|cl|dl|lb|lbs|oz|ft|in|yd|mi|ms|hr|hrs|min|sec|kw|hz|kmh|kph|mph|km/h|m/s"
_UNIT = re.compile(
    rf"(?:\s*\\(?:text|mathrm|mbox)\s*\{{[^{{}}]*\}}|\s?(?:{_SHORT_UNITS})|\s+[a-z]{{3,}}(?:[ /][a-z]+)?)"
    r"(?:\^?\{?[23²³]\}?)?$",
    re.IGNORECASE,
)
"""Words of three letters and more, and short units; two other letters may as well be two variables."""

_SEARCHED = 20_000
"""How much of a text is searched for its last number, from the end."""

_LONGEST = 400
"""Digits, and powers of ten, beyond which nobody means the number."""

_CANDIDATES = 8
"""How many of the last numbers are looked at, should some of them be unreadable."""


class Number(NamedTuple):
    """A number that was read. `percent`: it carried the sign, `value` is what stood before it."""

    value: Fraction
    percent: bool = False
    exact: bool = True
    """Whether it was written without a decimal point, so that it cannot be a rounded one."""


def whole_number(text: str) -> Number | None:
    """The number that `text` consists of, but for a unit after it; None: it is something else."""
    if len(text) > 2 * _LONGEST:
        return None
    text = _tidy(text)
    match = _NUMBER.fullmatch(text)
    if match is None and (bare := _UNIT.sub("", text)) != text:
        match = _NUMBER.fullmatch(bare)
    return _number_of(match) if match else None


def last_number(text: str) -> Number | None:
    """The last number anywhere in `text`."""
    matches = deque(_NUMBER.finditer(_tidy(text[-_SEARCHED:])), maxlen=_CANDIDATES)
    return next((number for match in reversed(matches) if (number := _number_of(match))), None)


def readings(one: Number, other: Number) -> list[tuple[Fraction, Fraction]]:
    """In which ways the two can be compared: where one is in percent and the other bare, 25 and 0.25 both are 25 %."""
    if one.percent == other.percent:
        return [(one.value, other.value)]
    if one.percent:
        return [(one.value, other.value), (one.value / 100, other.value)]
    return [(one.value, other.value), (one.value, other.value / 100)]


def _tidy(text: str) -> str:
    return text.strip().replace("\u2212", "-").replace("\u00a0", " ").replace("\u202f", " ").replace("{,}", ",")


def _number_of(match: re.Match[str]) -> Number | None:
    group = match.groupdict()
    exact = True
    if group["top"]:
        value = _ratio(group["top"], group["bottom"])
    elif group["over"]:
        value = _ratio(group["over"], group["under"])
        if value is not None and group["whole"]:
            value = None if len(group["whole"]) > _LONGEST else value + int(group["whole"])
    else:
        value = _decimal(group["digits"], group["e"] or group["ten"] or "0", group["to"] or "1")
        exact = "." not in group["digits"]
    if value is None:
        return None
    is_negative = "-" in (group["sign"], group["late_sign"])
    return Number(-value if is_negative else value, percent=bool(group["percent"]), exact=exact)


def _ratio(top: str, bottom: str) -> Fraction | None:
    if len(top) > _LONGEST or len(bottom) > _LONGEST or int(bottom) == 0:
        return None
    return Fraction(int(top), int(bottom))


def _decimal(digits: str, ten: str, to: str) -> Fraction | None:
    if len(digits) > _LONGEST or max(len(ten), len(to)) > len(str(_LONGEST)) + 1:
        return None
    if abs(int(ten)) > _LONGEST or abs(int(to)) * len(digits) > _LONGEST:
        return None
    value = Fraction(digits.replace(",", ""))
    if value == 0 and int(to) <= 0:
        return None
    if to != "1":
        value = value ** int(to)
    return value * Fraction(10) ** int(ten) if ten != "0" else value
