"""A pool with its place on this host: started, served to other processes, and cleaned up after."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from outrider.pool.config import PoolConfig
from outrider.pool.journal import MachineJournal
from outrider.pool.pool import MachinePool
from outrider.pool.registry import provider_of
from outrider.pool.service.place import PoolFacts, PoolPlace
from outrider.pool.service.server import PoolServer
from outrider.pool.spec import MachineSpec


@asynccontextmanager
async def hosted_pool(
    machines: MachineSpec, config: PoolConfig, *, journal: MachineJournal | None = None, root: Path | None = None
) -> AsyncIterator[MachinePool]:
    """The pool `config.name` of these machines, served at its place. What its last owner left is taken over.

    `InvalidInput` if another process of this host has the name, or if so many machines cannot be run here.
    """
    pool = MachinePool(provider_of(machines), config, journal=journal)
    place = PoolPlace(pool.name, root=root)
    is_clean = place.facts() is None
    place.claim(machines, config.n_machines)
    try:
        async with pool:
            try:
                async with PoolServer(pool, place.socket):
                    yield pool
            finally:
                is_clean = True
    finally:
        place.leave(forget=is_clean and not pool.statistics().n_leaks)


async def clean_up(
    facts: PoolFacts, *, journal: MachineJournal | None = None, root: Path | None = None
) -> tuple[int, int]:
    """End what a pool has left whose process is gone: how many machines were there, and how many could not be ended."""
    config = PoolConfig(name=facts.name, n_machines=facts.n_machines)
    pool = MachinePool(provider_of(facts.machines), config, journal=journal)
    place = PoolPlace(facts.name, root=root)
    place.claim(facts.machines, facts.n_machines)
    n_leaks = facts.n_machines
    try:
        n_found = await pool.end_left_behind()
        n_leaks = pool.statistics().n_leaks
    finally:
        place.leave(forget=n_leaks == 0)
    return n_found, n_leaks
