"""Why rollouts failed, for people: each cause once, with how many and one of them."""

from collections.abc import Sequence
from shlex import quote

from rich.text import Text

from outrider.cli.console import Console
from outrider.core.causes import Cause

N_SHOWN = 10


def print_causes(console: Console, causes: Sequence[Cause], command: str) -> None:
    """`command` shows one rollout whole, its id behind it."""
    for cause in causes[:N_SHOWN]:
        side = f"{cause.boundary}: " if cause.boundary else ""
        console.print(Text(f"{cause.n:,} failed: {side}{cause.message}", style="red"), soft_wrap=True)
        console.print(f"    one of them: {command} {quote(cause.example)}", soft_wrap=True)
    if len(causes) > N_SHOWN:
        console.print(f"and {len(causes) - N_SHOWN:,} more causes; --json has all", soft_wrap=True)
