"""`outrider pool serve`: a pool in a process of its own."""

import asyncio
import signal
from collections.abc import Mapping
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import Any

from rich.console import Group
from rich.live import Live
from rich.text import Text

from outrider.cli.console import Console
from outrider.cli.machine_settings import MachineSettings
from outrider.cli.machines import MAX_FAILURES, OSWORLD, machine_spec
from outrider.cli.options import opened
from outrider.cli.output import echo
from outrider.cli.pool_journal import machine_table
from outrider.cli.signals import listening
from outrider.core.settings import settings_of
from outrider.pool import MachinePool, PoolConfig, PoolStatistics
from outrider.pool.service.host import hosted_pool
from outrider.store import StoreUrl

SHOW_SECONDS = 0.5
SAY_SECONDS = 10.0


async def serve_pool(name: str, settings: Mapping[str, Any], store_url: StoreUrl | None) -> None:
    config = settings_of(MachineSettings, settings, "the flags")
    wanted = settings_of(
        PoolConfig, {"name": name, "n_machines": config.num_vms, **config.pool}, "settings of the pool"
    )
    machines = machine_spec(config, (OSWORLD,))
    stopping = asyncio.Event()
    with listening(stopping.set, signal.SIGINT, signal.SIGTERM):
        async with AsyncExitStack() as stack:
            store = None if store_url is None else await stack.enter_async_context(opened(store_url, create=True))
            pool = await stack.enter_async_context(hosted_pool(machines, wanted, journal=store))
            echo(f"pool {name}: {wanted.n_machines} machines of {machines.provider} are being made")
            ready = asyncio.create_task(_first(pool, wanted))
            stopped = asyncio.create_task(stopping.wait())
            await asyncio.wait({ready, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if not ready.done():
                ready.cancel()
                return
            ready.result()
            echo(f"share it with: outrider run --mode osworld --pool-name {name} …; Ctrl-C ends it")
            await _show(pool, stopping)
            echo("ending the machines")


async def _first(pool: MachinePool, wanted: PoolConfig) -> None:
    await pool.wait_until_ready(1, deadline=wanted.create_seconds + wanted.probe_seconds, max_failures=MAX_FAILURES)


async def _show(pool: MachinePool, stopping: asyncio.Event) -> None:
    """Until it is to stop: a live table on a terminal, now and then a line in a pipe."""
    console = Console()
    if not console.is_terminal:
        said = ""
        while not await _waited(stopping, SAY_SECONDS):
            text = standing_text(pool.statistics())
            if text != said:
                echo(text)
            said = text
        return
    with Live(console=console, refresh_per_second=4, transient=True) as live:
        while not await _waited(stopping, SHOW_SECONDS):
            table = machine_table(f"Pool {pool.name}", pool.machines, datetime.now(UTC))
            live.update(Group(table, Text(standing_text(pool.statistics()))))


async def _waited(event: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False


def standing_text(counted: PoolStatistics) -> str:
    states = ", ".join(f"{n} {state}" for state, n in sorted(counted.states.items()) if n) or "no machines"
    return f"{states}; {counted.n_leases} leases, {counted.n_waiting} waiting"
