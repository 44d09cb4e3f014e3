"""Reading a file of tasks: JSON lines, or one JSON list."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from outrider.core import wire
from outrider.core.errors import InvalidInput


def read_tasks(name: str) -> list[tuple[str, Any]]:
    """All tasks in a file (`-`: standard input), each with its place for error messages."""
    data = sys.stdin.buffer.read() if name == "-" else _read(Path(name))
    data = data.removeprefix(b"\xef\xbb\xbf")
    tasks = list(_tasks("standard input" if name == "-" else name, data))
    if not tasks:
        raise InvalidInput(f"{name} holds no task; write one JSON value a line")
    return tasks


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as exc:
        raise InvalidInput(f"cannot read {path}: {exc.strerror}") from exc


def _tasks(name: str, data: bytes) -> Iterator[tuple[str, Any]]:
    if data.lstrip().startswith(b"["):
        values = _decode(data, name)
        for number, value in enumerate(values, 1):
            yield _storable(value, f"{name}, item {number}")
        return
    for number, line in enumerate(data.split(b"\n"), 1):
        if line.strip():
            place = f"{name}, line {number}"
            yield _storable(_decode(line, place), place)


def _decode(data: bytes, place: str) -> Any:
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise InvalidInput(f"{place}: {exc}; nothing was enqueued") from exc


def _storable(value: Any, place: str) -> tuple[str, Any]:
    try:
        wire.encode(value)
    except InvalidInput as exc:
        raise InvalidInput(f"{place}: {exc}; nothing was enqueued") from exc
    return place, value
