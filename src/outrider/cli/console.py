"""The console on which commands print tables and colours. Strings hold no markup: styles and `Text` give colours.

It brings `rich` along; commands that print lines alone do with `output`.
"""

from collections.abc import Iterable
from typing import Any

import rich.console
from rich.console import ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from outrider.cli.output import STEERS, visible


class Console(rich.console.Console):
    """Prints strings as they are."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **settings)

    def render_str(self, text: str, **settings: Any) -> Text:
        return super().render_str(visible(text), **{**settings, "markup": False, "emoji": False})

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control or STEERS.search(segment.text) is None:
                yield segment
            else:
                yield Segment(visible(segment.text), segment.style)


def wide_console() -> Console:
    """A console for tables. A pipe has no width: lines there are as long as they are."""
    console = Console(soft_wrap=True)
    return console if console.is_terminal else Console(soft_wrap=True, width=100_000)
