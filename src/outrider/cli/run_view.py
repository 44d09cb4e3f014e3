"""What `outrider run` shows while it runs: a live picture on a terminal, plain lines in a pipe."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from shlex import quote
from typing import Protocol

from rich.table import Table
from rich.text import Text

from outrider.cli.console import Console
from outrider.cli.diagnosis import failure_text
from outrider.cli.eta import TimeLeft, left_text
from outrider.cli.live import LiveBar
from outrider.cli.machine_view import machine_counts, machines_table, short
from outrider.cli.output import echo
from outrider.core.machine import MachineRecord
from outrider.core.status import RolloutStatus
from outrider.evaluate.results import ResultLine
from outrider.evaluate.summary import SUCCESS_AT
from outrider.runner.meter import Reading

RATE_WINDOW_SECONDS = 10.0
PLAIN_SECONDS = 5.0
"""How often a plain view tells how far a long run is."""

FEW = 50
"""A plain view tells the end of each rollout in runs of up to this many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progressing:
    """How far a run is, at one moment."""

    at: float
    n_total: int
    n_ended: int
    n_running: int
    n_failed: int
    n_retries: int
    mean_reward: float | None
    reading: Reading
    slowest: Sequence[tuple[str, float]] = ()
    """Running rollouts and for how many seconds they have run, the longest first."""
    machines: Sequence[MachineRecord] = ()
    name_of: Callable[[str], str] = short
    """What people call a rollout."""
    n_waiting: int | None = None
    """Rollouts that wait for a machine; None: they share no pool that we know of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What happens in a second, over the last few."""

    rollouts: float = 0.0
    calls: float = 0.0
    tokens: float = 0.0


class Counted(Protocol):
    """What had happened up to one moment."""

    @property
    def at(self) -> float: ...

    @property
    def n_ended(self) -> int: ...

    @property
    def reading(self) -> Reading: ...


class Pace:
    """Rates over a window of the last moments."""

    def __init__(self, window_seconds: float = RATE_WINDOW_SECONDS) -> None:
        self._window = window_seconds
        self._moments: deque[Counted] = deque()

    def add(self, now: Counted) -> Rates:
        if self._moments and now.at < self._moments[-1].at:
            self._moments.clear()  # the wall clock has gone back
        self._moments.append(now)
        while len(self._moments) > 2 and now.at - self._moments[1].at >= self._window:  # noqa: PLR2004 first and last
            self._moments.popleft()
        first = self._moments[0]
        seconds = now.at - first.at
        if seconds <= 0:
            return Rates()
        return Rates(
            rollouts=(now.n_ended - first.n_ended) / seconds,
            calls=(now.reading.calls - first.reading.calls) / seconds,
            tokens=(now.reading.tokens - first.reading.tokens) / seconds,
        )


class RunView(Protocol):
    """Where a run tells what happens."""

    def line(self, text: str) -> None: ...

    def ended(self, line: ResultLine) -> None: ...

    def update(self, now: Progressing) -> None: ...


class PlainRunView:
    """Lines as they come: each end of a short run, now and then how far a long one is."""

    def __init__(self, *, to_stderr: bool = False) -> None:
        self._to_stderr = to_stderr
        self._pace = Pace()
        self._left = TimeLeft()
        self._n_total = 0
        self._said_at: float | None = None

    def line(self, text: str) -> None:
        echo(text, err=self._to_stderr)

    def ended(self, line: ResultLine) -> None:
        self._left.ended(line.seconds)
        if self._n_total <= FEW:
            self.line(ended_line(line))

    def update(self, now: Progressing) -> None:
        self._n_total = now.n_total
        rates = self._pace.add(now)
        left = self._left.seconds(at=now.at, n_done=now.n_ended, n_total=now.n_total, n_running=now.n_running)
        if self._said_at is None:
            self._said_at = now.at
        if abs(now.at - self._said_at) >= PLAIN_SECONDS:  # the wall clock may go back
            self._said_at = now.at
            parts = [f"{now.n_ended}/{now.n_total} {progress_text(now)}", rates_text(rates), left_text(left)]
            self.line("; ".join(filter(None, parts)))


class LiveRunView(LiveBar):
    """A bar with rate and time left, the counts, and what runs longest."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._pace = Pace()

    def ended(self, line: ResultLine) -> None:
        self._left.ended(line.seconds)
        if line.status is not RolloutStatus.SUCCEEDED:
            self.line(ended_line(line))

    def update(self, now: Progressing) -> None:
        rates = self._pace.add(now)
        counts = Text(f"{progress_text(now)}; {rates_text(rates)}")
        below = *_slowest_table(now), *machines_table(now.machines, now.at, now.name_of)
        self.show(now.at, now.n_ended, now.n_total, counts, *below, n_running=now.n_running)


@contextmanager
def open_run_view(*, as_json: bool) -> Iterator[RunView]:
    console = Console()
    if as_json or not console.is_terminal:
        yield PlainRunView(to_stderr=as_json)
    else:
        with LiveRunView(console) as view:
            yield view


def ended_line(line: ResultLine) -> str:
    """How one rollout ended, in a line."""
    name = line.name
    if line.status is RolloutStatus.SUCCEEDED:
        reward = "no score" if line.reward is None else f"reward {line.reward:g}"
        return f"{_mark(line.reward)} {name} {reward}"
    command = f"outrider view {line.rollout_id.partition('/')[0]} {quote(name)}"
    why = "" if line.failure is None else f": {failure_text(line.failure, command)}"
    return f"❌ {name} {line.status}{why}"


def _mark(reward: float | None) -> str:
    """A tick is for what passed."""
    if reward is None:
        return "❔"
    return "✅" if reward >= SUCCESS_AT else "🟡" if reward > 0 else "⬜"


def progress_text(now: Progressing) -> str:
    parts = [f"{now.n_running} running", f"{now.n_failed} failed", f"{now.n_retries} retried"]
    parts += machine_counts(now.machines, now.n_waiting)
    if now.mean_reward is not None:
        parts.append(f"mean score {now.mean_reward:.3f}")
    return ", ".join(parts)


def rates_text(rates: Rates) -> str:
    return f"{rates.rollouts:.1f} rollouts/s, {rates.calls:.1f} calls/s, {rates.tokens:,.0f} tokens/s"


def _slowest_table(now: Progressing) -> list[Table]:
    if not now.slowest:
        return []
    table = Table("slowest running", "seconds", box=None, header_style="dim")
    for name, seconds in now.slowest:
        table.add_row(name, f"{seconds:.0f}")
    return [table]
