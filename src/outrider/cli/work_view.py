"""What `outrider work` shows: a live line on a terminal, plain lines in a pipe, nothing but JSON for scripts."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol, Self

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from outrider.cli.console import Console, echo
from outrider.cli.tally import Tally, n_open
from outrider.core.status import LIVE, QUEUED, RolloutStatus
from outrider.store import Statistics


class View(Protocol):
    """Where a running command tells what happens."""

    def line(self, text: str) -> None: ...

    def update(self, tally: Tally, statistics: Statistics) -> None: ...

    def summary(self, summary: Mapping[str, object], statistics: Statistics) -> None: ...


class PlainView:
    """Lines as they come."""

    def line(self, text: str) -> None:
        echo(text)

    def update(self, tally: Tally, statistics: Statistics) -> None: ...

    def summary(self, summary: Mapping[str, object], statistics: Statistics) -> None:
        Console().print(summary_table(summary, statistics))


class SilentView(PlainView):
    """For scripts: lines go to standard error, so that standard output is JSON alone."""

    def line(self, text: str) -> None:
        echo(text, err=True)

    def summary(self, summary: Mapping[str, object], statistics: Statistics) -> None: ...


class LiveView(PlainView):
    """A progress bar below the lines."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress = Progress(
            TextColumn("rollouts", style="bold"),
            BarColumn(),
            MofNCompleteColumn(),
            _Counts(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
        )
        self._task = self._progress.add_task("", total=None, text=Text())

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._progress.stop()

    def line(self, text: str) -> None:
        self._console.print(text, soft_wrap=True)

    def update(self, tally: Tally, statistics: Statistics) -> None:
        self._progress.update(
            self._task,
            completed=tally.n_ended,
            total=tally.n_ended + n_open(statistics),
            text=_progress_text(tally, statistics),
        )

    def summary(self, summary: Mapping[str, object], statistics: Statistics) -> None:
        self._console.print(summary_table(summary, statistics))


@contextmanager
def open_view(*, as_json: bool) -> Iterator[View]:
    console = Console()
    if as_json:
        yield SilentView()
    elif console.is_terminal:
        with LiveView(console) as view:
            yield view
    else:
        yield PlainView()


class _Counts(ProgressColumn):
    """The numbers behind the bar."""

    def render(self, task: Task) -> Text:
        text: Text = task.fields["text"]
        return text


def _progress_text(tally: Tally, statistics: Statistics) -> Text:
    counts = statistics.rollouts
    running = sum(counts[status] for status in LIVE)
    queued = sum(counts[status] for status in QUEUED)
    text = Text(f"{running} running, {queued} queued, ")
    text.append(f"{tally.ended[RolloutStatus.FAILED]} failed", style="red")
    if tally.n_retries:
        text.append(f", {tally.n_retries} retries")
    if tally.mean_reward is not None:
        text.append(", mean reward ").append(f"{tally.mean_reward:.3f}", style="green")
    return text


def summary_table(summary: Mapping[str, object], statistics: Statistics) -> Table:
    """The numbers of a run, one a line, and what is left in the store."""
    table = Table(title="Summary", show_header=False, title_justify="left")
    for name, value in summary.items():
        if isinstance(value, Mapping):
            text = "\n".join(f"{key}  {number}" for key, number in value.items()) or "none"
        else:
            text = "none" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
        table.add_row(name.replace("_", " "), text)
    table.add_row("still open", str(n_open(statistics)))
    return table
