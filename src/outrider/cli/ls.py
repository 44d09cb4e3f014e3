"""`outrider ls`."""

import fcntl
import os
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

import click
from msgspec import Struct
from rich.box import HEAVY_HEAD
from rich.table import Table
from rich.text import Text

from outrider.cli.console import wide_console
from outrider.cli.options import json_option
from outrider.cli.output import print_json
from outrider.core.errors import InvalidInput
from outrider.evaluate.plan import PLAN_FILE, load_identity
from outrider.evaluate.results_file import count_results
from outrider.evaluate.runs import RESULTS_FILE, RESULTS_FOLDER, SETTINGS_FILE, STEPS_FILE
from outrider.evaluate.summary import Scoreboard


class RunState(StrEnum):
    """Where a run stands."""

    RUNNING = "running"
    DONE = "done"
    STOPPED = "stopped"
    UNREADABLE = "unreadable"


class ListedRun(Struct, frozen=True, kw_only=True):
    """A run in the output folder. `n_done` of `n_planned` are rollouts, or the steps of a training run."""

    name: str
    command: str
    state: RunState
    mode: str = ""
    model: str = ""
    n_done: int = 0
    n_planned: int = 0
    mean_reward: float | None = None
    changed_at: datetime
    trouble: str | None = None


@click.command("ls")
@click.option("--output-dir", default=RESULTS_FOLDER, show_default=True, help="Where runs are kept.")
@json_option
def command(*, output_dir: str, as_json: bool) -> None:
    """List the runs of `outrider run` and `outrider rollout`, the newest first."""
    runs = listed_runs(Path(output_dir))
    if as_json:
        print_json(runs)
        return
    console = wide_console()
    if not runs:
        console.print(f"{output_dir} holds no run; `outrider run` makes one")
        return
    table = Table("run", "what", "state", box=HEAVY_HEAD if console.is_terminal else None)
    for name in ("done", "mean reward"):
        table.add_column(name, justify="right")
    table.add_column("last change (UTC)")
    for one in runs:
        what = " ".join(filter(None, (one.command, one.mode, one.model)))
        unit = "" if one.command == "run" else " steps"
        mean = "" if one.mean_reward is None else f"{one.mean_reward:.3f}"
        done = f"{one.n_done:,} of {one.n_planned:,}{unit}"
        table.add_row(Text(one.name), Text(what), one.state, done, mean, f"{one.changed_at:%Y-%m-%d %H:%M:%S}")
    console.print(table)
    for one in runs:
        if one.trouble is not None:
            console.print(f"{one.name}: {one.trouble}", soft_wrap=True)


def listed_runs(output_dir: Path) -> list[ListedRun]:
    """The runs in a folder. What cannot be read of one is said with it."""
    kinds = ((PLAN_FILE, "run"), (SETTINGS_FILE, "rollout"))
    found = [_listed(file.parent, kind) for name, kind in kinds for file in output_dir.glob(f"*/{name}")]
    return sorted(found, key=lambda one: one.changed_at, reverse=True)


def _listed(folder: Path, kind: str) -> ListedRun:
    try:
        return _run(folder) if kind == "run" else _rollout(folder)
    except InvalidInput as exc:
        changed_at = _changed_at(folder)
        return ListedRun(
            name=folder.name, command=kind, state=RunState.UNREADABLE, changed_at=changed_at, trouble=str(exc)
        )


def _run(folder: Path) -> ListedRun:
    plan = load_identity(folder / PLAN_FILE)
    board = Scoreboard(samples_per_task=plan.samples_per_task)
    results = folder / RESULTS_FILE
    is_running = results.exists() and _is_locked(results)
    if results.exists():
        count_results(results, board)
    n_planned = plan.n_tasks * plan.samples_per_task
    done = RunState.DONE if board.n >= n_planned else RunState.STOPPED
    return ListedRun(
        name=folder.name,
        command="run",
        state=RunState.RUNNING if is_running else done,
        mode=str(plan.settings.get("mode", "")),
        model=str(plan.settings.get("model", "")),
        n_done=board.n,
        n_planned=n_planned,
        mean_reward=board.mean_reward,
        changed_at=_changed_at(results if results.exists() else folder),
    )


def _rollout(folder: Path) -> ListedRun:
    from outrider.cli.rollout_config import read_settings  # noqa: PLC0415 needs an extra, which only trainers have

    settings = read_settings(folder / SETTINGS_FILE)
    steps = folder / STEPS_FILE
    n_done = len(steps.read_bytes().splitlines()) if steps.exists() else 0
    done = RunState.DONE if n_done >= settings.steps else RunState.STOPPED
    return ListedRun(
        name=folder.name,
        command="rollout",
        state=RunState.RUNNING if _is_locked(folder) else done,
        mode=", ".join(settings.tags),
        model=settings.model,
        n_done=n_done,
        n_planned=settings.steps,
        changed_at=_changed_at(steps if steps.exists() else folder),
    )


def _is_locked(path: Path) -> bool:
    """Whether a process writes to it, or into it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def _changed_at(path: Path) -> datetime:
    return datetime.fromtimestamp(path.stat().st_mtime, UTC)
