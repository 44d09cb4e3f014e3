"""The `outrider` command, one file a subcommand."""

import difflib
import importlib
import sys

import click

from outrider.core.undumpable import become_undumpable

COMMANDS = {
    "enqueue": "Add rollouts to a store.",
    "run": "Run agents on the tasks of a benchmark and score them.",
    "rollout": "Run the rollouts of a training run, batch by batch, with a stand-in trainer.",
    "work": "Run workers that share the rollouts of a store.",
    "status": "Show rollouts by state, workers, and what is stuck and why.",
    "pool": "Keep machines for runs, show them, clean up after killed ones.",
    "show": "Show one rollout: attempts, workers, events, errors.",
    "view": "Show a run's rollouts, one as a conversation, or all as a page.",
    "retry": "Run ended rollouts again, as new ones.",
    "cancel": "Cancel rollouts, down to their running attempts.",
    "export": "Write finished rollouts with their events as JSON lines.",
    "bench": "Measure Outrider against its peers (from a checkout).",
}


class LazyGroup(click.Group):
    """Imports a subcommand when it is used, so that `outrider --help` is quick."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command:
        if cmd_name not in COMMANDS:
            alike = difflib.get_close_matches(cmd_name, COMMANDS, n=1)
            ctx.fail(f"No such command {cmd_name!r}." + (f" Did you mean {alike[0]!r}?" if alike else ""))
        command = importlib.import_module(f"outrider.cli.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="outrider")
def cli() -> None:
    """Rollouts for LLM agents: claimed once, crash-proof, scored.

    To start with, in any folder, without a key:

    \b
      outrider run --mode math --model builtin:solver
    """  # noqa: D301 click reads this character as "keep the lines"


def main() -> None:
    """Run the command line. Exit code 2: what was given cannot be used, and nothing was changed; 1: it failed."""
    from outrider.cli.console import echo, show_warnings  # noqa: PLC0415 not needed for --help
    from outrider.core.errors import InvalidInput, OutriderError  # noqa: PLC0415

    become_undumpable()
    show_warnings()
    try:
        cli(prog_name="outrider")
    except InvalidInput as exc:
        echo(f"outrider: {exc}", err=True)
        sys.exit(2)
    except OutriderError as exc:
        echo(f"outrider: {exc}", err=True)
        sys.exit(1)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(0)
