"""Settings as people write them, in files and flags, made into structs; a mistake is named with its place."""

import re
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec
from msgspec import Struct

from outrider.core.errors import InvalidInput

S = TypeVar("S", bound=Struct)

_UNKNOWN_FIELD = re.compile(r"unknown field `(?P<field>[^`]*)`(?: - at `\$\.?(?P<path>[^`]*)`)?")


def settings_of(schema: type[S], values: Mapping[str, Any], place: str) -> S:
    """`values` as a struct that forbids unknown fields. A wrong field or type is named with its path."""
    try:
        return msgspec.convert(dict(values), schema)
    except msgspec.ValidationError as exc:
        message = str(exc)
        if unknown := _UNKNOWN_FIELD.search(message):
            known = _fields(schema, (unknown["path"] or "").split("."))
            near = get_close_matches(unknown["field"], known, n=1)
            message += f"; did you mean {near[0]}?" if near else f"; there are {', '.join(known)}"
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


def _fields(schema: Any, path: list[str]) -> list[str]:
    """The names of the fields of the struct at `path`."""
    fields = {field.encode_name: field.type for field in msgspec.structs.fields(schema)}
    inner = fields.get(path[0])
    if isinstance(inner, type) and issubclass(inner, Struct):
        return _fields(cast("Any", inner), path[1:] or [""])
    return list(fields)
