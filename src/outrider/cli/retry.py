"""`outrider retry`."""

import click
from msgspec.structs import replace

from outrider.cli.options import check_tag, json_option, known, opened, run, store_option, tag_option
from outrider.cli.output import echo, print_json
from outrider.core.crash_points import reached
from outrider.core.errors import InvalidInput
from outrider.core.ledger import LEDGER_KEY
from outrider.core.rollout import Rollout, RolloutRequest
from outrider.core.status import FINAL, RolloutStatus
from outrider.evaluate.plan import RUN_KEY
from outrider.evaluate.retries import next_retry
from outrider.store import Store, StoreUrl

PAGE = 500


@click.command("retry")
@click.argument("rollout_ids", nargs=-1, metavar="[ROLLOUT]...")
@click.option("--failed", is_flag=True, help="Every rollout that failed and was not retried yet.")
@tag_option
@store_option
@json_option
def command(*, rollout_ids: tuple[str, ...], failed: bool, tag: str | None, store_url: StoreUrl, as_json: bool) -> None:
    """Run ended rollouts again, as new ones.

    What has ended stays as it is; the new rollout has the id of the old one with ~1, ~2, … behind it and names it in
    its metadata as `retry_of`. Repeating the command adds nothing. Members of groups are left to their scheduler.
    In a run of `outrider run`, which `--resume` goes on with, a retry counts in the place of the sample it repeats.
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


async def retry_failed_of(store: Store, run: str, *, tag: str | None) -> tuple[Rollout, ...]:
    """Run the samples of a run again that have failed, were cancelled, or ended without a score."""
    chosen: list[Rollout] = []
    offset = 0
    while ended := (await store.query_rollouts(status_in=FINAL, tag=tag, limit=PAGE, offset=offset)).items:
        offset += len(ended)
        chosen += (
            rollout
            for rollout in ended
            if rollout.metadata.get(RUN_KEY) == run
            and (rollout.status is not RolloutStatus.SUCCEEDED or rollout.reward is None)
        )
    retries = await store.enqueue_many_rollouts(await _new_ones(store, tuple(chosen)))
    reached("run.retries_enqueued")
    return retries


async def _new_ones(store: Store, chosen: tuple[Rollout, ...]) -> list[RolloutRequest]:
    """Requests for those that have no retry in the store yet."""
    requests = {next_retry(rollout.rollout_id): rollout for rollout in chosen}
    existing = await store.query_rollouts(rollout_ids=tuple(requests))
    for rollout in existing:
        del requests[rollout.rollout_id]
    return [replace(_request(rollout), rollout_id=new_id) for new_id, rollout in requests.items()]


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
