"""`outrider rollout`."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from outrider.cli.exit_code import NO_FAIL_FAST, allow_failures_option, exit_code
from outrider.cli.keys import PASS_ENV, without_keys
from outrider.cli.options import cpus_option, json_option, ray_option, run
from outrider.cli.output import outlive_readers, print_json
from outrider.cli.run_options import BORROWED, Option, SectionedCommand, given_machines
from outrider.core.errors import InvalidInput


def _setting(flag: str, kind: Any, text: str, **attributes: Any) -> Option:
    """A flag for one setting; its default stands in `RolloutSettings`, so that the file can give it too."""
    return click.option(flag, type=kind, default=None, help=text, **attributes)


_SECTIONS: Mapping[str, tuple[Option, ...]] = {
    "Training": (
        _setting("--steps", int, "Batches to train on, counted from the beginning of the run.  [default: 20]"),
        _setting(
            "--model", str, "Model of the server, or builtin:random, builtin:solver, ….  [default: builtin:random]"
        ),
        _setting("--pass-env", str, PASS_ENV, multiple=True, metavar="NAME"),
        _setting("--train-seconds", float, "How long the stand-in trainer trains on a batch.", metavar="SECONDS"),
        _setting("--sync-seconds", float, "Time that the servers take to load a new version.", metavar="SECONDS"),
        _setting("--validate-every", int, "Validate every STEPS steps.", metavar="STEPS"),
    ),
    "How": (
        _setting(
            "--workers",
            int,
            "Number of workers, each a process; one with built-in agent and environments is in this process.  "
            "[default: 1; with --ray one per node]",
        ),
        ray_option,
        cpus_option,
        _setting(
            "--max-block",
            float,
            "Replace a worker process that an agent blocks this long.  [default: 15]",
            metavar="SECONDS",
        ),
        click.option("--no-fail-fast", "fail_fast", flag_value=False, default=None, help=NO_FAIL_FAST),
        _setting("--store", str, "Store to use instead of one in the run's folder.", metavar="URL"),
        _setting("--output-dir", str, "Folder that runs are kept in.  [default: results]"),
        _setting("--name", str, "Name of the run; made up from tag, model and time otherwise."),
    ),
    "Machines (tags of osworld; of py, web and your own if asked for)": BORROWED,
}


@click.command("rollout", cls=SectionedCommand, sections=_SECTIONS)
@click.option(
    "-c", "--config", "config_file", metavar="FILE.yaml", help="Settings of the scheduler, the model and the agent."
)
@click.option(
    "--set", "changes", multiple=True, metavar="NAME=VALUE", help="Override a setting of the file, such as seed=1."
)
@click.option("--timeline", metavar="FILE.html", help="Write a page that shows what each slot did when.")
@click.option(
    "--resume",
    is_flag=False,
    flag_value="",
    metavar="[RUN]",
    help="Continue a run: the newest (with -c, the newest with those settings), or the one named.",
)
@click.option("--dry-run", is_flag=True, help="Check everything, print the settings as JSON, run nothing.")
@allow_failures_option
@json_option
def command(
    *,
    config_file: str | None,
    changes: tuple[str, ...],
    timeline: str | None,
    resume: str | None,
    dry_run: bool,
    allow_failures: bool,
    as_json: bool,
    **flags: Any,
) -> None:
    """Run the rollouts of a training run, batch by batch, with a trainer that stands in for a real one.

    Needs the extra `train`.

    \b
      outrider rollout -c frozen_lake.yaml --steps 20
      outrider rollout -c frozen_lake.yaml --workers 4 --train-seconds 2 --timeline slots.html
      outrider rollout -c desktops.yaml --use-vm-pool --num-vms 3

    The file holds the settings of the scheduler (train_env_manager, val_env_manager, custom_envs, rollout_batch_size,
    async_generation_ratio, max_staleness, filters, …), the model and the agent (model, base_urls, agent, temperature,
    max_turns), and all that the flags here set. The time that a rollout waits for a machine does not count as its own.
    After Ctrl-C or a crash, --resume continues.

    Exit codes: 0 all steps done, 1 some rollouts failed for good or no token was in the loss (--allow-failures
    forgives that), 2 bad input, 3 stopped early.
    """  # noqa: D301 click reads this character as "keep the lines"
    from outrider.cli.rollout_job import dry_run_job, run_job, settled  # noqa: PLC0415 --help needs none of it
    from outrider.cli.rollout_setup import episode_spec  # noqa: PLC0415
    from outrider.cli.rollout_summary import print_outcome  # noqa: PLC0415
    from outrider.runner.keys import key_names  # noqa: PLC0415

    if config_file is None and resume is None:
        raise InvalidInput("give the settings with -c FILE.yaml, or go on with a run by --resume")
    config = None if config_file is None else Path(config_file)
    settings, folder = settled(config, changes, given_machines(flags), resume)
    alone = without_keys(key_names(episode_spec(settings)), settings.pass_env, ray=settings.ray)
    if dry_run:
        with alone:
            tasks = run(dry_run_job(settings))
        print_json({"settings": settings, "tasks": {tag: len(found) for tag, found in tasks.items()}})
        return
    outlive_readers()
    with alone:
        outcome = run(run_job(settings, folder, timeline=_page_path(timeline), as_json=as_json))
    if as_json:
        print_json({"kind": "end", **_fields(outcome)})
    else:
        print_outcome(outcome)
    n_missing = outcome.n_failed + (outcome.as_text > 0 and not outcome.in_loss)
    sys.exit(exit_code(is_complete=outcome.complete, n_missing=n_missing, allows_failures=allow_failures))


def _page_path(timeline: str | None) -> Path | None:
    if timeline is not None and not Path(timeline).absolute().parent.is_dir():
        raise InvalidInput(f"there is no folder {Path(timeline).parent} for the timeline; make it, or name another")
    return None if timeline is None else Path(timeline)


def _fields(outcome: Any) -> dict[str, Any]:
    from msgspec import to_builtins  # noqa: PLC0415

    fields: dict[str, Any] = to_builtins(outcome)
    return fields
