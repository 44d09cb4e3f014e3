"""`outrider run`."""

import sys
from collections.abc import Mapping
from typing import Any

import click

from outrider.cli.exit_code import NO_FAIL_FAST, allow_failures_option, exit_code
from outrider.cli.keys import PASS_ENV, without_keys
from outrider.cli.options import cpus_option, json_option, ray_option, run
from outrider.cli.output import echo, outlive_readers, print_json
from outrider.cli.run_config import read_config
from outrider.cli.run_options import (
    BORROWED,
    Option,
    SectionedCommand,
    flag,
    given_settings,
    mapping,
    setting,
    switch_off,
)
from outrider.core.errors import InvalidInput

_SECTIONS: Mapping[str, tuple[Option, ...]] = {
    "What to run": (
        setting("mode", str, "Environment: math, py, rag, web, osworld, a game such as FrozenLake, or module:Class."),
        setting("data", str, "Benchmark file: JSONL, JSON, CSV, Parquet, hf:NAME. Without it: the bundled tasks."),
        setting("limit", int, "Run only this many tasks, from the first on."),
        flag("shuffle_choices", "Put the choices of multiple-choice questions in an order drawn from --seed."),
        *(
            setting(
                name, str, f"The field of --data that holds the {what}.  [default: by its usual names]", metavar="NAME"
            )
            for name, what in (("id_field", "id"), ("question_field", "question"), ("answer_field", "answer"))
        ),
        setting(
            "answers_are",
            click.Choice(["letter", "index", "number", "text"]),
            "How answers name the right choice: index counts from 0, number from 1.  [default: found out row by row]",
        ),
        setting("samples_per_task", int, "Rollouts per task; gives pass@k."),
        setting("seed", int, "Seeds of all rollouts derive from it."),
        setting(
            "agent",
            str,
            "chat, react, module:function, or a team: team:search-critic, team:router, team:solver-verifier, "
            "team:planner-actor, team:debate, team:proposer-solver, team:module:function.",
        ),
        setting("pass_env", str, PASS_ENV, multiple=True, metavar="NAME"),
        mapping("team", "A setting of the team, such as max_rounds=2."),
        setting("max_turns", int, "Model calls per rollout."),
        setting(
            "scorer",
            str,
            "exact_match, f1, contains, numeric, math, choice, instructions, similarity, python, judge.  "
            "[default: by mode and form of the task]",
        ),
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
            "--policy",
            "policies",
            multiple=True,
            metavar="NAME=MODEL",
            help="A further policy, for agents of a team; NAME.SETTING=VALUE sets its base_url, api_key_env, top_k, ….",
        ),
        setting("temperature", float, "Sampling temperature."),
        setting("top_p", float, "Sampling top-p."),
        setting("top_k", int, "Sample among this many of the likeliest tokens, if the server can."),
        setting("stop", str, "Text that ends an answer; several may be given.", multiple=True),
        setting("reasoning_effort", str, "none, minimal, low, medium, high, …, as the server has it."),
        mapping("extra_body", "A further field of every request, such as min_p=0.05; env:VARIABLE for secrets."),
        click.option(
            "--header",
            "headers",
            multiple=True,
            metavar="NAME=VALUE",
            help="A further header of every request; NAME=env:VARIABLE for secrets.",
        ),
        setting("system_prompt", str, "Put before what the environment says, in every mode.", metavar="TEXT"),
        setting("system_prompt_file", str, "The same from a file.", metavar="FILE"),
        setting("max_tokens", int, "Tokens per model call."),
        setting("max_context_tokens", int, "Trim the conversation to about this many tokens."),
        setting("max_retries", int, "Tries after the first, per model call."),
        setting(
            "silence_seconds",
            float,
            "Send calls to another --base-url too when theirs says nothing this long.  "
            "[default: 120, or half of --timeout]",
            metavar="SECONDS",
        ),
        flag("logprobs", "Ask for token ids and log-probabilities."),
        flag("stream", "Stream completions."),
        flag("no_check", "Do not ask the servers for one token before the run."),
        setting("record", str, "Record every model call to this file; --model replay:FILE plays it back."),
    ),
    "How": (
        setting("num_rollouts", int, "Rollouts that run at once."),
        setting(
            "workers",
            int,
            "Number of workers, each a process; one with built-in agent and environments is in this process.  "
            "[default: 1; with --ray one per node]",
        ),
        ray_option,
        cpus_option,
        setting("timeout", float, "Seconds per attempt.", metavar="SECONDS"),
        setting(
            "max_block",
            float,
            "Replace a worker process that an agent blocks this long.  [default: 15]",
            metavar="SECONDS",
        ),
        setting("max_attempts", int, "Attempts per rollout when something around it fails."),
        switch_off("fail_fast", NO_FAIL_FAST),
        setting("output_dir", str, "Folder that runs are kept in."),
        setting("name", str, "Name of the run; made up from mode, model and time otherwise."),
        setting("store", str, "Store to use instead of one in the run's folder.", metavar="URL"),
    ),
    "Budget": (
        setting("budget_tokens", int, "Stop after this many tokens."),
        setting("budget_money", float, "Stop after spending this much; needs the prices."),
        setting("budget_seconds", float, "Stop after this many seconds."),
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
@click.option("--config", "config_file", metavar="FILE.yaml", help="Settings from a file; flags override them.")
@click.option(
    "--resume",
    is_flag=False,
    flag_value="",
    metavar="[RUN]",
    help="Continue a run: the newest (with --mode or --config: the newest of these tasks and this model), or the one "
    "named. It keeps its settings; more --samples-per-task, a greater --limit or further tasks in --data extend it.",
)
@click.option(
    "--retry-failed",
    is_flag=True,
    help="With --resume: run rollouts again that failed, were cancelled or have no score; the new ones count instead.",
)
@click.option("--dry-run", is_flag=True, help="Check everything, print the settings as JSON, run nothing.")
@allow_failures_option
@json_option
def command(
    *,
    config_file: str | None,
    resume: str | None,
    retry_failed: bool,
    dry_run: bool,
    allow_failures: bool,
    as_json: bool,
    **flags: Any,
) -> None:
    """Run agents on the tasks of a benchmark, many at once, and score them.

    \b
      outrider run --mode FrozenLake --limit 8 --model builtin:solver
      outrider run --mode math --data tasks.jsonl --num-rollouts 10 --model gpt-4.1-2025-04-14   # extra: math
      outrider run --mode osworld --use-vm-pool --num-rollouts 5 --num-vms 3 --model builtin:solver

    Results are kept in OUTPUT_DIR/RUN: results.jsonl grows as rollouts end, summary.md and page.html come at the end.
    Ctrl-C lets running rollouts finish. `outrider run --resume RUN` continues a run that was stopped or killed.

    Exit codes: 0 all done, 1 some rollouts failed or have no score (--allow-failures forgives that), 2 bad input,
    3 stopped early.
    """  # noqa: D301 click reads this character as "keep the lines"
    from outrider.cli.run_folder import kept_settings  # noqa: PLC0415
    from outrider.cli.run_job import dry_run_job, run_job  # noqa: PLC0415 --help needs none of it
    from outrider.cli.run_setup import episode_spec, unused_fields  # noqa: PLC0415
    from outrider.cli.run_summary import print_outcome  # noqa: PLC0415
    from outrider.policy.spec import Budget  # noqa: PLC0415
    from outrider.runner.keys import key_names  # noqa: PLC0415

    given = given_settings(flags)
    resume, kept = kept_settings(config_file, given, resume)
    config = read_config(config_file, given, kept)
    if retry_failed and resume is None:
        raise InvalidInput("--retry-failed is for a run that is gone on with; give --resume RUN too")
    alone = without_keys(key_names(episode_spec(config, config.mode, Budget())), config.pass_env, ray=config.ray)
    if dry_run:
        with alone:
            tasks = run(dry_run_job(config))
        for note in unused_fields(config, tasks):
            echo(f"note: {note}", err=True)
        print_json({"config": config, "tasks": len(tasks)})
        return
    outlive_readers()
    with alone:
        outcome = run(run_job(config, resume=resume, retry_failed=retry_failed, as_json=as_json))
    if as_json:
        print_json(outcome)
    else:
        print_outcome(outcome)
    n_missing = outcome.summary.total.n - outcome.summary.total.n_scored
    sys.exit(exit_code(is_complete=outcome.complete, n_missing=n_missing, allows_failures=allow_failures))
