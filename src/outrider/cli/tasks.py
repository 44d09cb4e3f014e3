"""Reading a file of tasks: JSON lines, or one JSON list."""

from typing import Any

from outrider.core import wire
from outrider.core.errors import InvalidInput
from outrider.evaluate.source import json_values, read_bytes


def read_tasks(name: str) -> list[tuple[str, Any]]:
    """All tasks in a file (`-`: standard input), each with its place for error messages."""
    data = read_bytes(name)
    try:
        tasks = [_storable(value, place) for place, value in json_values(name, data)]
    except InvalidInput as exc:
        raise InvalidInput(f"{exc}; nothing was enqueued") from exc
    if not tasks:
        raise InvalidInput(f"{name} holds no task; write one JSON value a line")
    return tasks


def _storable(value: Any, place: str) -> tuple[str, Any]:
    try:
        wire.encode(value)
    except InvalidInput as exc:
        raise InvalidInput(f"{place}: {exc}") from exc
    return place, value
