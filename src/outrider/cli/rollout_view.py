"""What `outrider rollout` shows while it runs: a live picture on a terminal, a line a step in a pipe."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import msgspec
from rich.table import Table
from rich.text import Text

from outrider.cli.console import Console
from outrider.cli.ledgers import counts_text
from outrider.cli.live import LiveBar
from outrider.cli.machine_view import machine_counts, machines_table
from outrider.cli.output import echo, print_json
from outrider.cli.rollout_trainer import TEXT, Step, token_fates
from outrider.cli.run_view import Pace, Rates
from outrider.core.account import Fate
from outrider.core.clock import utc
from outrider.core.machine import MachineRecord
from outrider.runner.meter import Reading
from outrider.train.status import SchedulerStatus, what_blocks
from outrider.train.validation import ValidationResult
from outrider.train.watch import Phase

N_BLOCKING = 3
QUIET_SECONDS = 30.0
"""How long a plain view may say nothing."""

SLOW_SECONDS = 5.0
"""A member without progress for so long is named while the trainer waits for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """How it stands now."""

    at: float
    n_done: int
    n_steps: int
    n_slots: int
    n_ended: int
    """Trajectories that were trained on."""
    n_text: int = 0
    """Their tokens that are known as text only."""
    status: SchedulerStatus
    reading: Reading
    machines: Sequence[MachineRecord] = ()
    n_waiting: int | None = None
    """Members that wait for a machine; None: they share no pool that we know of."""


class RolloutView(Protocol):
    """Where a run tells what happens."""

    def line(self, text: str) -> None: ...

    def step(self, step: Step) -> None: ...

    def validated(self, result: ValidationResult) -> None: ...

    def update(self, now: Moment) -> None: ...


class PlainRolloutView:
    """A line a step, and one now and then while a step does not come."""

    def __init__(self) -> None:
        self._n_done = -1
        self._told_at = 0.0

    def line(self, text: str) -> None:
        echo(text)

    def step(self, step: Step) -> None:
        self.line(step_text(step))

    def validated(self, result: ValidationResult) -> None:
        self.line(validation_text(result))

    def update(self, now: Moment) -> None:
        if now.n_done != self._n_done:
            self._n_done, self._told_at = now.n_done, now.at
        elif abs(now.at - self._told_at) >= QUIET_SECONDS:  # the wall clock may go back
            self._told_at = now.at
            self.line(waiting_text(now))


class JsonRolloutView(PlainRolloutView):
    """For scripts: a JSON object for each step and validation on standard output, all else on standard error."""

    def line(self, text: str) -> None:
        echo(text, err=True)

    def step(self, step: Step) -> None:
        print_json({"kind": "step", **msgspec.to_builtins(step)})

    def validated(self, result: ValidationResult) -> None:
        print_json({"kind": "validation", **msgspec.to_builtins(result)})


class LiveRolloutView(LiveBar):
    """Below the lines: steps, slots by phase, groups by state, the batch being filled, tokens by fate, what blocks."""

    def __init__(self, console: Console) -> None:
        super().__init__(console, "steps")
        self._pace = Pace()
        self._latest: Step | None = None

    def step(self, step: Step) -> None:
        self._latest = step
        self.line(step_text(step))

    def validated(self, result: ValidationResult) -> None:
        self.line(validation_text(result))

    def update(self, now: Moment) -> None:
        rates = self._pace.add(now)
        machines = machines_table(now.machines, now.at)
        self.show(now.at, now.n_done, now.n_steps, moment_table(now, self._latest, rates), *_blocking(now), *machines)


def moment_table(now: Moment, latest: Step | None, rates: Rates) -> Table:
    """A moment in a few lines."""
    status = now.status
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    table.add_row("batch", Text(_batch_text(status)))
    table.add_row("slots", Text(_slots_text(now)))
    if counts := machine_counts(now.machines, now.n_waiting):
        table.add_row("machines", Text(", ".join(counts)))
    dropped = ((f"dropped as {fate}", n) for fate, n in status.dropped.items())
    table.add_row("groups", counts_text((("open", status.n_opened), ("complete", status.n_complete), *dropped)))
    fates = token_fates({fate: status.tokens.get(fate, 0) for fate in Fate}, n_text=now.n_text)
    table.add_row("tokens", counts_text((fate_text(fate), n) for fate, n in fates.items()))
    staleness = "" if latest is None else f", staleness {latest.staleness_mean:.2f} (at most {latest.staleness_max})"
    table.add_row("policy", Text(f"version {status.version}{staleness}"))
    table.add_row("rate", Text(f"{rates.calls:,.1f} calls/s, {rates.tokens:,.0f} tokens/s"))
    return table


def _batch_text(status: SchedulerStatus) -> str:
    have = f"{min(status.n_complete, status.n_wanted)} of {status.n_wanted} groups"
    doing = "paused" if status.is_paused else "the trainer trains" if status.is_training else "the trainer waits"
    return f"{status.n_batches}: {have}; {doing}"


def _slots_text(now: Moment) -> str:
    n_busy = sum(now.status.phases.values())
    counts = {phase: now.status.phases.get(phase, 0) for phase in Phase}
    if not counts[Phase.MACHINE]:
        del counts[Phase.MACHINE]  # most runs have no machines
    phases = counts_text(counts.items())
    return f"{n_busy} of {now.n_slots} busy: {phases}"


def _blocking(now: Moment) -> list[Text]:
    """What keeps the trainer waiting, if it is not just about to come."""
    at = utc(now.at)
    slow = [one for one in now.status.blocking if one.seconds(at) >= SLOW_SECONDS and not now.status.is_training]
    return [Text(f"waits for {one.describe(at)}", style="yellow") for one in slow[:N_BLOCKING]]


def waiting_text(now: Moment) -> str:
    """What happens in a step that takes its time."""
    dropped = counts_text((f"groups dropped as {fate}", n) for fate, n in now.status.dropped.items())
    doing = "in training" if now.status.is_training else what_blocks(now.status, utc(now.at))
    return f"step {now.n_done + 1}: {doing}" + (f"; {dropped} so far" if dropped else "")


def step_text(step: Step) -> str:
    """A step in a line."""
    others = counts_text((fate, n) for fate, n in step.tokens.items() if n and fate not in (Fate.TRAINED, TEXT))
    lost = f" ({others})" if others else ""
    text = f" (⚠ {step.text:,} {fate_text(TEXT)}, nothing is learnt of them)" if step.text else ""
    if step.without_logprobs:
        text += f" (⚠ {step.without_logprobs:,} of them without log-probability)"
    return (
        f"step {step.step}: reward {step.reward:.3f} of {step.n_trajectories} in {len(step.groups)} groups, "
        f"waited {step.wait_seconds:.2f} s, staleness {step.staleness_mean:.2f} (at most {step.staleness_max}), "
        f"{step.in_loss:,} tokens in the loss{lost}{text}, now version {step.published}"
    )


def fate_text(fate: str) -> str:
    return "as text only" if fate == TEXT else fate


def validation_text(result: ValidationResult) -> str:
    parts = [
        f"{tag} {'no score' if one.reward is None else f'{one.reward:.3f}'} of {one.n_scored}/{one.n}"
        for tag, one in result.tags.items()
    ]
    return f"validated version {result.version} in {result.seconds:.1f} s: {', '.join(parts)}"


class _LogLines(logging.Handler):
    """Log records as lines of a view, so that they do not tear its picture."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        self._say(f"{record.levelname.lower()}: {record.getMessage()}")


@contextmanager
def open_rollout_view(*, as_json: bool) -> Iterator[RolloutView]:
    console = Console()
    if as_json:
        with _logging_to(view := JsonRolloutView()):
            yield view
    elif console.is_terminal:
        with LiveRolloutView(console) as live, _logging_to(live):
            yield live
    else:
        with _logging_to(plain := PlainRolloutView()):
            yield plain


@contextmanager
def _logging_to(view: RolloutView) -> Iterator[None]:
    handler, root = _LogLines(view.line), logging.getLogger()
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
