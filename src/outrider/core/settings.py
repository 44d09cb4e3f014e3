"""Settings as people write them, in files and flags, made into structs; a mistake is named with its place."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from outrider.core.decoding import convert
from outrider.core.errors import InvalidInput
from outrider.core.nearest import nearest

S = TypeVar("S", bound=Struct)

_UNKNOWN_FIELD = re.compile(r"unknown field `(?P<field>[^`]*)`(?: - at `\$(?P<path>[^`]*)`)?")
_WRONG_CHOICE = re.compile(r"Invalid enum value .* - at `\$(?P<path>[^`]*)`")
_PLACE = re.compile(r"\.(?P<name>[^.\[]+)|\[(?P<index>\d+)\]|(?P<any>\[\.\.\.\])")
"""One part of a path: a field, the place in a list, or some key of a mapping."""


def settings_of(schema: type[S], values: Mapping[str, Any], place: str) -> S:
    """`values` as a struct that forbids unknown fields. A wrong field or type is named with its path."""
    try:
        return convert(dict(values), schema)
    except msgspec.ValidationError as exc:
        message = str(exc)
        if unknown := _UNKNOWN_FIELD.search(message):
            field, path = unknown["field"], unknown["path"] or ""
            known = _fields(schema, path)
            near = nearest(field, known)
            message = message.replace(f"`${path}`", f"`${_with_keys(values, path, field)}`")
            message += f"; did you mean {near[0]}?" if near else f"; there are {', '.join(known)}"
        if (wrong := _WRONG_CHOICE.search(message)) and (choices := _choices(schema, wrong["path"])):
            message += f"; give {' or '.join(choices)}"
        raise InvalidInput(f"{place}: {message}") from exc


def read_yaml(path: Path) -> dict[str, Any]:
    """The settings in a file, written as `name: value`; dashes in names are taken for underscores."""
    import yaml  # noqa: PLC0415 10 ms that only a configuration file needs

    try:
        values = yaml.safe_load(path.read_bytes())
    except OSError as exc:
        raise InvalidInput(f"cannot read {path}: {exc.strerror}") from exc
    except (yaml.YAMLError, UnicodeDecodeError) as exc:
        raise InvalidInput(f"{path} is not YAML: {exc}") from exc
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise InvalidInput(f"{path} holds {type(values).__name__}; write settings as `name: value`, one a line")
    return {str(name).replace("-", "_"): value for name, value in values.items()}


def _fields(schema: type[Struct], path: str) -> list[str]:
    """The names of the fields of the struct at `path`."""
    return [field.encode_name for kind in _kinds(schema, path) for field in getattr(kind, "fields", ())]


def _choices(schema: type[Struct], path: str) -> list[str]:
    """The values that may stand at `path`."""
    from msgspec import inspect  # noqa: PLC0415 what only a mistake needs

    kinds = _kinds(schema, path)
    return [str(choice.value) for kind in kinds if isinstance(kind, inspect.EnumType) for choice in kind.cls]


def _kinds(schema: type[Struct], path: str) -> list[Any]:
    """The types of what may stand at `path`."""
    from msgspec import inspect  # noqa: PLC0415 what only a mistake needs

    kinds: list[Any] = [inspect.type_info(schema)]
    for part in _PLACE.finditer(path):
        kinds = [inner for kind in kinds for inner in _inner(kind, part["name"])]
    return kinds


def _inner(kind: Any, name: str | None) -> list[Any]:
    """The types that a part of a path leads to: the field of that name, or without a name any element."""
    if name is not None:
        found = [field.type for field in getattr(kind, "fields", ()) if field.encode_name == name]
    else:
        found = [getattr(kind, inner) for inner in ("value_type", "item_type") if hasattr(kind, inner)]
    return [one for inner in found for one in getattr(inner, "types", (inner,))]


def _with_keys(values: Any, path: str, field: str) -> str:
    """The path with its keys: a message names a mapping only, and whoever wrote it has to find the entry."""
    places = [("", values)]
    for part in _PLACE.finditer(path):
        places = [place for at, value in places for place in _steps(at, value, part)]
    return next((at for at, value in places if isinstance(value, Mapping) and field in value), path)


def _steps(at: str, value: Any, part: re.Match[str]) -> list[tuple[str, Any]]:
    if part["index"] is not None:
        return [(at + part[0], value[int(part["index"])])]
    keys = list(value) if part["any"] else [part["name"]]
    return [(f"{at}.{key}", value[key]) for key in keys]
