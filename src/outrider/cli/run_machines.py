"""The machines of a run: which, how many, and whose."""

import hashlib
import math
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from outrider.cli.run_config import RunConfig
from outrider.core.errors import InvalidInput
from outrider.core.machine import MachineRecord, MachineState
from outrider.core.settings import settings_of
from outrider.pool import MachinePool, PoolConfig
from outrider.pool.registry import provider_of
from outrider.pool.service.host import hosted_pool
from outrider.pool.service.place import PoolFacts, PoolPlace, pools_on_host
from outrider.pool.spec import DEFAULT_PROVIDER, MachineSpec
from outrider.runner.machines import SupplySpec, own_pool
from outrider.store import Store

OSWORLD = "osworld"
KINDS: Mapping[str, str] = {"web": "browser", "py": "process"}
"""The machines of modes that do without unless asked."""

LONG_SECONDS = 4 * 3600.0
"""How long a rollout without a limit of its own may hold a machine."""

AROUND_SECONDS = 900.0
"""What setting up, scoring and closing take besides the rollout's own time, at the most."""

LEAST_WAIT_SECONDS = 600.0
MAX_FAILURES = 3
"""If none of the first machines can be made, the run stops after so many."""

_NO_IMAGE = "desktops are made of what this host has installed"


def uses_machines(config: RunConfig) -> bool:
    """Whether the run has machines; an environment of the user's own may use some if they are asked for."""
    asked = config.use_vm_pool or config.pool_name is not None or config.provider_name is not None
    return config.mode == OSWORLD or (asked and (config.mode in KINDS or ":" in config.mode))


def machine_spec(config: RunConfig) -> MachineSpec:
    if config.pool_name is not None:
        return _served(config.pool_name).machines
    provider = config.provider_name or KINDS.get(config.mode, DEFAULT_PROVIDER)
    is_desktop = provider == DEFAULT_PROVIDER
    return MachineSpec(
        provider=provider,
        image=None if is_desktop else config.path_to_vm,
        snapshot=None if is_desktop else config.snapshot_name,
        width=config.screen_width,
        height=config.screen_height,
        headless=config.headless or None,
        settings=config.machine,
    )


def supply_spec(config: RunConfig, run: str, place: Path) -> SupplySpec | None:
    """Where the workers of the run get machines; None: they need none. `place` tells runs of one name apart."""
    if not uses_machines(config):
        return None
    is_shared = config.use_vm_pool or config.pool_name is not None
    pool = _pool_config(config, run, place)
    n_turns = math.ceil(config.num_rollouts / pool.n_machines) if is_shared else 1
    return SupplySpec(
        machines=machine_spec(config),
        pool=pool,
        is_shared=is_shared,
        run=run,
        wait_seconds=max(LEAST_WAIT_SECONDS, (n_turns - 1) * pool.max_hold_seconds + pool.create_seconds),
    )


def _pool_config(config: RunConfig, run: str, place: Path) -> PoolConfig:
    for name, flag in (("name", "--pool-name"), ("n_machines", "--num-vms")):
        if name in config.pool:
            raise InvalidInput(f"--pool {name}=…: that is what {flag} is for")
    digest = hashlib.sha256(str(place.absolute()).encode()).hexdigest()[:8]
    values = {
        "name": config.pool_name or f"{run}@{socket.gethostname()}-{digest}",
        "n_machines": config.num_vms if config.use_vm_pool else slots(config),
        "max_hold_seconds": LONG_SECONDS if config.timeout is None else config.timeout + AROUND_SECONDS,
        **config.pool,
    }
    if config.pool_name is not None:
        values["n_machines"] = _served(config.pool_name).n_machines
    return settings_of(PoolConfig, values, "settings of the pool")


def slots(config: RunConfig) -> int:
    """How many rollouts a worker runs at once."""
    return math.ceil(config.num_rollouts / config.workers)


def _served(name: str) -> PoolFacts:
    place = PoolPlace(name)
    facts = place.facts()
    if facts is None or not place.is_alive():
        alive = ", ".join(one.name for one in pools_on_host() if PoolPlace(one.name).is_alive()) or "none"
        raise InvalidInput(
            f"no pool {name!r} is served on this host; there are: {alive}. "
            f"Start it with: outrider pool serve --name {name}"
        )
    return facts


async def check_machines(config: RunConfig, supply: SupplySpec | None) -> None:
    """Raise `InvalidInput` if the machines of the run cannot be had here."""
    if supply is None or config.pool_name is not None:
        return
    n_workers = 1 if supply.is_shared else config.workers
    await provider_of(supply.machines).check(supply.pool.n_machines * n_workers)


@asynccontextmanager
async def open_machines(
    config: RunConfig, supply: SupplySpec | None, store: Store, say: Callable[[str], None]
) -> AsyncIterator[MachinePool | None]:
    """The pool that the workers of the run share, once it has its first machine; None if they share none of ours."""
    if supply is None or not supply.is_shared or config.pool_name is not None:
        yield None
        return
    async with hosted_pool(supply.machines, supply.pool, journal=store) as pool:
        say(f"{supply.pool.n_machines} machines of {supply.machines.provider} are being made, pool {pool.name}")
        seconds = supply.pool.create_seconds + supply.pool.probe_seconds
        await pool.wait_until_ready(1, deadline=seconds, max_failures=MAX_FAILURES)
        yield pool


async def machines_now(config: RunConfig, supply: SupplySpec | None, store: Store) -> tuple[MachineRecord, ...]:
    """The machines of the run that exist, as the journal knows them."""
    if supply is None or config.pool_name is not None:
        return ()
    name = supply.pool.name
    pools = [name] if supply.is_shared else [own_pool(name, worker) for worker in range(config.workers)]
    states = [state for state in MachineState if state.exists]
    return tuple([record for pool in pools for record in await store.query_machines(pool, states)])


def idle_machine_settings(config: RunConfig) -> list[str]:
    """What the user should know about settings that do nothing with these machines."""
    if config.mode != OSWORLD or (config.provider_name or DEFAULT_PROVIDER) != DEFAULT_PROVIDER:
        return []
    given = [name for name in ("path_to_vm", "snapshot_name") if getattr(config, name) is not None]
    notes = [f"--{name.replace('_', '-')} has no effect: {_NO_IMAGE}" for name in given]
    return [*notes, "--headless has no effect: desktops never open a window"] if config.headless else notes
