"""`outrider cancel`."""

import click

from outrider.cli.options import check_tag, json_option, known, opened, run, store_option, tag_option
from outrider.cli.output import echo, print_json
from outrider.core.status import LIVE, QUEUED
from outrider.store import StoreUrl


@click.command("cancel")
@click.argument("rollout_ids", nargs=-1, metavar="[ROLLOUT]...")
@click.option("--all", "everything", is_flag=True, help="All that have not ended.")
@tag_option
@store_option
@json_option
def command(
    *, rollout_ids: tuple[str, ...], everything: bool, tag: str | None, store_url: StoreUrl, as_json: bool
) -> None:
    """Cancel rollouts, down to their running attempts. Rollouts that have ended stay as they are."""
    if bool(rollout_ids) == bool(everything or tag):
        raise click.UsageError("name rollouts, or give --all or --tag")
    cancelled = run(_cancel(store_url, rollout_ids, tag))
    if as_json:
        print_json({"cancelled": cancelled})
    else:
        echo(f"{len(cancelled)} rollouts cancelled")


async def _cancel(store_url: StoreUrl, rollout_ids: tuple[str, ...], tag: str | None) -> tuple[str, ...]:
    async with opened(store_url) as store:
        await check_tag(store, tag)
        if rollout_ids:
            await known(store, rollout_ids)
        else:
            open_ones = await store.query_rollouts(status_in=QUEUED | LIVE, tag=tag)
            rollout_ids = tuple(rollout.rollout_id for rollout in open_ones)
        return await store.cancel_rollouts(rollout_ids)
