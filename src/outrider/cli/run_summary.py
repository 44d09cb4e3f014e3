"""What a run came to, for people to read when it has ended."""

from collections.abc import Iterator
from pathlib import Path

from rich.table import Table

from outrider.cli.causes_view import print_causes
from outrider.cli.console import Console
from outrider.cli.machine_view import machine_rows
from outrider.cli.run_job import Outcome
from outrider.evaluate.page import PAGE_FILE
from outrider.evaluate.report import SUMMARY_MD, estimate_text, missing_text, spent_text
from outrider.evaluate.summary import Quantiles, Summary


def print_outcome(outcome: Outcome) -> None:
    console = Console()
    table = Table(title=outcome.run, title_justify="left", show_header=False, min_width=len(outcome.run))
    for name, value in (*_rows(outcome.summary), *machine_rows(outcome.machines)):
        table.add_row(name, value)
    console.print(table)
    console.print(missing_text(outcome.summary.total))
    print_causes(console, outcome.summary.causes, f"outrider view {outcome.run}")
    folder = Path(outcome.folder)
    files = [folder / name for name in (PAGE_FILE, SUMMARY_MD) if (folder / name).exists()]
    console.print(f"Look closer: {', '.join(map(str, files))}", soft_wrap=True)
    if not outcome.complete:
        if outcome.stopped_by is not None:
            console.print(f"Stopped: {outcome.stopped_by}", soft_wrap=True)
        place = "" if folder.parent == Path("results") else f" --output-dir {folder.parent}"
        text = f"Not complete; go on by: outrider run --resume {outcome.run}{place}"
        console.print(text, soft_wrap=True)


def _rows(summary: Summary) -> Iterator[tuple[str, str]]:
    total = summary.total
    yield "rollouts", rollouts_text(summary)
    yield "mean score", estimate_text(total.reward.scored)
    if total.n_scored < total.n:
        yield "mean score, missing as 0", estimate_text(total.reward.all)
    for k, passed in total.pass_at.items():
        yield f"pass@{k}", estimate_text(passed.scored)
    yield "seconds", _spread(total.seconds)
    yield "turns", _spread(total.turns)
    yield "tokens", f"{total.prompt_tokens:,} in, {total.completion_tokens:,} out, {total.model_calls:,} calls"
    yield "time spent", spent_text(total)
    if total.retries or total.call_retries:
        yield "repeated", f"{total.retries:,} attempts, {total.call_retries:,} calls, counted above"
    if summary.money is not None:
        yield "money", f"{summary.money:.4g}"
    if summary.n_replaced:
        yield "retried", f"{summary.n_replaced:,} samples, whose retries count in their place"


def rollouts_text(summary: Summary) -> str:
    """How many have ended; of a run that was stopped, how many were planned and begun too."""
    total = summary.total
    text = f"{total.n:,} of {total.n_tasks:,} tasks in {summary.wall_seconds:.1f} s"
    if summary.n_planned is None or total.n >= summary.n_planned:
        return text
    return f"{summary.n_planned:,} planned, {summary.n_begun:,} begun, {total.n:,} done in {summary.wall_seconds:.1f} s"


def _spread(spread: Quantiles | None) -> str:
    if spread is None:
        return "-"
    return f"p50 {spread.p50:.3g}, p95 {spread.p95:.3g}, max {spread.max:.3g}"
