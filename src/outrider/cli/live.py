"""A bar at the bottom of the terminal, with more below it, and lines that scroll by above."""

from typing import Self

from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from outrider.cli.console import Console


class LiveBar:
    """Shown for as long as its block lasts, and gone after it. `title` says what is counted."""

    def __init__(self, console: Console, title: str = "") -> None:
        self._console = console
        columns: list[ProgressColumn] = [TextColumn(title)] if title else []
        columns += [BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn()]
        self._progress = Progress(*columns, console=console)
        self._task = self._progress.add_task("", total=None)
        self._live = Live(self._progress, console=console, refresh_per_second=4, transient=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._live.stop()

    def line(self, text: str) -> None:
        self._console.print(text, soft_wrap=True)

    def show(self, n_done: int, n_total: int, *below: RenderableType) -> None:
        self._progress.update(self._task, completed=n_done, total=n_total)
        self._live.update(Group(self._progress, *below))
