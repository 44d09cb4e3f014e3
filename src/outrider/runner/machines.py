"""Where a worker gets its machines, described in a form that crosses process borders, and opened from it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from msgspec import Struct
from msgspec.structs import replace

from outrider.agent.supply import WAIT_SECONDS, Supply
from outrider.core.bounds import PositiveSeconds, check_bounds
from outrider.core.errors import InvalidInput
from outrider.env import Environments, needs_of
from outrider.pool.config import PoolConfig
from outrider.pool.journal import MachineJournal
from outrider.pool.provider import Provider
from outrider.pool.registry import provider_of
from outrider.pool.service.client import PoolClient
from outrider.pool.service.host import hosted_pool
from outrider.pool.service.place import PoolPlace
from outrider.pool.spec import MachineSpec


class SupplySpec(Struct, frozen=True, kw_only=True):
    """Machines of one kind, for one run.

    `is_shared`: all workers borrow from the pool `pool.name`, which somebody else has. Else each worker has a pool of
    its own, of `pool.n_machines`, whose name is that one and the worker's number.
    """

    machines: MachineSpec
    pool: PoolConfig
    is_shared: bool
    run: str = ""
    wait_seconds: PositiveSeconds = WAIT_SECONDS

    def __post_init__(self) -> None:
        check_bounds(self)

    @property
    def end_seconds(self) -> float:
        """How long a worker may take to end the machines that are its own."""
        return 0.0 if self.is_shared else self.pool.close_seconds + self.pool.destroy_seconds


@asynccontextmanager
async def open_supply(spec: SupplySpec, *, worker: int, journal: MachineJournal | None) -> AsyncIterator[Supply]:
    """The supply of one worker. What it holds is given back at the end, and its own machines are ended."""
    if spec.is_shared:
        client = PoolClient(PoolPlace(spec.pool.name).socket)
        try:
            yield Supply(machines=client, run=spec.run, wait_seconds=spec.wait_seconds)
        finally:
            await client.close()
        return
    config = replace(spec.pool, name=own_pool(spec.pool.name, worker))
    async with hosted_pool(spec.machines, config, journal=journal) as pool:
        yield Supply(machines=pool, run=spec.run, wait_seconds=spec.wait_seconds)


def own_pool(name: str, worker: int) -> str:
    """The name of the pool that this worker has for itself."""
    return f"{name}.{worker}"


def check_supply(spec: SupplySpec | None, environments: Environments, name: str) -> Provider | None:
    """Raise `InvalidInput` unless the machines, or their absence, suit the environments; the machines' provider."""
    needs = needs_of(environments)
    if spec is None:
        if needs is not None and not needs.optional:
            raise InvalidInput(f"{name} acts on machines, and this run has none")
        return None
    if needs is None:
        raise InvalidInput(f"{name} uses no machines; leave the settings of machines out")
    provider = provider_of(spec.machines)
    if missing := needs.abilities - provider.abilities:
        has = ", ".join(sorted(provider.abilities)) or "nothing"
        raise InvalidInput(
            f"{name} needs machines with {', '.join(sorted(missing))}; those of {provider.name} have: {has}"
        )
    return provider
