"""What the journal in a store knows of pools and machines, for people and scripts."""

from collections.abc import Sequence
from datetime import UTC, datetime

from rich.table import Table
from rich.text import Text

from outrider.cli.console import Console
from outrider.cli.options import opened
from outrider.cli.output import print_json
from outrider.core.errors import InvalidInput
from outrider.core.machine import MachineMove, MachineRecord, MachineState, PoolRecord
from outrider.core.page import Page
from outrider.store import Store, StoreUrl

N_MOVES = 50
"""Moves that are printed at most."""

COLOURS = {MachineState.READY: "green", MachineState.LEASED: "cyan", MachineState.QUARANTINED: "red"}


async def show_machines(store_url: StoreUrl, name: str | None, *, as_json: bool) -> None:
    now = datetime.now(UTC)
    async with opened(store_url, read_only=True) as store:
        pools = await _known(store, name)
        machines = await store.query_machines(name)
    found = [(pool, tuple(one for one in machines if one.pool == pool.name)) for pool in pools]
    if as_json:
        shown = [
            {"name": pool.name, "epoch": pool.epoch, "opened_at": pool.opened_at, "machines": several}
            for pool, several in found
        ]
        print_json({"store": store_url, "pools": shown})
        return
    console = Console()
    for pool, several in found:
        print_pool(console, pool, several, now)
    if not found:
        console.print(
            f"No pool was opened in {store_url}. A run that borrows machines opens one in its own store: "
            "give that with --store.",
            soft_wrap=True,
        )


async def _known(store: Store, name: str | None) -> tuple[PoolRecord, ...]:
    """All pools, or the one that is asked for."""
    pools = await store.query_pools()
    if name is None:
        return pools
    wanted = tuple(pool for pool in pools if pool.name == name)
    if not wanted:
        names = ", ".join(pool.name for pool in pools) or "none"
        raise InvalidInput(f"no pool {name!r} was opened in this store; there are: {names}")
    return wanted


async def show_moves(store_url: StoreUrl, name: str | None, machine_id: str, *, as_json: bool) -> None:
    async with opened(store_url, read_only=True) as store:
        await _known(store, name)
        moves = await store.query_machine_moves(machine_id, name, limit=-1 if as_json else N_MOVES)
    if not moves.total:
        raise InvalidInput(f"no machine {machine_id!r} in this store; `outrider pool ls --json` lists all there were")
    if as_json:
        print_json({"store": store_url, "machine_id": machine_id, "moves": moves.items})
    else:
        _print_moves(Console(), machine_id, moves)


def print_pool(console: Console, pool: PoolRecord, machines: tuple[MachineRecord, ...], now: datetime) -> None:
    there = [machine for machine in machines if machine.state.exists]
    title = f"Pool {pool.name}, epoch {pool.epoch}, opened {_ago(pool.opened_at, now)}"
    if there:
        console.print(machine_table(title, there, now))
    else:
        console.print(f"{title}: no machines now.", soft_wrap=True)
    if len(there) < len(machines):
        console.print(f"Gone: {len(machines) - len(there)}; --json lists them.")


def machine_table(title: str, machines: Sequence[MachineRecord], now: datetime) -> Table:
    table = Table(title=Text(title), title_justify="left")
    for column in ("machine", "provider", "state", "holder", "uses", "epoch", "since", "reason"):
        right = column in {"uses", "epoch"}
        table.add_column(column, justify="right" if right else "left", no_wrap=column in {"machine", "state", "since"})
    for one in machines:
        named = one.machine_id, one.provider, one.state.value, one.holder or ""
        counted = str(one.n_uses), str(one.epoch), _ago(one.moved_at, now), one.reason
        table.add_row(*named, *counted, style=COLOURS.get(one.state))
    return table


def _print_moves(console: Console, machine_id: str, moves: Page[MachineMove]) -> None:
    table = Table(title=Text(f"Moves of {machine_id}, newest first"), title_justify="left")
    for column in ("at", "move", "after", "epoch", "holder", "reason"):
        table.add_column(column, justify="right" if column in {"after", "epoch"} else "left")
    for move in moves:
        when = move.at.strftime("%Y-%m-%d %H:%M:%S")
        way = move.state.value if move.before is None else f"{move.before} → {move.state}"
        table.add_row(when, way, f"{move.seconds:.1f} s", str(move.epoch), move.holder or "", move.reason)
    console.print(table)
    if moves.total > len(moves):
        console.print(f"… {moves.total - len(moves)} earlier ones; --json shows all")


def _ago(then: datetime, now: datetime) -> str:
    return f"{max((now - then).total_seconds(), 0.0):.0f} s ago"
