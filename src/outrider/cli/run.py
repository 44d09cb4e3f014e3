"""`outrider run`."""

import sys
from collections.abc import Callable, Mapping
from typing import Any

import click

from outrider.cli.options import json_option, print_json, run
from outrider.cli.run_config import RunConfig, env_setting, read_config

_DEFAULTS = RunConfig()


def _setting(name: str, kind: Any, text: str, **attributes: Any) -> Callable[[Any], Any]:
    """A flag for one setting. Its default stands in `RunConfig`, so that a configuration file can give it too."""
    default = getattr(_DEFAULTS, name)
    shown = "" if default in (None, (), "", False) else f"  [default: {default}]"
    flag = f"--{name.replace('_', '-')}"
    return click.option(flag, name, type=kind, default=None, help=text + shown, **attributes)


def _flag(name: str, text: str) -> Callable[[Any], Any]:
    return click.option(f"--{name.replace('_', '-')}", name, is_flag=True, default=None, help=text)


_SECTIONS: Mapping[str, tuple[Callable[[Any], Any], ...]] = {
    "What to run": (
        _setting("mode", str, "Environment: math, py, rag, web, osworld, a game such as FrozenLake, or module:Class."),
        _setting("data", str, "Benchmark file: JSONL, JSON, CSV, Parquet, hf:NAME. Without it: the bundled tasks."),
        _setting("limit", int, "Only the first so many tasks."),
        _setting("samples_per_task", int, "Rollouts per task; gives pass@k."),
        _setting("seed", int, "Seeds of all rollouts derive from it."),
        _setting("agent", str, "chat, react, or module:function."),
        _setting("max_turns", int, "Model calls per rollout."),
        _setting("scorer", str, "exact_match, f1, contains, numeric, math, similarity, python, judge."),
        click.option("--env", "env", multiple=True, metavar="NAME=VALUE", help="A setting of the environment."),
    ),
    "Model": (
        _setting(
            "model", str, "Model of the server, or builtin:solver, builtin:random, builtin:noisy?p=0.3, replay:FILE."
        ),
        _setting("base_url", str, "OpenAI-compatible endpoint; several may be given. [OPENAI_BASE_URL]", multiple=True),
        _setting("temperature", float, "Sampling temperature."),
        _setting("top_p", float, "Sampling top-p."),
        _setting("max_tokens", int, "Tokens per model call."),
        _setting("max_context_tokens", int, "Trim the conversation to about so many tokens."),
        _setting("max_retries", int, "Tries after the first, per model call."),
        _flag("logprobs", "Ask for token ids and log-probabilities."),
        _flag("stream", "Stream completions."),
        _setting("record", str, "Record every model call to this file; --model replay:FILE plays it back."),
    ),
    "How": (
        _setting("num_rollouts", int, "Rollouts that run at once."),
        _setting("workers", int, "Processes the rollouts are spread over; 1: this one."),
        _setting("timeout", float, "Seconds per attempt.", metavar="SECONDS"),
        _setting("max_attempts", int, "Attempts per rollout when something around it fails."),
        _setting("output_dir", str, "Where runs are kept."),
        _setting("name", str, "Name of the run; made up from mode, model and time otherwise."),
        _setting("store", str, "Store to use instead of one in the run's folder.", metavar="URL"),
    ),
    "Budget": (
        _setting("budget_tokens", int, "Stop after so many tokens."),
        _setting("budget_money", float, "Stop after so much money; needs the prices."),
        _setting("budget_seconds", float, "Stop after so much time."),
        _setting("prompt_price", float, "Money per million prompt tokens."),
        _setting("completion_price", float, "Money per million completion tokens."),
    ),
    "Machines (mode osworld)": (
        _flag("use_vm_pool", "Share a pool of machines."),
        _setting("num_vms", int, "Machines in the pool."),
        _setting("path_to_vm", str, "Image of the machine."),
        _setting("provider_name", str, "vmware, virtualbox, aws, …."),
        _setting("action_space", click.Choice(["computer_13", "pyautogui"]), "How actions are written."),
        _setting("screen_width", int, "Pixels."),
        _setting("screen_height", int, "Pixels."),
        _flag("headless", "Machines without a window."),
        _setting("snapshot_name", str, "Snapshot that machines are reset to."),
        _setting("client_password", str, "Password of the user in the machine."),
    ),
}


class _SectionedCommand(click.Command):
    """Shows its many options under headings."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        options = {param.name: param.get_help_record(ctx) for param in self.get_params(ctx)}
        for title, settings in _SECTIONS.items():
            names = [name for name in (_name_of(setting) for setting in settings) if name in options]
            with formatter.section(title):
                formatter.write_dl([record for name in names if (record := options.pop(name))])
        with formatter.section("Options"):
            formatter.write_dl([record for record in options.values() if record])


def _name_of(setting: Callable[[Any], Any]) -> str | None:
    """The name of the option that a decorator adds."""
    (option,) = setting(lambda: None).__click_params__
    name: str | None = option.name
    return name


def _with_settings(function: Callable[..., Any]) -> Callable[..., Any]:
    for setting in reversed([setting for settings in _SECTIONS.values() for setting in settings]):
        function = setting(function)
    return function


@click.command("run", cls=_SectionedCommand)
@_with_settings
@click.option("--config", "config_file", metavar="FILE.yaml", help="Settings from a file; flags go over them.")
@click.option(
    "--resume",
    is_flag=False,
    flag_value="",
    metavar="[RUN]",
    help="Go on with a run: the newest of these tasks and this model, or the one named.",
)
@click.option("--dry-run", is_flag=True, help="Check everything, print the settings as JSON, run nothing.")
@json_option
def command(
    *, config_file: str | None, resume: str | None, dry_run: bool, as_json: bool, env: tuple[str, ...], **flags: Any
) -> None:
    """Run agents on the tasks of a benchmark, many at once, and score them.

    \b
      outrider run --mode math --model builtin:solver
      outrider run --mode math --data tasks.jsonl --num-rollouts 10 --model gpt-4.1-2025-04-14

    Results are kept in OUTPUT_DIR/RUN: results.jsonl grows as rollouts end, summary.md and page.html come at the end.
    Ctrl-C drains; the same command with --resume goes on where it stopped.
    """  # noqa: D301 click reads this character as "keep the lines"
    from outrider.cli.run_job import check_job, run_job  # noqa: PLC0415 --help needs none of it
    from outrider.cli.run_summary import print_outcome  # noqa: PLC0415

    given = {name: value for name, value in flags.items() if value not in (None, ())}
    config = read_config(config_file, {**given, "env": dict(env_setting(text) for text in env)})
    if dry_run:
        tasks = run(check_job(config))
        print_json({"config": config, "tasks": len(tasks)})
        return
    outcome = run(run_job(config, resume=resume, as_json=as_json))
    if as_json:
        print_json(outcome)
    else:
        print_outcome(outcome)
    if not outcome.complete:
        sys.exit(1)
