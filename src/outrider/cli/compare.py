"""`outrider compare`."""

from pathlib import Path

import click
from rich.table import Table
from rich.text import Text

from outrider.cli.console import wide_console
from outrider.cli.options import json_option
from outrider.cli.output import echo, print_json
from outrider.core.errors import InvalidInput
from outrider.core.files import write_private_whole
from outrider.evaluate.compare import Comparison, compare
from outrider.evaluate.compare_page import compare_page, doubts, left_out, p_text
from outrider.evaluate.report import estimate_text
from outrider.evaluate.results_file import counted_results
from outrider.evaluate.runs import results_of


@click.command("compare")
@click.argument("a", metavar="RUN")
@click.argument("b", metavar="RUN")
@click.option("--html", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Write a page to open.")
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    default=20,
    show_default=True,
    help="How many of the tasks that differ to show, at most.",
)
@json_option
def command(*, a: str, b: str, html: Path | None, limit: int, as_json: bool) -> None:
    """Compare two runs on the same tasks, task by task.

    Each RUN is a name in `results`, a folder, or a results.jsonl. Rewards of 0 and 1 are compared by McNemar's exact
    test, others and several samples a task by a paired bootstrap over tasks. A retried sample counts as its retry.
    """
    found = compare(*(counted_results(results_of(name)) for name in (a, b)), names=(a, b))
    if not found.tasks:
        raise InvalidInput(
            f"{a} and {b} have no task that both have scored; {'; '.join(left_out(found)) or 'both are empty'}"
        )
    if html is not None:
        try:
            write_private_whole(html, compare_page(found))
        except OSError as exc:
            raise InvalidInput(f"cannot write {html}: {exc.strerror}") from exc
    if as_json:
        differences = [{"task_id": pair.task_id, "difference": pair.difference} for pair in found.tasks]
        print_json({"comparison": found, "differences": differences})
        return
    _print(found, limit)
    if html is not None:
        echo(f"{html} is ready to open.")


def _print(found: Comparison, limit: int) -> None:
    console = wide_console()
    table = Table(title=f"{found.b} against {found.a}", title_justify="left", show_header=False)
    n = len(found.tasks)
    table.add_row("tasks", f"{n:,}, {n - len(found.differing):,} of them the same in both")
    table.add_row(f"mean of {found.a}", f"{found.mean_a:.3f}")
    table.add_row(f"mean of {found.b}", f"{found.mean_b:.3f}")
    table.add_row("difference", f"{estimate_text(found.difference)}, {p_text(found.p)} ({found.test})")
    table.add_row("better, worse, same", f"{found.n_better:,}, {found.n_worse:,}, {found.n_same:,}")
    console.print(table)
    for note in doubts(found):
        console.print(f"note: {note}")
    differing = [pair for pair in found.tasks if pair.difference]
    if not (differing and limit):
        return
    tasks = Table("task", title="Tasks that differ most", title_justify="left")
    for name in (found.a, found.b, "difference"):
        tasks.add_column(name, justify="right")
    for pair in differing[:limit]:
        style = "green" if pair.difference > 0 else "red"
        tasks.add_row(
            Text(pair.task_id), f"{pair.a:.3g}", f"{pair.b:.3g}", Text(f"{pair.difference:+.3g}", style=style)
        )
    console.print(tasks)
    if len(differing) > limit:
        console.print(f"… {len(differing) - limit:,} more; --limit {len(differing)} shows all")
