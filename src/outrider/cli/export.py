"""`outrider export`."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import click
import msgspec

from outrider.cli.options import check_tag, opened, run, store_option, tag_option
from outrider.cli.output import echo, json_text
from outrider.core.crash_points import reached
from outrider.core.errors import InvalidInput
from outrider.core.files import written_private_whole
from outrider.core.rollout import Rollout
from outrider.core.status import FINAL
from outrider.core.trajectory import Trajectory
from outrider.store import Store, StoreUrl

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
def command(*, output: Path | None, status: str | None, tag: str | None, store_url: StoreUrl) -> None:
    """Write finished rollouts with their events as JSON lines, in the order they ended.

    Each line is an object with `rollout`, `attempt` (the one that ended it) and `events`. A rollout that cannot be
    written is named and left out, and the exit code is 1. The file appears when it is complete.
    """
    n_written, n_left_out = run(_export(store_url, output, status, tag))
    rest = f", {n_left_out} left out" if n_left_out else ""
    echo(f"{n_written} rollouts exported{rest}", err=True)
    if n_left_out:
        sys.exit(1)


async def _export(store_url: StoreUrl, output: Path | None, status: str | None, tag: str | None) -> tuple[int, int]:
    """How many were written, and how many could not be."""
    n_written = n_left_out = cursor = 0
    async with opened(store_url, read_only=True) as store:
        await check_tag(store, tag)
        with _opened(output) as file:
            while (finished := await store.finished_after(cursor, limit=PAGE)).items:
                cursor = finished.cursor
                for rollout in finished.items:
                    if status not in (None, rollout.status) or tag not in (None, rollout.tag):
                        continue
                    try:
                        line = await _line(store, rollout)
                    except (InvalidInput, msgspec.MsgspecError) as exc:
                        n_left_out += 1
                        echo(f"{rollout.rollout_id} is left out: {exc}", err=True)
                    else:
                        n_written += 1
                        file.write(line)
            reached("export.written")
    return n_written, n_left_out


async def _line(store: Store, rollout: Rollout) -> str:
    attempt = await store.get_latest_attempt(rollout.rollout_id)
    events = await store.query_events(rollout.rollout_id)
    return json_text(Trajectory(rollout=rollout, attempt=attempt, events=events.items)) + "\n"


@contextmanager
def _opened(output: Path | None) -> Iterator[TextIO]:
    if output is None:
        yield sys.stdout
        return
    is_pipe = output.exists() and not output.is_file()
    try:
        with output.open("w", encoding="utf-8") if is_pipe else written_private_whole(output) as file:
            yield file
    except OSError as exc:
        raise InvalidInput(f"cannot write {output}: {exc.strerror}") from exc
