"""`outrider export`."""

import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TextIO

import click

from outrider.cli.options import check_tag, opened, run, store_option, tag_option
from outrider.core import wire
from outrider.core.errors import InvalidInput
from outrider.core.rollout import Rollout
from outrider.core.status import FINAL
from outrider.core.trajectory import Trajectory
from outrider.store import Store

PAGE = 200


@click.command("export")
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="File; standard output if absent."
)
@click.option(
    "--status", type=click.Choice(sorted(status.value for status in FINAL)), help="Only rollouts that ended so."
)
@tag_option
@store_option
def command(*, output: Path | None, status: str | None, tag: str | None, store_url: str) -> None:
    """Write finished rollouts with their events as JSON lines, in the order they ended.

    Each line is an object with `rollout`, `attempt` (the one that ended it) and `events`.
    """
    n_written = run(_export(store_url, output, status, tag))
    click.echo(f"{n_written} rollouts exported", err=True)


async def _export(store_url: str, output: Path | None, status: str | None, tag: str | None) -> int:
    n_written = cursor = 0
    async with opened(store_url, read_only=True) as store:
        await check_tag(store, tag)
        with _opened(output) as file:
            while (finished := await store.finished_after(cursor, limit=PAGE)).items:
                cursor = finished.cursor
                for rollout in finished.items:
                    if status in (None, rollout.status) and tag in (None, rollout.tag):
                        file.write(wire.to_json(await _trajectory(store, rollout)) + "\n")
                        n_written += 1
    return n_written


async def _trajectory(store: Store, rollout: Rollout) -> Trajectory:
    attempt = await store.get_latest_attempt(rollout.rollout_id)
    events = await store.query_events(rollout.rollout_id)
    return Trajectory(rollout=rollout, attempt=attempt, events=events.items)


def _opened(output: Path | None) -> AbstractContextManager[TextIO]:
    if output is None:
        return nullcontext(sys.stdout)
    try:
        return output.open("w", encoding="utf-8")
    except OSError as exc:
        raise InvalidInput(f"cannot write {output}: {exc.strerror}") from exc
