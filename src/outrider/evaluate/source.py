"""Files of values: bytes from a file or standard input, and the JSON values in them, each with its place.

Places (`tasks.jsonl, line 3`) go into every error message, so that whoever wrote the file finds the spot.
"""

import gzip
import re
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from outrider.core.decoding import from_json
from outrider.core.errors import InvalidInput

STANDARD_INPUT = "-"

Placed = tuple[str, Any]
"""A value and where it stands."""

_GZIP = b"\x1f\x8b"
_UTF8_MARK = b"\xef\xbb\xbf"
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
_AT_BYTE = re.compile(r" ?\(byte (\d+)\)$")


def shown(name: str) -> str:
    """How messages call a source."""
    return "standard input" if name == STANDARD_INPUT else name


def read_bytes(name: str) -> bytes:
    """What a file or standard input (`-`) holds, unpacked if it is gzip, without the mark some editors put first."""
    try:
        data = sys.stdin.buffer.read() if name == STANDARD_INPUT else Path(name).read_bytes()
    except (OSError, ValueError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else exc
        raise InvalidInput(f"cannot read {name}: {reason}") from exc
    if data.startswith(_GZIP):
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as exc:
            raise InvalidInput(f"cannot unpack {shown(name)}: {exc}") from exc
    if data.startswith(_UTF16_MARKS):
        raise InvalidInput(f"{shown(name)} is written in UTF-16; save it as UTF-8")
    return data.removeprefix(_UTF8_MARK)


def json_values(name: str, data: bytes) -> Iterator[Placed]:
    """The values of one JSON list, or those on the lines of JSON lines; blank lines are passed over."""
    if data.lstrip().startswith(b"["):
        for number, value in enumerate(decode_file(name, data), 1):
            yield f"{shown(name)}, item {number}", value
        return
    for number, line in enumerate(data.split(b"\n"), 1):
        if line.strip():
            place = f"{shown(name)}, line {number}"
            try:
                value = decode(line)
            except ValueError as exc:
                hint = (
                    "; each line must hold a whole item, or the file one list of all" if "truncated" in str(exc) else ""
                )
                raise InvalidInput(f"{place}: {exc}{hint}") from exc
            yield place, value


def decode(data: bytes) -> Any:
    """One JSON value; whatever is wrong with it is a `ValueError`."""
    try:
        return from_json(data)
    except RecursionError as exc:
        raise ValueError("JSON is nested too deeply") from exc


def decode_file(name: str, data: bytes) -> Any:
    """The one JSON value that fills a file; an error names the line."""
    try:
        return decode(data)
    except UnicodeDecodeError:
        decode_text(name, data)
        raise
    except ValueError as exc:
        found = _AT_BYTE.search(str(exc))
        line = _line(data, int(found[1]) if found else len(data))
        raise InvalidInput(f"{shown(name)}, line {line}: {_AT_BYTE.sub('', str(exc))}") from exc


def decode_text(name: str, data: bytes) -> str:
    """The text in a file; an error names the line."""
    try:
        return data.decode()
    except UnicodeDecodeError as exc:
        place = f"{shown(name)}, line {_line(data, exc.start)}"
        raise InvalidInput(f"{place}: {exc.reason} {data[exc.start]:#04x}; save it as UTF-8") from exc


def _line(data: bytes, position: int) -> int:
    return data.count(b"\n", 0, position) + 1
