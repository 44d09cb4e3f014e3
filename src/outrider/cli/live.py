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
)

from outrider.cli.console import Console
from outrider.cli.eta import TimeLeft, left_text


class LiveBar:
    """Shown for as long as its block lasts, and gone after it. `title` says what is counted."""

    def __init__(self, console: Console, title: str = "") -> None:
        self._console = console
        columns: list[ProgressColumn] = [TextColumn(title)] if title else []
        columns += [BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.fields[left]}")]
        self._progress = Progress(*columns, console=console)
        self._task = self._progress.add_task("", total=None, left="")
        self._left = TimeLeft()
        self._live = Live(self._progress, console=console, refresh_per_second=4, transient=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._live.stop()

    def line(self, text: str) -> None:
        self._console.print(text, soft_wrap=True)

    def show(self, at: float, n_done: int, n_total: int, *below: RenderableType, n_running: int = 1) -> None:
        left = self._left.seconds(at=at, n_done=n_done, n_total=n_total, n_running=n_running)
        self._progress.update(self._task, completed=n_done, total=n_total, left=left_text(left))
        self._live.update(Group(self._progress, *below))
