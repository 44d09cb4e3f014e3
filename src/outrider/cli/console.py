"""What commands print. Text from outside (task ids, errors, tags, replies, file names) is never anything but text.

Everything goes through `Console`, `echo` or `print_json`. Strings hold no markup: colours are given by `Text` and
styles. A character that would steer the terminal or turn the reading direction is written out by its number.
"""

import logging
import re
from collections.abc import Iterable
from typing import Any

import click
import rich.console
from rich.console import ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from outrider.core import wire

_STEERING = (*range(32), *range(127, 160), *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_VISIBLE = {code: ascii(chr(code))[1:-1] for code in _STEERING if chr(code) not in "\n\t"}
_JSON_ESCAPES = {code: f"\\u{code:04x}" for code in _STEERING if chr(code) != "\n"}
_STEERS = re.compile(f"[{''.join(map(re.escape, map(chr, _VISIBLE)))}\ud800-\udfff]")


def visible(text: str) -> str:
    """The text with what would steer a terminal, or turn the reading direction, written out; half characters too."""
    if _STEERS.search(text) is None:
        return text
    return text.translate(_VISIBLE).encode(errors="backslashreplace").decode()


def echo(text: object = "", *, err: bool = False, nl: bool = True) -> None:
    """Print a line."""
    click.echo(visible(str(text)), err=err, nl=nl)


def json_text(value: object) -> str:
    """The value as one line of JSON, in which characters that would steer a terminal are escaped."""
    return wire.to_json(value).translate(_JSON_ESCAPES)


def print_json(value: object) -> None:
    echo(json_text(value))


class Console(rich.console.Console):
    """Prints strings as they are."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **settings)

    def render_str(self, text: str, **settings: Any) -> Text:
        return super().render_str(visible(text), **{**settings, "markup": False, "emoji": False})

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control or _STEERS.search(segment.text) is None:
                yield segment
            else:
                yield Segment(visible(segment.text), segment.style)


class _VisibleFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record))


def show_warnings() -> None:
    """Warnings of libraries go to standard error, where no view takes them."""
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(_VisibleFormatter("%(levelname)s %(message)s"))
