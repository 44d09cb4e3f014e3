"""Metrics that look into JSON and YAML."""

import functools
import json
import operator
import re
from typing import Any

import yaml
from msgspec import Struct

from outrider.env.osworld.metrics.metric import NoOptions, text_of

_COMPARISONS = ("eq", "ne", "le", "lt", "ge", "gt")


class ValueRule(Struct, frozen=True):
    """What must hold of the value under `key`, a path of keys and indexes.

    `method`: eq, ne, le, lt, ge, gt; `re`, with flags such as `re.I`; `approx:0.1`; `range.te` (each end `e` with or
    `t` without the bound itself); `str_list_eq`, `str_set_eq` of a text with commas.
    """

    key: tuple[str | int, ...]
    method: str
    ref: Any

    def __post_init__(self) -> None:
        try:
            _checked(self.method, self.ref)
        except (ValueError, TypeError, re.error) as exc:
            raise ValueError(f"method {self.method!r} with ref {self.ref!r:.60}: {exc}") from exc


class JsonRules(Struct, frozen=True):
    """What must hold, and what must not."""

    expect: tuple[ValueRule, ...] = ()
    unexpect: tuple[ValueRule, ...] = ()


class JsonOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """The file is YAML instead."""

    is_yaml: bool = False


class JsonObjectRules(Struct, frozen=True):
    """`expect_in_result`: a list holds what is accepted, a text is a part of what is accepted."""

    expected: dict[str, Any]
    expect_in_result: bool = False


def check_json(result: Any, rules: JsonRules, options: JsonOptions) -> float:
    text = text_of(result)
    if text is None:
        return 0.0
    try:
        found = yaml.safe_load(text) if options.is_yaml else json.loads(text)
    except (ValueError, RecursionError, yaml.YAMLError):
        return 0.0
    for rule in rules.expect:
        is_there, value = _value_at(found, rule.key)
        if not is_there or not fits(value, rule.method, rule.ref):
            return 0.0
    for rule in rules.unexpect:
        _, value = _value_at(found, rule.key)
        if value is not None and fits(value, rule.method, rule.ref):
            return 0.0
    return 1.0


def _value_at(found: Any, path: tuple[str | int, ...]) -> tuple[bool, Any]:
    for key in path:
        try:
            found = found[key]
        except (KeyError, IndexError, TypeError):
            return False, None
    return True, found


def fits(value: Any, method: str, ref: Any) -> bool:
    """Whether the value is as the method and its reference say; one of another type is not."""
    try:
        return _fits(value, method, ref)
    except (TypeError, ValueError):
        return False


def _fits(value: Any, method: str, ref: Any) -> bool:
    if method in _COMPARISONS:
        return bool(getattr(operator, method)(value, ref))
    if method.startswith("range."):
        low, high = (getattr(operator, f"l{end}") for end in method[6:8])
        return bool(low(ref[0], value) and high(value, ref[1]))
    if method.startswith("approx:"):
        return abs(float(value) - float(ref)) <= float(method.partition(":")[2])
    if method in ("str_list_eq", "str_set_eq"):
        container = list if method == "str_list_eq" else set
        return isinstance(value, str) and container(value.strip("\"'").split(",")) == container(ref)
    return isinstance(value, str) and re.search(ref, value, _flags(method)) is not None


def _checked(method: str, ref: Any) -> None:
    """Raise ValueError or TypeError if no value could be compared in this way."""
    if method in _COMPARISONS:
        return
    if method == "re" or method.startswith("re."):
        re.compile(ref, _flags(method))
    elif method.startswith("approx:"):
        float(method.partition(":")[2])
        float(ref)
    elif method in ("range.te", "range.et", "range.tt", "range.ee"):
        if not isinstance(ref, list | tuple) or len(ref) != 2:  # noqa: PLR2004 a range has two ends
            raise ValueError("the ref of a range is [low, high]")
    elif method in ("str_list_eq", "str_set_eq"):
        set(ref)
    else:
        raise ValueError("there is no such method")


def _flags(method: str) -> re.RegexFlag:
    names = method.split(".")[1:]
    unknown = [name for name in names if name not in re.RegexFlag.__members__]
    if unknown:
        raise ValueError(f"there is no flag {unknown[0]!r}")
    return functools.reduce(operator.or_, (re.RegexFlag[name] for name in names), re.RegexFlag(0))


def check_direct_json_object(result: Any, rules: JsonObjectRules, _: NoOptions) -> float:
    text = text_of(result)
    if text is not None:
        try:
            result = json.loads(text.strip().replace("'", '"'))
        except (ValueError, RecursionError):
            return 0.0
    if not isinstance(result, dict):
        return 0.0
    expected = {key: value for key, value in rules.expected.items() if key != "ignore_list_order"}
    if rules.expect_in_result:
        return float(all(_is_accepted(result.get(key), value) for key, value in expected.items()))
    if rules.expected.get("ignore_list_order"):
        return float(all(_same_items(result.get(key), value) for key, value in expected.items()))
    return float(all(result.get(key) == value for key, value in expected.items()))


def _is_accepted(value: Any, expected: Any) -> bool:
    if isinstance(expected, list):
        return any(item in value if isinstance(value, list) else item == value for item in expected)
    return isinstance(expected, str) and isinstance(value, str) and expected in value


def _same_items(value: Any, expected: Any) -> bool:
    if not isinstance(value, list) or not isinstance(expected, list):
        return bool(value == expected)
    return sorted(map(repr, value)) == sorted(map(repr, expected))
