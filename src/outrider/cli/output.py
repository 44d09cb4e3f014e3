"""What commands print. Text from outside (task ids, errors, tags, replies, file names) is never anything but text.

Everything goes through `echo`, `print_json` or `console.Console`. A character that would steer the terminal or turn the
reading direction is written out by its number.
"""

import io
import logging
import os
import re
import sys
from typing import Any

import click

from outrider.core import wire

_STEERING = (*range(32), *range(127, 160), *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_VISIBLE = {code: ascii(chr(code))[1:-1] for code in _STEERING if chr(code) not in "\n\t"}
_JSON_ESCAPES = {code: f"\\u{code:04x}" for code in _STEERING if chr(code) != "\n"}
STEERS = re.compile(f"[{''.join(map(re.escape, map(chr, _VISIBLE)))}\ud800-\udfff]")
"""A character that must be written out by its number."""


def visible(text: str) -> str:
    """The text with what would steer a terminal, or turn the reading direction, written out; half characters too."""
    if STEERS.search(text) is None:
        return text
    return text.translate(_VISIBLE).encode(errors="backslashreplace").decode()


class _Outliving(io.RawIOBase):
    """A descriptor to write to; what is written after its reader has gone is dropped."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._has_reader = True

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def fileno(self) -> int:
        return self._descriptor

    def write(self, data: Any) -> int:
        if self._has_reader:
            try:
                return os.write(self._descriptor, data)
            except BrokenPipeError:
                self._has_reader = False
        return len(data)


def outlive_readers() -> None:
    """From now on a closed pipe, as `| head` leaves behind, ends the output and not the command."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        stream.flush()
        raw = io.BufferedWriter(_Outliving(stream.fileno()))
        setattr(sys, name, io.TextIOWrapper(raw, stream.encoding, stream.errors, line_buffering=True))


def echo(text: object = "", *, err: bool = False, nl: bool = True) -> None:
    """Print a line."""
    click.echo(visible(str(text)), err=err, nl=nl)


def json_text(value: object) -> str:
    """The value as one line of JSON, in which characters that would steer a terminal are escaped."""
    return wire.to_json(value).translate(_JSON_ESCAPES)


def print_json(value: object) -> None:
    echo(json_text(value))


class _VisibleFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record))


def show_warnings() -> None:
    """Warnings of libraries go to standard error, where no view takes them."""
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(_VisibleFormatter("%(levelname)s %(message)s"))
