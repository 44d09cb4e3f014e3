"""The exit codes of the commands that run rollouts: `run`, `work` and `rollout`."""

from enum import IntEnum

import click


class ExitCode(IntEnum):
    """What a command came to, for scripts."""

    DONE = 0
    """All is done."""

    FAILURES = 1
    """All was tried, and some rollouts failed or have no score; or the command itself failed."""

    BAD_INPUT = 2
    """What was given cannot be used, and nothing was changed."""

    STOPPED = 3
    """It stopped early: rollouts are left that were not tried to their end."""


NO_FAIL_FAST = "Go on though the first rollouts all fail by an error that another try does not change."
allow_failures_option = click.option(
    "--allow-failures", is_flag=True, help="Exit with 0 though rollouts failed or have no score."
)
no_fail_fast_option = click.option("--no-fail-fast", "fail_fast", flag_value=False, default=True, help=NO_FAIL_FAST)


def exit_code(*, is_complete: bool, n_missing: int, allows_failures: bool) -> ExitCode:
    """The code of a command that has run rollouts; `n_missing` of them failed or have no score."""
    if not is_complete:
        return ExitCode.STOPPED
    return ExitCode.FAILURES if n_missing and not allows_failures else ExitCode.DONE
