"""`outrider pool`."""

import click

from outrider.cli.options import json_option, run
from outrider.cli.output import echo, print_json
from outrider.cli.run_options import MACHINES, given_machines
from outrider.core.errors import InvalidInput
from outrider.store import StoreUrl
from outrider.store.url import VARIABLE


@click.group("pool")
def command() -> None:
    """Keep machines for runs, show them, and clean up after pools that were killed."""


journal_option = click.option(
    "--store",
    "store_url",
    metavar="URL",
    type=StoreUrl,
    envvar=VARIABLE,
    show_envvar=True,
    help="Store with the journal.",
)


@command.command("ls")
@journal_option
@click.option("--pool", "name", help="Only this pool.")
@click.option("--moves", "machine_id", metavar="MACHINE", help="The moves of this machine, newest first.")
@json_option
def ls(*, store_url: StoreUrl | None, name: str | None, machine_id: str | None, as_json: bool) -> None:
    """List machines by pool: state, holder, uses, since when and why.

    Without a store: the pools of this host, as they are now. With one: what its journal knows, also of machines that
    are gone. A run keeps its journal in RUN/store.db.
    """
    from outrider.cli.pool_host import show_host  # noqa: PLC0415 --help needs none of it
    from outrider.cli.pool_journal import show_machines, show_moves  # noqa: PLC0415

    if machine_id is not None:
        if store_url is None:
            raise InvalidInput("--moves needs --store: a store's journal keeps the moves")
        run(show_moves(store_url, name, machine_id, as_json=as_json))
    elif store_url is not None:
        run(show_machines(store_url, name, as_json=as_json))
    else:
        run(show_host(name, as_json=as_json))


@command.command("serve")
@click.option("--name", default="default", show_default=True, help="Name of the pool; runs use it by --pool-name NAME.")
@journal_option
def serve(*, name: str, store_url: StoreUrl | None, **flags: object) -> None:
    """Keep a pool of machines that several runs on this host share, in turns.

    \b
      outrider pool serve --name desks --num-vms 3
      outrider run --mode osworld --pool-name desks --model builtin:solver

    Ctrl-C ends the machines. If this process is killed, the next one of the name takes over what it left.
    """  # noqa: D301 click reads this character as "keep the lines"
    from outrider.cli.pool_serve import serve_pool  # noqa: PLC0415

    run(serve_pool(name, given_machines(flags), store_url))


for _option in MACHINES:
    _option(serve)


@command.command("reset")
@click.argument("machine_id", metavar="MACHINE")
@click.option("--replace", is_flag=True, help="End it and make another in its place.")
def reset(*, machine_id: str, replace: bool) -> None:
    """Reset a machine of a pool on this host. Whoever holds it loses it, and its rollout is tried again."""
    from outrider.cli.pool_host import reset_machine  # noqa: PLC0415

    run(reset_machine(machine_id, replace=replace))


@command.command("gc")
@journal_option
@click.option("--dry-run", is_flag=True, help="Only say which pools have left something.")
@json_option
def gc(*, store_url: StoreUrl | None, dry_run: bool, as_json: bool) -> None:
    """End what killed pools have left on this host: machines, folders, sockets.

    A pool whose process lives is left alone. With --store, the ends are written into its journal.
    """
    from outrider.cli.pool_host import collect  # noqa: PLC0415

    ended = run(collect(store_url, dry_run=dry_run, say=lambda text: echo(text, err=as_json)))
    if as_json:
        print_json({"pools": ended})
    if any(pool["left"] for pool in ended) and not dry_run:
        raise SystemExit(1)
