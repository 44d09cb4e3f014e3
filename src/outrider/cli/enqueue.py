"""`outrider enqueue`."""

from collections.abc import Iterator
from typing import Any

import click

from outrider.cli.options import json_option, opened, run, store_option
from outrider.cli.output import echo, print_json
from outrider.cli.tasks import read_tasks
from outrider.core.crash_points import reached
from outrider.core.errors import InvalidInput
from outrider.core.ids import new_id
from outrider.core.rollout import Rollout, RolloutConfig, RolloutRequest
from outrider.core.status import Mode
from outrider.store import StoreUrl

CHUNK = 10_000
"""Rollouts in one transaction: more would keep workers from renewing their leases."""

_DEFAULTS = RolloutConfig()


@click.command("enqueue")
@click.argument("file", required=False, metavar="[FILE]")
@click.option("--test", "n_test", type=click.IntRange(min=1), metavar="N", help="N test rollouts instead of a file.")
@store_option
@click.option("--id-field", metavar="NAME", help="Take rollout ids from this field; enqueueing again adds nothing.")
@click.option("--tag", help="Tag of the rollouts; workers can choose by it.")
@click.option(
    "--mode",
    type=click.Choice([mode.value for mode in Mode]),
    default=Mode.TRAIN.value,
    show_default=True,
    help="Purpose of the rollouts.",
)
@click.option("--priority", type=int, default=0, show_default=True, help="Higher is claimed first.")
@click.option("--seed", type=int, help="Seed for environment and agent.")
@click.option("--group", "group_id", help="Group of the rollouts.")
@click.option(
    "--max-attempts",
    type=click.IntRange(min=1),
    default=_DEFAULTS.max_attempts,
    show_default=True,
    help="Attempts in all, the first one counted.",
)
@click.option("--timeout", type=float, metavar="SECONDS", help="End an attempt after this long.")
@click.option(
    "--unresponsive",
    type=float,
    metavar="SECONDS",
    default=_DEFAULTS.unresponsive_seconds,
    show_default=True,
    help="Give a rollout to another worker after this long without a heartbeat.",
)
@json_option
def command(
    *,
    file: str | None,
    n_test: int | None,
    store_url: StoreUrl,
    id_field: str | None,
    max_attempts: int,
    timeout: float | None,
    unresponsive: float,
    as_json: bool,
    mode: str,
    **fields: Any,
) -> None:
    """Add rollouts to a store: one for each line of FILE (JSON lines, or one JSON list; - for standard input).

    The value on a line is what the agent gets as its task. If a line cannot be used, nothing is enqueued.
    """
    if (file is None) == (n_test is None):
        raise click.UsageError("give a FILE of tasks, or --test N for test rollouts")
    config = RolloutConfig(timeout_seconds=timeout, unresponsive_seconds=unresponsive, max_attempts=max_attempts)
    tasks = read_tasks(file) if file is not None else _test_tasks(n_test or 0)
    requests = [
        RolloutRequest(input=task, rollout_id=_id(task, id_field, place), config=config, mode=Mode(mode), **fields)
        for place, task in tasks
    ]
    _refuse_repeated_ids(requests, tasks)
    rollouts = run(_enqueue(store_url, requests))
    if as_json:
        print_json({"enqueued": len(rollouts), "rollout_ids": [rollout.rollout_id for rollout in rollouts]})
    else:
        echo(f"{len(rollouts)} rollouts are in {store_url}")


def _test_tasks(n: int) -> list[tuple[str, Any]]:
    return [(f"test rollout {i}", {"prompt": f"Task {i}", "task_id": i}) for i in range(1, n + 1)]


def _id(task: Any, id_field: str | None, place: str) -> str:
    if id_field is None:
        return new_id("ro")
    if not isinstance(task, dict) or id_field not in task:
        raise InvalidInput(f"{place} has no field {id_field!r}; nothing was enqueued")
    return str(task[id_field])


def _refuse_repeated_ids(requests: list[RolloutRequest], tasks: list[tuple[str, Any]]) -> None:
    places: dict[str | None, str] = {}
    for request, (place, _) in zip(requests, tasks, strict=True):
        if request.rollout_id in places:
            raise InvalidInput(
                f"{place} has the id {request.rollout_id!r} of {places[request.rollout_id]}; nothing was enqueued"
            )
        places[request.rollout_id] = place


async def _enqueue(store_url: StoreUrl, requests: list[RolloutRequest]) -> list[Rollout]:
    async with opened(store_url, create=True) as store:
        rollouts: list[Rollout] = []
        for chunk in _chunks(requests):
            rollouts += await store.enqueue_many_rollouts(chunk)
            reached("enqueue.chunk_enqueued")
            _show_progress(len(rollouts), len(requests))
        return rollouts


def _chunks(requests: list[RolloutRequest]) -> Iterator[list[RolloutRequest]]:
    for start in range(0, len(requests), CHUNK):
        yield requests[start : start + CHUNK]


def _show_progress(done: int, total: int) -> None:
    if total > CHUNK:
        echo(f"\r{done:,} of {total:,} enqueued", nl=done == total, err=True)
