"""`outrider show`."""

import click
from rich.table import Table
from rich.text import Text

from outrider.cli.console import Console
from outrider.cli.options import json_option, known, opened, run, store_option
from outrider.cli.output import print_json
from outrider.core.attempt import Attempt, Failure
from outrider.core.event import RecordedEvent
from outrider.core.page import Page
from outrider.core.rollout import Rollout
from outrider.store import StoreUrl

DATA_CHARACTERS = 300


@click.command("show")
@click.argument("rollout_id", metavar="ROLLOUT")
@store_option
@click.option("--attempt", "attempt_id", help="Events of this attempt instead of the latest.")
@click.option(
    "--events",
    "n_events",
    type=click.IntRange(min=0),
    default=50,
    show_default=True,
    help="Show at most this many events.",
)
@json_option
def command(*, rollout_id: str, store_url: StoreUrl, attempt_id: str | None, n_events: int, as_json: bool) -> None:
    """Show one rollout: attempts, workers, events, errors."""
    run(_show(rollout_id, store_url, attempt_id, n_events, as_json=as_json))


async def _show(rollout_id: str, store_url: StoreUrl, attempt_id: str | None, n_events: int, *, as_json: bool) -> None:
    async with opened(store_url, read_only=True) as store:
        (rollout,) = await known(store, (rollout_id,))
        attempts = (await store.query_attempts(rollout_id)).items
        events = await store.query_events(rollout_id, attempt_id=attempt_id, limit=n_events)
    if as_json:
        print_json({"rollout": rollout, "attempts": attempts, "events": events.items, "n_events": events.total})
    else:
        _print(rollout, attempts, events)


def _print(rollout: Rollout, attempts: tuple[Attempt, ...], events: Page[RecordedEvent]) -> None:
    console = Console()
    facts = Table(title=f"Rollout {rollout.rollout_id}", title_justify="left", show_header=False)
    names = ("status", "input", "reward", "mode", "tag", "seed", "group_id", "priority", "enqueued_at", "ended_at")
    for name in (*names, "resources_version"):
        value = getattr(rollout, name)
        if value is not None:
            facts.add_row(name, _short(value))
    if rollout.is_set_aside:
        facts.add_row("set aside", "it was in a worker that died, and waits to run alone")
    console.print(facts)
    if attempts:
        _print_attempts(console, attempts)
    for event in events:
        when = event.at.strftime("%H:%M:%S.%f")[:-3]
        console.print(f"{event.index:4} {when} {event.kind:8} {event.name} {_short(dict(event.data) or '')}")
    if events.total > len(events):
        console.print(f"… {events.total - len(events)} more events; --events {events.total} shows all")
    for attempt in attempts:
        if attempt.failure is not None:
            _print_failure(console, f"attempt {attempt.sequence_id}", attempt.failure)
    if rollout.failure is not None and all(attempt.failure != rollout.failure for attempt in attempts):
        _print_failure(console, "the rollout", rollout.failure)


def _print_failure(console: Console, what: str, failure: Failure) -> None:
    """The whole of it: elsewhere there is room for its first line only."""
    where = f" in {failure.stage}" if failure.stage else ""
    console.rule(f"{what} failed{where}: {failure.boundary}", align="left")
    console.print(failure.message, soft_wrap=True)
    if failure.traceback:
        console.print(failure.traceback.rstrip(), soft_wrap=True)


def _print_attempts(console: Console, attempts: tuple[Attempt, ...]) -> None:
    console.print(_attempts_table(attempts))
    for attempt in attempts:
        if attempt.metadata:
            console.print(f"attempt {attempt.sequence_id} has noted {_short(dict(attempt.metadata))}", soft_wrap=True)


def _attempts_table(attempts: tuple[Attempt, ...]) -> Table:
    table = Table(title="Attempts", title_justify="left")
    has_resources = any(attempt.resources_version is not None for attempt in attempts)
    for name in ("#", "attempt", "worker", "status", "seconds", "reward", "failure", *["resources"] * has_resources):
        table.add_column(name, overflow="fold")
    for attempt in attempts:
        seconds = "" if attempt.ended_at is None else f"{(attempt.ended_at - attempt.started_at).total_seconds():.3f}"
        failure = "" if attempt.failure is None else f"{attempt.failure.boundary}: {attempt.failure.kind}"
        reward = "" if attempt.reward is None else f"{attempt.reward:g}"
        row = (attempt.sequence_id, attempt.attempt_id, attempt.worker_id, attempt.status, seconds, reward, failure)
        resources = (attempt.resources_version or "",) if has_resources else ()
        table.add_row(*(Text(str(cell)) for cell in (*row, *resources)))
    return table


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= DATA_CHARACTERS else text[:DATA_CHARACTERS] + "…"
