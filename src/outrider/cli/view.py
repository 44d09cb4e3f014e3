"""`outrider view`."""

from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

import click
from rich.table import Table
from rich.text import Text

from outrider.cli.console import Console, wide_console
from outrider.cli.options import json_option, opened, run
from outrider.cli.output import echo, print_json, visible
from outrider.core.attempt import Failure
from outrider.core.errors import InvalidInput
from outrider.core.rollout import Rollout
from outrider.core.status import RolloutStatus
from outrider.evaluate.artifacts import file_name, write_files
from outrider.evaluate.conversation import Conversation, Entry, EntryKind, is_result, read_conversation
from outrider.evaluate.markup import call_text, pretty_json, readable
from outrider.evaluate.page import write_page
from outrider.evaluate.plan import PLAN_FILE, load_identity
from outrider.evaluate.plot import count_text, seconds_text
from outrider.evaluate.results import ResultLine, name_of, read_result, task_id_of
from outrider.evaluate.runs import RunPlace, find_rollout, find_run, refuse_empty, run_rollouts
from outrider.evaluate.timeline import statistics_of
from outrider.orchestra.report import table
from outrider.store import Store, StoreUrl

TABLE_ROWS = 100
MAX_TEXT = 4_000
ANSWER_CHARACTERS = 60

ROLES = {"system": "dim", "user": "yellow", "assistant": "bold cyan", "tool": "green"}
STATUSES = {RolloutStatus.SUCCEEDED: "green", RolloutStatus.FAILED: "red", RolloutStatus.CANCELLED: "yellow"}


@click.command("view")
@click.argument("run_name", metavar="RUN")
@click.argument("rollout_id", metavar="[ROLLOUT]", required=False)
@click.option("--attempt", type=click.IntRange(min=1), metavar="N", help="This attempt instead of the latest.")
@click.option("--html", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Write a page to open.")
@click.option(
    "--artifacts",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Write pictures of steps and recordings into it.",
)
@click.option("--full", is_flag=True, help="Print long texts to their end.")
@click.option("--status", type=click.Choice([status.value for status in RolloutStatus]), help="List only these.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help=f"List at most N; {TABLE_ROWS} unless --json.")
@click.option("--store", "store_url", metavar="URL", type=StoreUrl, help="Look for the run of that name in this store.")
@json_option
def command(
    *,
    run_name: str,
    rollout_id: str | None,
    attempt: int | None,
    html: Path | None,
    artifacts: Path | None,
    full: bool,
    status: str | None,
    limit: int | None,
    store_url: StoreUrl | None,
    as_json: bool,
) -> None:
    """Show the rollouts of a run, or one of them as a conversation.

    RUN is the folder of a run, the file or URL of a store or, with --store, the name of a run in it. ROLLOUT is an id
    or how it begins, such as q7:0.
    """
    if attempt is not None and (rollout_id is None or html is not None or artifacts is not None):
        raise click.UsageError("--attempt goes with one ROLLOUT, printed")
    if sum((html is not None, artifacts is not None, as_json)) > 1:
        raise click.UsageError("give one of --html, --artifacts and --json")
    place = find_run(run_name, store_url=store_url)
    wanted = None if status is None else RolloutStatus(status)
    if html is not None:
        run(_write(place, rollout_id, html))
    elif artifacts is not None:
        run(_write_artifacts(place, rollout_id, wanted, artifacts))
    elif rollout_id is None:
        run(_list(place, wanted, limit, as_json=as_json))
    else:
        run(_converse(place, rollout_id, attempt, full=full, as_json=as_json))


async def _list(place: RunPlace, status: RolloutStatus | None, limit: int | None, *, as_json: bool) -> None:
    most = limit if limit is not None or as_json else TABLE_ROWS
    rows: list[ResultLine] = []
    n_found = 0
    async with opened(place.store_url, read_only=True) as store:
        await refuse_empty(store, place)
        async for rollout in run_rollouts(store, place.run, status=status):
            n_found += 1
            if most is None or len(rows) < most:
                rows.append(await read_result(store, rollout))
    if as_json:
        print_json(rows)
        return
    console = wide_console()
    console.print(_table(rows, plain=not console.is_terminal))
    if n_found > len(rows):
        console.print(f"… {n_found - len(rows):,} more; --limit {n_found} shows all", style="dim")
    if not rows:
        console.print(f"no rollout of {place.name} is {status}")


async def _converse(place: RunPlace, rollout_id: str, attempt: int | None, *, full: bool, as_json: bool) -> None:
    async with opened(place.store_url, read_only=True) as store:
        rollout = await _chosen(store, place, rollout_id)
        conversation = await read_conversation(store, rollout, attempt=attempt)
    if as_json:
        print_json(conversation)
    else:
        _Printer(wide_console(), max_text=None if full else MAX_TEXT).show(conversation)


async def _write(place: RunPlace, rollout_id: str | None, file: Path) -> None:
    async with opened(place.store_url, read_only=True) as store:
        await refuse_empty(store, place)
        only = None if rollout_id is None else await _chosen(store, place, rollout_id)
        try:
            left_out = await write_page(file, store, title=place.name, run=place.run, only=only, facts=_facts(place))
        except OSError as exc:
            raise InvalidInput(f"cannot write {file}: {exc.strerror}") from exc
    echo(f"{file} is ready to open. {left_out}".rstrip())


async def _write_artifacts(place: RunPlace, rollout_id: str | None, status: RolloutStatus | None, folder: Path) -> None:
    """Those of one rollout go into the folder, those of a run into one folder each."""
    n_files = 0
    async with opened(place.store_url, read_only=True) as store:
        await refuse_empty(store, place)
        try:
            if rollout_id is not None:
                n_files = await write_files(folder, store, await _chosen(store, place, rollout_id))
            else:
                async for rollout in run_rollouts(store, place.run, status=status):
                    own = folder / file_name(name_of(rollout.rollout_id, task_id_of(rollout))[1])
                    n_files += await write_files(own, store, rollout)
        except OSError as exc:
            raise InvalidInput(f"cannot write into {folder}: {exc.strerror}") from exc
    echo(f"{n_files} files written into {folder}")


async def _chosen(store: Store, place: RunPlace, rollout_id: str) -> Rollout:
    await refuse_empty(store, place)
    return await find_rollout(store, place.run, rollout_id)


def _facts(place: RunPlace) -> dict[str, str]:
    """What the run was begun with, where its folder still tells."""
    if place.folder is None or not (place.folder / PLAN_FILE).is_file():
        return {}
    settings = load_identity(place.folder / PLAN_FILE).settings
    return {name: value for name, value in settings.items() if isinstance(value, str)}


def _table(rows: Iterable[ResultLine], *, plain: bool) -> Table:
    table = Table(box=None, pad_edge=False) if plain else Table()
    for name in ("rollout", "task", "status"):
        table.add_column(name, overflow="fold")
    for name in ("reward", "turns", "tokens", "time"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("answer", no_wrap=True, overflow="ellipsis")
    for line in rows:
        answer = _answer(line)
        table.add_row(
            Text(visible(line.full_name)),
            Text(visible(line.task_id)),
            Text(line.status, style=STATUSES.get(line.status, "")),
            "" if line.reward is None else f"{line.reward:.3g}",
            str(line.n_turns),
            count_text(line.tokens),
            "" if line.seconds is None else seconds_text(line.seconds),
            Text(answer if len(answer) <= ANSWER_CHARACTERS else answer[: ANSWER_CHARACTERS - 1] + "…"),
        )
    return table


def _answer(line: ResultLine) -> str:
    if line.failure is not None:
        return visible(" ".join(f"{line.failure.boundary}: {line.failure.message}".split()))
    text = "" if line.output is None else line.output if isinstance(line.output, str) else readable(line.output)
    return visible(" ".join(text.split()))


class _Printer:
    """Prints one conversation."""

    def __init__(self, console: Console, *, max_text: int | None) -> None:
        self._console = console
        self._max_text = max_text

    def show(self, conversation: Conversation) -> None:
        self._header(conversation)
        for turn, entries in groupby(conversation.entries, key=lambda entry: entry.turn):
            held = list(entries)
            call = next((entry.call for entry in held if entry.call is not None), None)
            self._rule(f"turn {turn}" if turn else "opening", call_text(call) if call else "")
            for entry in held:
                if not is_result(entry):
                    self._entry(entry)
        self._team(conversation)
        self._end(conversation)

    def _header(self, conversation: Conversation) -> None:
        result, attempt = conversation.result, conversation.attempt
        reward = "no reward" if result.reward is None else f"reward {result.reward:g}"
        title = Text(visible(result.full_name), style="bold")
        title.append(f"  {result.status}", style=STATUSES.get(result.status, ""))
        self._console.print(title.append(f"  {reward}", style="bold"))
        facts = [
            f"task {visible(result.task_id)}",
            f"sample {result.sample}",
            *([f"tag {visible(result.tag)}"] if result.tag else []),
            *([f"seed {result.seed}"] if result.seed is not None else []),
            f"{result.n_turns} turns",
            f"{result.prompt_tokens:,} → {result.completion_tokens:,} tokens",
            *([seconds_text(result.seconds)] if result.seconds is not None else []),
        ]
        if attempt is not None:
            facts.append(
                f"attempt {attempt.sequence_id} of {len(conversation.attempts)} on {visible(attempt.worker_id)}"
            )
        self._line(" · ".join(facts), "dim")

    def _team(self, conversation: Conversation) -> None:
        if conversation.deeds:
            self._rule("where the time went", "")
            for row in table(statistics_of(conversation.deeds)).splitlines():
                self._line(f"  {row}")

    def _end(self, conversation: Conversation) -> None:
        result, attempt = conversation.result, conversation.attempt
        self._rule("end", result.stop_reason)
        for name, value in (("answer", result.output), ("expected", result.expected)):
            if value is not None:
                self._named(name, value if isinstance(value, str) else readable(value))
        if result.explanation:
            self._named("explanation", result.explanation)
        if result.metrics:
            self._named("metrics", "  ".join(f"{name} {value:.6g}" for name, value in result.metrics.items()))
        for earlier in conversation.attempts:
            if earlier is not attempt and earlier.failure is not None:
                self._failure(f"attempt {earlier.sequence_id} {earlier.status}", earlier.failure, trace=False)
        if attempt is not None and attempt.failure is not None:
            self._failure(attempt.status, attempt.failure, trace=True)

    def _failure(self, title: str, failure: Failure, *, trace: bool) -> None:
        where = f" in {failure.stage}" if failure.stage else ""
        self._line(f"{title}: {failure.boundary}: {failure.kind}{where}", "bold red")
        self._text(failure.message)
        if trace and failure.traceback:
            self._text(failure.traceback, "dim")

    def _entry(self, entry: Entry) -> None:
        if entry.message is not None:
            self._message(entry)
            return
        if (artifact := entry.artifact) is not None:
            self._file(artifact.name, artifact.media_type, artifact.data)
            return
        parts = [{EntryKind.TRIMMED: "✂", EntryKind.STEP: "step"}.get(entry.kind, entry.kind.value), entry.text]
        if entry.reward is not None:
            parts.append(f"reward {entry.reward:g}")
        if entry.data:
            parts.append(self._cut(readable(dict(entry.data))))
        self._line("  " + " ".join(filter(None, parts)), "magenta")

    def _message(self, entry: Entry) -> None:
        message = entry.message
        assert message is not None
        role = message.role.value
        took = "" if entry.seconds is None else f"  {seconds_text(entry.seconds)}"
        self._line(" ".join(filter(None, (role, entry.tool, entry.agent))) + took, ROLES[role])
        if message.reasoning:
            self._text(message.reasoning, "dim italic")
        if message.content:
            self._text(message.content)
        for image in message.images:
            self._file("picture", image.media_type, image.data)
        for call in message.tool_calls:
            self._text(f"→ {call.name} {pretty_json(call.arguments)}", "cyan")

    def _file(self, name: str, media_type: str, data: bytes) -> None:
        ways = "--html FILE shows it, --artifacts FOLDER writes it"
        self._text(f"[{name}: {media_type}, {len(data):,} bytes; {ways}]", "dim")

    def _named(self, name: str, text: str) -> None:
        self._line(name, "bold")
        self._text(text)

    def _rule(self, title: str, facts: str) -> None:
        self._console.print()
        text = Text(f"── {title} ", style="bold")
        self._console.print(text.append(visible(facts), style="dim"))

    def _text(self, text: str, style: str = "") -> None:
        for line in self._cut(text).replace("\r\n", "\n").rstrip("\n").split("\n"):
            self._console.print(Text(f"  {visible(line)}", style=style))

    def _line(self, text: str, style: str = "") -> None:
        self._console.print(Text(visible(text), style=style))

    def _cut(self, text: str) -> str:
        if self._max_text is None or len(text) <= self._max_text:
            return text
        return f"{text[: self._max_text]}\n… {len(text) - self._max_text:,} more characters; --full shows all"
