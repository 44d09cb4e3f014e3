"""`outrider retry`."""

import re

import click
from msgspec.structs import replace

from outrider.cli.console import echo, print_json
from outrider.cli.options import check_tag, json_option, known, opened, run, store_option, tag_option
from outrider.core.errors import InvalidInput
from outrider.core.ledger import LEDGER_KEY
from outrider.core.rollout import Rollout, RolloutRequest
from outrider.core.status import RolloutStatus
from outrider.store import Store, StoreUrl

_RETRY = re.compile(r"^(?P<first>.*)~(?P<number>\d+)$")


@click.command("retry")
@click.argument("rollout_ids", nargs=-1, metavar="[ROLLOUT]...")
@click.option("--failed", is_flag=True, help="All that failed and were not retried yet.")
@tag_option
@store_option
@json_option
def command(*, rollout_ids: tuple[str, ...], failed: bool, tag: str | None, store_url: StoreUrl, as_json: bool) -> None:
    """Run ended rollouts again, as new ones.

    What has ended stays as it is; the new rollout has the id of the old one with ~1, ~2, … behind it and names it in
    its metadata as `retry_of`. Repeating the command adds nothing. Members of groups are left to their scheduler.
    """
    if bool(rollout_ids) == failed:
        raise click.UsageError("name rollouts, or give --failed")
    retries = run(_retry(store_url, rollout_ids, tag))
    if as_json:
        print_json({"enqueued": len(retries), "rollout_ids": [retry.rollout_id for retry in retries]})
    else:
        echo(f"{len(retries)} rollouts enqueued again")


async def _retry(store_url: StoreUrl, rollout_ids: tuple[str, ...], tag: str | None) -> tuple[Rollout, ...]:
    async with opened(store_url) as store:
        await check_tag(store, tag)
        if rollout_ids:
            chosen = await known(store, rollout_ids)
        else:
            failed = await store.query_rollouts(status=RolloutStatus.FAILED, tag=tag)
            chosen = tuple(rollout for rollout in failed if LEDGER_KEY not in rollout.metadata)
        for rollout in chosen:
            if ledger := rollout.metadata.get(LEDGER_KEY):
                raise InvalidInput(
                    f"{rollout.rollout_id} belongs to a group of ledger {ledger!r}, whose scheduler decides what is "
                    "run again"
                )
            if not rollout.status.is_final:
                raise InvalidInput(f"{rollout.rollout_id} is {rollout.status}; only an ended rollout can be retried")
        return await store.enqueue_many_rollouts(await _new_ones(store, chosen))


async def _new_ones(store: Store, chosen: tuple[Rollout, ...]) -> list[RolloutRequest]:
    """Requests for those that have no retry in the store yet."""
    requests = {_next_id(rollout.rollout_id): rollout for rollout in chosen}
    existing = await store.query_rollouts(rollout_ids=tuple(requests))
    for rollout in existing:
        del requests[rollout.rollout_id]
    return [replace(_request(rollout), rollout_id=new_id) for new_id, rollout in requests.items()]


def _next_id(rollout_id: str) -> str:
    if match := _RETRY.match(rollout_id):
        return f"{match['first']}~{int(match['number']) + 1}"
    return f"{rollout_id}~1"


def _request(rollout: Rollout) -> RolloutRequest:
    return RolloutRequest(
        input=rollout.input,
        mode=rollout.mode,
        tag=rollout.tag,
        seed=rollout.seed,
        group_id=rollout.group_id,
        priority=rollout.priority,
        config=rollout.config,
        metadata={**rollout.metadata, "retry_of": rollout.rollout_id},
    )
