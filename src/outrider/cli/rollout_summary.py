"""What `outrider rollout` came to, for people to read when it has ended."""

from rich.table import Table
from rich.text import Text

from outrider.cli.console import Console
from outrider.cli.machine_view import machine_rows
from outrider.cli.rollout_job import Outcome


def print_outcome(outcome: Outcome) -> None:
    console = Console()
    table = Table(title=outcome.run, title_justify="left", show_header=False, min_width=len(outcome.run))
    table.add_row("steps", f"{outcome.steps:,}, {outcome.seconds:.1f} s this time")
    table.add_row("policy version", str(outcome.version))
    table.add_row("groups", "\n".join(f"{n:,} {state}" for state, n in outcome.groups.items() if n) or "none")
    for fate, dropped in outcome.dropped.items():
        table.add_row(f"dropped as {fate}", Text(f"{dropped.n:,}, the latest: {dropped.latest}"))
    generated = sum(outcome.tokens.values())
    fates = "\n".join(f"{n:,} {fate}" for fate, n in outcome.tokens.items() if n)
    table.add_row("tokens generated", f"{generated:,}, of which\n{fates}" if fates else "0")
    for name, value in machine_rows(outcome.machines):
        table.add_row(name, value)
    console.print(table)
    if outcome.timeline is not None:
        console.print(f"Slots over time: {outcome.timeline}", soft_wrap=True)
    if outcome.stopped_by is not None:
        console.print(f"Stopped: {outcome.stopped_by}", soft_wrap=True)
    if outcome.resume is not None:
        console.print(f"Not complete; go on by: {outcome.resume}", soft_wrap=True)
