"""The machines of a run: which, how many, and whose."""

import hashlib
import math
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from outrider.cli.run_config import RunConfig
from outrider.cluster.cluster import Cluster
from outrider.cluster.rollouts.opening import is_one_here
from outrider.cluster.rollouts.shares import LISTED, Shares, open_shares
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


def supply_spec(config: RunConfig, run: str, place: Path, cluster: Cluster | None = None) -> SupplySpec | None:
    """Where the workers of the run get machines; None: they need none. `place` tells runs of one name apart.

    On a cluster the machines are divided into shares, and how long a worker may wait follows from the smallest.
    """
    if not uses_machines(config):
        return None
    is_shared = config.use_vm_pool or config.pool_name is not None
    pool = _pool_config(config, run, place)
    n_shares = 1 if cluster is None or config.pool_name is not None else n_shares_of(config, pool, cluster)
    n_at_once = min(config.num_rollouts, math.ceil(config.n_workers / n_shares) * slots(config))
    n_turns = math.ceil(n_at_once / (pool.n_machines // n_shares)) if is_shared else 1
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


def n_shares_of(config: RunConfig, pool: PoolConfig, cluster: Cluster) -> int:
    """Into how many pools the machines are divided: one a node, and none without machines or workers."""
    return min(len(cluster.working_nodes), pool.n_machines, config.n_workers)


def slots(config: RunConfig) -> int:
    """How many rollouts a worker runs at once."""
    return math.ceil(config.num_rollouts / config.n_workers)


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


def check_places(config: RunConfig, cluster: Cluster | None) -> None:
    """Raise `InvalidInput` if workers on the nodes of the cluster could not use such machines, or not apart."""
    if cluster is None or not uses_machines(config):
        return
    n_nodes = len(cluster.working_nodes)
    if config.pool_name is not None and not is_one_here([node.ip for node in cluster.nodes]):
        where = f"has {n_nodes} nodes" if n_nodes > 1 else "is on another machine"
        raise InvalidInput(
            f"--pool-name {config.pool_name}: that pool serves workers on this host alone, and the Ray cluster "
            f"{where}; give --use-vm-pool --num-vms M instead, and the nodes share M machines of the run's own"
        )
    if config.provider_name == LISTED and not config.use_vm_pool and n_nodes > 1:
        raise InvalidInput(
            f"workers on {n_nodes} nodes would take the same machines from the list of {LISTED}; "
            "give --use-vm-pool --num-vms M, and each node gets a part of the list"
        )


async def check_machines(config: RunConfig, supply: SupplySpec | None, cluster: Cluster | None = None) -> None:
    """Raise `InvalidInput` if the machines of the run cannot be had here. Nodes of a cluster see for themselves."""
    if supply is None or config.pool_name is not None or cluster is not None:
        return
    n_workers = 1 if supply.is_shared else config.n_workers
    await provider_of(supply.machines).check(supply.pool.n_machines * n_workers)


@asynccontextmanager
async def open_machines(
    config: RunConfig,
    supply: SupplySpec | None,
    store: Store,
    say: Callable[[str], None],
    cluster: Cluster | None = None,
) -> AsyncIterator[MachinePool | Shares | None]:
    """The pool that the workers of the run share, once it has its first machine; None if they share none of ours.

    On a cluster it is several, one for each node.
    """
    if supply is None or not supply.is_shared or config.pool_name is not None:
        yield None
        return
    if cluster is not None:
        n_shares = n_shares_of(config, supply.pool, cluster)
        async with open_shares(cluster, supply, store.url, n_shares=n_shares, on_line=say) as shares:
            yield shares
        return
    async with hosted_pool(supply.machines, supply.pool, journal=store) as pool:
        say(f"{supply.pool.n_machines} machines of {supply.machines.provider} are being made, pool {pool.name}")
        seconds = supply.pool.create_seconds + supply.pool.probe_seconds
        await pool.wait_until_ready(1, deadline=seconds, max_failures=MAX_FAILURES)
        yield pool


async def machines_now(
    config: RunConfig, supply: SupplySpec | None, store: Store, pool: MachinePool | Shares | None
) -> tuple[MachineRecord, ...]:
    """The machines of the run that exist, as the journal knows them."""
    if supply is None or config.pool_name is not None:
        return ()
    name = supply.pool.name
    own = [own_pool(name, worker) for worker in range(config.n_workers)]
    pools = pool.pools if isinstance(pool, Shares) else [name] if supply.is_shared else own
    states = [state for state in MachineState if state.exists]
    return tuple([record for pool in pools for record in await store.query_machines(pool, states)])


def idle_machine_settings(config: RunConfig) -> list[str]:
    """What the user should know about settings that do nothing with these machines."""
    if config.mode != OSWORLD or (config.provider_name or DEFAULT_PROVIDER) != DEFAULT_PROVIDER:
        return []
    given = [name for name in ("path_to_vm", "snapshot_name") if getattr(config, name) is not None]
    notes = [f"--{name.replace('_', '-')} has no effect: {_NO_IMAGE}" for name in given]
    return [*notes, "--headless has no effect: desktops never open a window"] if config.headless else notes
