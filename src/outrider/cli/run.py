"""`outrider run`."""

import sys
from collections.abc import Mapping
from typing import Any

import click

from outrider.cli.console import print_json
from outrider.cli.options import cpus_option, json_option, ray_option, run
from outrider.cli.run_config import read_config
from outrider.cli.run_options import BORROWED, Option, SectionedCommand, flag, given_settings, mapping, setting

_SECTIONS: Mapping[str, tuple[Option, ...]] = {
    "What to run": (
        setting("mode", str, "Environment: math, py, rag, web, osworld, a game such as FrozenLake, or module:Class."),
        setting("data", str, "Benchmark file: JSONL, JSON, CSV, Parquet, hf:NAME. Without it: the bundled tasks."),
        setting("limit", int, "Only the first so many tasks."),
        setting("samples_per_task", int, "Rollouts per task; gives pass@k."),
        setting("seed", int, "Seeds of all rollouts derive from it."),
        setting(
            "agent",
            str,
            "chat, react, module:function, or a team: team:search-critic, team:router, team:solver-verifier, "
            "team:planner-actor, team:debate, team:proposer-solver, team:module:function.",
        ),
        mapping("team", "A setting of the team, such as max_rounds=2."),
        setting("max_turns", int, "Model calls per rollout."),
        setting("scorer", str, "exact_match, f1, contains, numeric, math, similarity, python, judge."),
        mapping("env", "A setting of the environment."),
    ),
    "Model": (
        setting(
            "model", str, "Model of the server, or builtin:solver, builtin:random, builtin:noisy?p=0.3, replay:FILE."
        ),
        setting("base_url", str, "OpenAI-compatible endpoint; several may be given. [OPENAI_BASE_URL]", multiple=True),
        setting(
            "api_key_env",
            str,
            "Variable that holds the key: one for all --base-url, or one for each; none: no key.  "
            "[default: OPENAI_API_KEY, to OpenAI or the only --base-url]",
            multiple=True,
            metavar="NAME",
        ),
        click.option(
            "--policy", "policies", multiple=True, metavar="NAME=MODEL", help="A further policy, for agents of a team."
        ),
        setting("temperature", float, "Sampling temperature."),
        setting("top_p", float, "Sampling top-p."),
        setting("max_tokens", int, "Tokens per model call."),
        setting("max_context_tokens", int, "Trim the conversation to about so many tokens."),
        setting("max_retries", int, "Tries after the first, per model call."),
        flag("logprobs", "Ask for token ids and log-probabilities."),
        flag("stream", "Stream completions."),
        setting("record", str, "Record every model call to this file; --model replay:FILE plays it back."),
    ),
    "How": (
        setting("num_rollouts", int, "Rollouts that run at once."),
        setting(
            "workers",
            int,
            "Processes the rollouts are spread over; 1: this one.  [default: 1; with --ray one per node]",
        ),
        ray_option,
        cpus_option,
        setting("timeout", float, "Seconds per attempt.", metavar="SECONDS"),
        setting("max_block", float, "Replace a worker process that an agent blocks this long.", metavar="SECONDS"),
        setting("max_attempts", int, "Attempts per rollout when something around it fails."),
        setting("output_dir", str, "Where runs are kept."),
        setting("name", str, "Name of the run; made up from mode, model and time otherwise."),
        setting("store", str, "Store to use instead of one in the run's folder.", metavar="URL"),
    ),
    "Budget": (
        setting("budget_tokens", int, "Stop after so many tokens."),
        setting("budget_money", float, "Stop after so much money; needs the prices."),
        setting("budget_seconds", float, "Stop after so much time."),
        setting("prompt_price", float, "Money per million prompt tokens."),
        setting("completion_price", float, "Money per million completion tokens."),
    ),
    "Machines (mode osworld; py and web if asked for)": (
        *BORROWED,
        setting("action_space", click.Choice(["computer_13", "pyautogui"]), "How actions are written."),
        setting("observation_type", str, "screenshot, a11y_tree, screenshot_a11y_tree, terminal."),
        setting(
            "client_password",
            str,
            "Password of the user in the machine.  [default: that of OSWorld's images]",
            envvar="OUTRIDER_CLIENT_PASSWORD",
            show_envvar=True,
            metavar="TEXT",
        ),
    ),
}


@click.command("run", cls=SectionedCommand, sections=_SECTIONS)
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
def command(*, config_file: str | None, resume: str | None, dry_run: bool, as_json: bool, **flags: Any) -> None:
    """Run agents on the tasks of a benchmark, many at once, and score them.

    \b
      outrider run --mode math --model builtin:solver
      outrider run --mode math --data tasks.jsonl --num-rollouts 10 --model gpt-4.1-2025-04-14
      outrider run --mode osworld --use-vm-pool --num-rollouts 5 --num-vms 3 --model builtin:solver

    Results are kept in OUTPUT_DIR/RUN: results.jsonl grows as rollouts end, summary.md and page.html come at the end.
    Ctrl-C drains; the same command with --resume goes on where it stopped.
    """  # noqa: D301 click reads this character as "keep the lines"
    from outrider.cli.run_job import dry_run_job, run_job  # noqa: PLC0415 --help needs none of it
    from outrider.cli.run_summary import print_outcome  # noqa: PLC0415

    config = read_config(config_file, given_settings(flags))
    if dry_run:
        tasks = run(dry_run_job(config))
        print_json({"config": config, "tasks": len(tasks)})
        return
    outcome = run(run_job(config, resume=resume, as_json=as_json))
    if as_json:
        print_json(outcome)
    else:
        print_outcome(outcome)
    if not outcome.complete:
        sys.exit(1)
