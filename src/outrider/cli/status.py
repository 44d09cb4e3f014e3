"""`outrider status`."""

from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click
from rich.table import Table
from rich.text import Text

from outrider.cli.console import Console
from outrider.cli.diagnosis import diagnose
from outrider.cli.leases import is_running_here
from outrider.cli.options import check_tag, json_option, mode_option, opened, run, store_option, tag_option
from outrider.cli.output import print_json, visible
from outrider.core.status import RolloutStatus, WorkerStatus
from outrider.core.worker import Worker
from outrider.store import Statistics, Store, StoreUrl

if TYPE_CHECKING:
    from outrider.cli.ledgers import LedgerStatus

COLOURS = {RolloutStatus.SUCCEEDED: "green", RolloutStatus.FAILED: "red", RolloutStatus.CANCELLED: "yellow"}


@click.command("status")
@store_option
@tag_option
@mode_option
@json_option
def command(*, store_url: StoreUrl, tag: str | None, mode: str | None, as_json: bool) -> None:
    """Show rollouts by state, workers, what is stuck and why, and how far each trainer's ledger is."""
    run(_status(store_url, tag, mode, as_json=as_json))


async def _status(store_url: StoreUrl, tag: str | None, mode: str | None, *, as_json: bool) -> None:
    now = datetime.now(UTC)
    async with opened(store_url, read_only=True) as store:
        await check_tag(store, tag)
        statistics = await store.statistics()
        counts = await _counts(store, statistics, tag, mode)
        workers = (await store.query_workers()).items
        troubles = await diagnose(store, statistics, workers, now)
        ledgers = await _ledgers(store, now)
    if as_json:
        rollouts = {status: counts[status] for status in RolloutStatus}
        found = {"rollouts": rollouts, "workers": workers, "stuck": troubles, "ledgers": ledgers}
        print_json({"store": store_url, **found})
        return
    _print(store_url, counts, workers, troubles, now)
    for ledger in ledgers:
        ledger.print_to(Console())


async def _ledgers(store: Store, now: datetime) -> "list[LedgerStatus]":
    if not await store.query_ledgers():
        return []
    from outrider.cli.ledgers import ledgers_of  # noqa: PLC0415 training brings NumPy along, which most stores need not

    return await ledgers_of(store, now)


async def _counts(store: Store, statistics: Statistics, tag: str | None, mode: str | None) -> Counter[RolloutStatus]:
    if tag is None and mode is None:
        return Counter(statistics.rollouts)
    return Counter(
        {
            status: (await store.query_rollouts(status=status, tag=tag, mode=mode, limit=0)).total
            for status in RolloutStatus
        }
    )


def _print(
    store_url: StoreUrl, counts: Counter[RolloutStatus], workers: tuple[Worker, ...], troubles: list[str], now: datetime
) -> None:
    console = Console()
    table = Table(title=f"Rollouts in {store_url}", title_justify="left")
    for status in RolloutStatus:
        table.add_column(status, justify="right", style=COLOURS.get(status, ""))
    table.add_row(*(str(counts[status]) for status in RolloutStatus))
    console.print(table)
    here = tuple(worker for worker in workers if worker.status is not WorkerStatus.UNKNOWN or is_running_here(worker))
    if here:
        console.print(_workers_table(here, now))
    if len(here) < len(workers):
        console.print(f"{len(workers) - len(here)} workers were here before.")
    for trouble in troubles:
        console.print(Text.assemble(("• ", "yellow"), visible(trouble)), soft_wrap=True)
    if not troubles:
        console.print("Nothing is stuck.")


def _workers_table(workers: tuple[Worker, ...], now: datetime) -> Table:
    names = ("worker", "status", "leases", "busy for", "succeeded", "failed", "last seen")
    table = Table(*names, title="Workers", title_justify="left")
    for worker in workers:
        ago = f"{_seconds(worker.last_seen_at, now)} ago"
        busy = "" if worker.busy_since is None else _seconds(worker.busy_since, now)
        counts = (str(worker.n_succeeded), str(worker.n_failed))
        status = "silent" if worker.status is WorkerStatus.UNKNOWN else worker.status
        table.add_row(worker.worker_id, status, str(len(worker.attempt_ids)), busy, *counts, ago)
    return table


def _seconds(since: datetime, now: datetime) -> str:
    return f"{max((now - since).total_seconds(), 0.0):.0f} s"
