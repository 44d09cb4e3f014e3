"""What `outrider work` shows: a live line on a terminal, plain lines in a pipe, nothing but JSON for scripts."""

import time
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
)
from rich.table import Table
from rich.text import Text

from outrider.cli.causes_view import print_causes
from outrider.cli.console import Console
from outrider.cli.eta import TimeLeft, left_text
from outrider.cli.output import echo
from outrider.cli.tally import Tally, n_open
from outrider.core.status import LIVE, QUEUED, RolloutStatus
from outrider.store import Statistics


class View(Protocol):
    """Where a running command tells what happens."""

    def line(self, text: str) -> None: ...

    def update(self, tally: Tally, statistics: Statistics) -> None: ...

    def summary(self, tally: Tally, summary: Mapping[str, object], statistics: Statistics) -> None: ...


class PlainView:
    """Lines as they come."""

    def line(self, text: str) -> None:
        echo(text)

    def update(self, tally: Tally, statistics: Statistics) -> None: ...

    def summary(self, tally: Tally, summary: Mapping[str, object], statistics: Statistics) -> None:
        _print_summary(Console(), tally, summary, statistics)


class SilentView(PlainView):
    """For scripts: lines go to standard error, so that standard output is JSON alone."""

    def line(self, text: str) -> None:
        echo(text, err=True)

    def summary(self, tally: Tally, summary: Mapping[str, object], statistics: Statistics) -> None: ...


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
            TextColumn("{task.fields[left]}"),
            console=console,
        )
        self._task = self._progress.add_task("", total=None, text=Text(), left="")
        self._left = TimeLeft()

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._progress.stop()

    def line(self, text: str) -> None:
        self._console.print(text, soft_wrap=True)

    def update(self, tally: Tally, statistics: Statistics) -> None:
        n_total = tally.n_ended + n_open(statistics)
        n_running = sum(statistics.rollouts[status] for status in LIVE)
        left = self._left.seconds(at=time.monotonic(), n_done=tally.n_ended, n_total=n_total, n_running=n_running)
        self._progress.update(
            self._task,
            completed=tally.n_ended,
            total=n_total,
            left=left_text(left),
            text=_progress_text(tally, statistics),
        )

    def summary(self, tally: Tally, summary: Mapping[str, object], statistics: Statistics) -> None:
        _print_summary(self._console, tally, summary, statistics)


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


def _print_summary(console: Console, tally: Tally, summary: Mapping[str, object], statistics: Statistics) -> None:
    console.print(summary_table(summary, statistics))
    print_causes(console, tally.causes.most_common(), "outrider show")
    if tally.n_unscored:
        console.print(f"{tally.n_unscored:,} succeeded without a score: the agent returned None", soft_wrap=True)


def summary_table(summary: Mapping[str, object], statistics: Statistics) -> Table:
    """The numbers of a run, one a line, and what is left in the store."""
    table = Table(title="Summary", show_header=False, title_justify="left")
    for name, value in summary.items():
        if name == "causes":
            continue  # printed below, with their messages
        if isinstance(value, Mapping):
            text = "\n".join(f"{key}  {number}" for key, number in value.items()) or "none"
        else:
            text = "none" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
        table.add_row(name.replace("_", " "), text)
    table.add_row("still open", str(n_open(statistics)))
    return table
