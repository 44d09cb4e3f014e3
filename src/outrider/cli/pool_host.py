"""The pools of this host: those that are served, and what killed ones have left."""

from collections.abc import Callable
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import Any

from outrider.cli.console import Console
from outrider.cli.options import opened
from outrider.cli.output import echo, print_json
from outrider.cli.pool_journal import machine_table
from outrider.core.errors import InvalidInput, MachineError
from outrider.pool.service.client import PoolClient
from outrider.pool.service.host import clean_up
from outrider.pool.service.messages import Standing
from outrider.pool.service.place import PoolFacts, PoolPlace, pools_on_host
from outrider.store import StoreUrl


async def show_host(name: str | None, *, as_json: bool) -> None:
    pools = [facts for facts in pools_on_host() if name in (None, facts.name)]
    if name is not None and not pools:
        raise InvalidInput(f"no pool {name!r} on this host; `outrider pool ls` lists those there are")
    found = [(facts, await _standing(facts)) for facts in pools]
    if as_json:
        print_json({"pools": [_described(facts, standing) for facts, standing in found]})
        return
    console = Console()
    for facts, standing in found:
        _print(console, facts, standing)
    if not found:
        console.print("No pool on this host. One lives as long as its run, or `outrider pool serve`.")


async def _standing(facts: PoolFacts) -> Standing | None:
    """How a pool stands; None: its process is gone, or has only begun."""
    client = PoolClient(PoolPlace(facts.name).socket)
    try:
        return await client.standing()
    except MachineError:
        return None
    finally:
        await client.close()


def _described(facts: PoolFacts, standing: Standing | None) -> dict[str, Any]:
    alive = standing is not None or PoolPlace(facts.name).is_alive()
    machines, counted = ((), None) if standing is None else (standing.machines, standing.statistics)
    return {
        "name": facts.name,
        "pid": facts.pid,
        "alive": alive,
        "provider": facts.machines.provider,
        "machines": machines,
        "statistics": counted,
    }


def _print(console: Console, facts: PoolFacts, standing: Standing | None) -> None:
    title = f"Pool {facts.name}, {facts.n_machines} machines of {facts.machines.provider}, process {facts.pid}"
    if standing is None:
        alive = PoolPlace(facts.name).is_alive()
        state = "is about to start or to end" if alive else "was killed; `outrider pool gc` ends what it left"
        console.print(f"{title}: {state}.", soft_wrap=True)
        return
    counted = standing.statistics
    console.print(machine_table(title, standing.machines, datetime.now(UTC)))
    used = "" if counted.utilisation is None else f", {counted.utilisation:.0%} in use while wanted"
    console.print(f"{counted.n_leases} leases, {counted.n_waiting} waiting{used}.")


async def reset_machine(machine_id: str, *, replace: bool) -> None:
    for facts in pools_on_host():
        standing = await _standing(facts)
        if standing is None or all(one.machine_id != machine_id for one in standing.machines):
            continue
        client = PoolClient(PoolPlace(facts.name).socket)
        try:
            await client.reset(machine_id, "asked for by outrider pool reset", replace=replace)
        finally:
            await client.close()
        echo(f"{machine_id} is being {'replaced' if replace else 'reset'}")
        return
    raise InvalidInput(f"no living pool on this host has a machine {machine_id!r}; `outrider pool ls` lists them")


async def collect(store_url: StoreUrl | None, *, dry_run: bool, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """End what killed pools have left; for each, how many machines were there and how many could not be ended."""
    ended = []
    dead = [facts for facts in pools_on_host() if not PoolPlace(facts.name).is_alive()]
    async with AsyncExitStack() as stack:
        store = None if store_url is None else await stack.enter_async_context(opened(store_url))
        for facts in dead:
            what = f"pool {facts.name} ({facts.machines.provider}), whose process {facts.pid} is gone"
            if dry_run:
                say(f"{what}, may have left up to {facts.n_machines} machines")
                ended.append({"name": facts.name, "found": None, "left": facts.n_machines})
                continue
            n_found, n_left = await clean_up(facts, journal=store)
            rest = f", {n_left} could not be ended: try again" if n_left else ""
            say(f"{what}: {n_found - n_left} machines ended{rest}")
            ended.append({"name": facts.name, "found": n_found, "left": n_left})
    if not dead:
        say("nothing to clean up")
    return ended
