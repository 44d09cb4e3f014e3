"""The `outrider` command, one file a subcommand."""

import importlib
import os
import sys
from typing import Any

import click

from outrider import __version__
from outrider.core.undumpable import become_undumpable

COMMANDS = {
    "enqueue": "Add rollouts to a store.",
    "run": "Run agents on the tasks of a benchmark and score them.",
    "rollout": "Run the rollouts of a training run, batch by batch, with a stand-in trainer.",
    "work": "Run workers that share the rollouts of a store.",
    "status": "Show rollouts by state, workers, and what is stuck and why.",
    "pool": "Keep machines for runs, show them, clean up after killed ones.",
    "show": "Show one rollout: attempts, workers, events, errors.",
    "ls": "List the runs.",
    "compare": "Compare two runs on the same tasks, task by task.",
    "view": "Show a run's rollouts, one as a conversation, or all as a page.",
    "retry": "Run ended rollouts again, as new ones.",
    "cancel": "Cancel rollouts, down to their running attempts.",
    "export": "Write finished rollouts with their events as JSON lines.",
    "bench": "Measure Outrider against its peers (from a checkout).",
}

TRACEBACK = "OUTRIDER_TRACEBACK"
"""A variable: if it is set, an error is shown with its traceback and those of its causes."""


class LazyGroup(click.Group):
    """Imports a subcommand when it is used, so that `outrider --help` is quick. Wrong usage is answered in one line."""

    def invoke(self, ctx: click.Context) -> Any:
        from outrider.core.errors import InvalidInput  # noqa: PLC0415 not needed for --help

        try:
            return super().invoke(ctx)
        except click.exceptions.NoArgsIsHelpError:
            raise
        except click.UsageError as exc:
            command = "outrider" if exc.ctx is None else exc.ctx.command_path
            raise InvalidInput(f"{exc.format_message()} See {command} --help") from exc

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command:
        if cmd_name not in COMMANDS:
            import difflib  # noqa: PLC0415 only for commands that do not exist

            alike = difflib.get_close_matches(cmd_name, COMMANDS, n=1)
            ctx.fail(f"No such command {cmd_name!r}." + (f" Did you mean {alike[0]!r}?" if alike else ""))
        from outrider.cli.output import show_warnings  # noqa: PLC0415 not needed for --help

        show_warnings()
        command = importlib.import_module(f"outrider.cli.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__)
def cli() -> None:
    """Run LLM agents on tasks, score them, and keep every conversation.

    To begin with, in any folder, without a key:

    \b
      outrider run --mode FrozenLake --limit 8 --model builtin:solver
    """  # noqa: D301 click reads this character as "keep the lines"


def main() -> None:
    """Run the command line. Exit codes are those of `exit_code.ExitCode`, for all commands."""
    become_undumpable()
    try:
        cli(prog_name="outrider")
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(0)
    except Exception as exc:
        if (code := _told(exc)) is None:
            raise
        sys.exit(code)


def _told(error: Exception) -> int | None:
    """The exit code for an error of ours, which is printed; None for any other."""
    from outrider.cli.output import echo  # noqa: PLC0415 not needed for --help
    from outrider.core.errors import InvalidInput, OutriderError  # noqa: PLC0415

    if not isinstance(error, OutriderError):
        return None
    if os.environ.get(TRACEBACK) and error.__cause__ is not None:
        import traceback  # noqa: PLC0415 seldom needed

        echo("".join(traceback.format_exception(error)), err=True)
    echo(f"outrider: {error}", err=True)
    return 2 if isinstance(error, InvalidInput) else 1
