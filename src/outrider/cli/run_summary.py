"""What a run came to, for people to read when it has ended."""

from collections.abc import Iterator
from pathlib import Path

from rich.table import Table

from outrider.cli.console import Console
from outrider.cli.machine_view import machine_rows
from outrider.cli.run_job import Outcome
from outrider.evaluate.page import PAGE_FILE
from outrider.evaluate.report import SUMMARY_MD, estimate_text, missing_text
from outrider.evaluate.summary import Quantiles, Summary


def print_outcome(outcome: Outcome) -> None:
    console = Console()
    table = Table(title=outcome.run, title_justify="left", show_header=False, min_width=len(outcome.run))
    for name, value in (*_rows(outcome.summary), *machine_rows(outcome.machines)):
        table.add_row(name, value)
    console.print(table)
    console.print(missing_text(outcome.summary.total))
    folder = Path(outcome.folder)
    files = [folder / name for name in (PAGE_FILE, SUMMARY_MD) if (folder / name).exists()]
    console.print(f"Look closer: {', '.join(map(str, files))}", soft_wrap=True)
    if not outcome.complete:
        if outcome.stopped_by is not None:
            console.print(f"Stopped: {outcome.stopped_by}", soft_wrap=True)
        text = f"Not complete: the same command with --resume {outcome.run} goes on."
        console.print(text, soft_wrap=True)


def _rows(summary: Summary) -> Iterator[tuple[str, str]]:
    total = summary.total
    yield "rollouts", f"{total.n:,} of {total.n_tasks:,} tasks in {summary.wall_seconds:.1f} s"
    yield "mean score", estimate_text(total.reward.scored)
    if total.n_scored < total.n:
        yield "mean score, missing as 0", estimate_text(total.reward.all)
    for k, passed in total.pass_at.items():
        yield f"pass@{k}", estimate_text(passed.scored)
    yield "seconds", _spread(total.seconds)
    yield "turns", _spread(total.turns)
    yield "tokens", f"{total.prompt_tokens:,} in, {total.completion_tokens:,} out, {total.model_calls:,} calls"
    if total.retries or total.call_retries:
        yield "repeated", f"{total.retries:,} attempts, {total.call_retries:,} calls"


def _spread(spread: Quantiles | None) -> str:
    if spread is None:
        return "-"
    return f"p50 {spread.p50:.3g}, p95 {spread.p95:.3g}, max {spread.max:.3g}"
