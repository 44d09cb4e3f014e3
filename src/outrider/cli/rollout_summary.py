"""What `outrider rollout` came to, for people to read when it has ended."""

from rich.table import Table
from rich.text import Text

from outrider.cli.causes_view import print_causes
from outrider.cli.console import Console
from outrider.cli.machine_view import machine_rows
from outrider.cli.rollout_job import Outcome
from outrider.cli.rollout_view import fate_text


def print_outcome(outcome: Outcome) -> None:
    console = Console()
    table = Table(title=outcome.run, title_justify="left", show_header=False, min_width=len(outcome.run))
    table.add_row("steps", f"{outcome.steps:,} of {outcome.planned_steps:,}, {outcome.seconds:.1f} s this time")
    table.add_row("policy version", str(outcome.version))
    table.add_row("groups", "\n".join(f"{n:,} {state}" for state, n in outcome.groups.items() if n) or "none")
    for fate, dropped in outcome.dropped.items():
        table.add_row(f"dropped as {fate}", Text(f"{dropped.n:,}, the latest: {dropped.latest}"))
    generated = sum(outcome.tokens.values())
    fates = "\n".join(f"{n:,} {fate_text(fate)}" for fate, n in outcome.tokens.items() if n)
    table.add_row("tokens generated", f"{generated:,}, of which\n{fates}" if fates else "0")
    table.add_row("tokens in the loss", f"{outcome.in_loss:,}")
    for name, value in machine_rows(outcome.machines):
        table.add_row(name, value)
    console.print(table)
    if outcome.as_text:
        text = (
            f"⚠ {outcome.as_text:,} tokens in the batches are known as text only, since the endpoint gave no token "
            f"ids: nothing was learnt of them. {outcome.in_loss:,} tokens were in the loss."
        )
        console.print(Text(text, style="bold red"), soft_wrap=True)
    if outcome.without_logprobs:
        text = (
            f"⚠ {outcome.without_logprobs:,} of {outcome.in_loss:,} tokens in the loss have no log-probability, since "
            "the endpoint gave none."
        )
        console.print(Text(text, style="bold red"), soft_wrap=True)
    print_causes(console, outcome.causes, f"outrider show --store {outcome.store}")
    if outcome.timeline is not None:
        console.print(f"Slots over time: {outcome.timeline}", soft_wrap=True)
    if outcome.stopped_by is not None:
        console.print(f"Stopped: {outcome.stopped_by}", soft_wrap=True)
    if outcome.resume is not None:
        console.print(f"Not complete; go on by: {outcome.resume}", soft_wrap=True)
