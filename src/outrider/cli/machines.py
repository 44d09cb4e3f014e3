"""The machines of a job: which, how many, and whose."""

import hashlib
import math
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from outrider.cli.machine_settings import MachineSettings
from outrider.core.bounds import MAX_SECONDS
from outrider.core.errors import InvalidInput
from outrider.core.machine import MachineRecord, MachineState
from outrider.core.settings import settings_of
from outrider.pool import MachinePool, PoolConfig
from outrider.pool.registry import provider_of
from outrider.pool.service.host import hosted_pool
from outrider.pool.service.place import PoolFacts, PoolPlace, pools_on_host
from outrider.pool.spec import DEFAULT_PROVIDER, LISTED, MachineSpec
from outrider.runner.attempt import StageLimits
from outrider.runner.kit import EpisodeSpec
from outrider.runner.machines import SupplySpec, own_pool
from outrider.runner.supervisor import Launcher, process_launcher, task_launcher
from outrider.store import Store, StoreUrl

if TYPE_CHECKING:
    from outrider.cluster.cluster import Cluster
    from outrider.cluster.rollouts.shares import Shares

OSWORLD = "osworld"
KINDS: Mapping[str, str] = {"web": "browser", "py": "process"}
"""The machines of environments that do without unless asked."""

LONG_SECONDS = 4 * 3600.0
"""How long a rollout without a limit of its own may hold a machine."""

AROUND_SECONDS = 900.0
"""What setting up, scoring and closing take besides the rollout's own time, at the most."""

LEAST_WAIT_SECONDS = 600.0
LONGEST_WAIT_SECONDS = MAX_SECONDS / 2
MAX_FAILURES = 3
"""The run stops after this many failures to make a machine, if none was ever made."""

_NO_IMAGE = "desktops are made of what this host has installed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What a job wants of machines. A job whose environments use none has no demand.

    `environments` are the names of those that act on machines. Of the rollouts, `n_at_once` run at the same time, up to
    `n_slots` in a worker; each holds its machine for `hold_seconds` at the most. `n_own` is how many machines a worker
    gets that shares none. `run` and `place` tell jobs apart: their machines are found again by both.
    """

    settings: MachineSettings
    environments: tuple[str, ...]
    n_at_once: int
    n_workers: int
    n_slots: int
    n_own: int
    hold_seconds: float
    run: str
    place: Path


def uses_machines(settings: MachineSettings, environment: str) -> bool:
    """Whether this environment gets machines; one of the user's own may use some if they are asked for."""
    return environment == OSWORLD or (settings.are_asked_for and (environment in KINDS or ":" in environment))


def kind_of(settings: MachineSettings, environments: Sequence[str]) -> str:
    """The provider of the machines. Raises `InvalidInput` where the environments would each have another."""
    if settings.provider_name is not None:
        return settings.provider_name
    kinds = {name: KINDS.get(name, DEFAULT_PROVIDER) for name in environments}
    if settings.pool_name is None and len(set(kinds.values())) > 1:
        wanted = ", ".join(f"{name} those of {kind}" for name, kind in kinds.items())
        raise InvalidInput(
            f"a run has machines of one kind, and {wanted}; name the one that all shall use with provider_name, "
            "or split the run"
        )
    return next(iter(kinds.values()), DEFAULT_PROVIDER)


def machine_spec(settings: MachineSettings, environments: Sequence[str]) -> MachineSpec:
    if settings.pool_name is not None:
        return _served(settings.pool_name).machines
    provider = kind_of(settings, environments)
    is_desktop = provider == DEFAULT_PROVIDER
    return MachineSpec(
        provider=provider,
        image=None if is_desktop else settings.path_to_vm,
        snapshot=None if is_desktop else settings.snapshot_name,
        width=settings.screen_width,
        height=settings.screen_height,
        headless=settings.headless or None,
        settings=settings.machine,
    )


def supply_spec(demand: Demand | None, cluster: "Cluster | None" = None) -> SupplySpec | None:
    """Where the workers of the job get machines; None: they need none.

    On a cluster the machines are divided into shares, and how long a worker may wait follows from the smallest.
    """
    if demand is None:
        return None
    settings, pool = demand.settings, _pool_config(demand)
    n_shares = 1 if cluster is None or settings.pool_name is not None else n_shares_of(demand, pool, cluster)
    n_sharing = math.ceil(demand.n_workers / n_shares) if settings.are_shared else 1
    n_at_once = min(demand.n_at_once, n_sharing * demand.n_slots)
    n_machines = pool.n_machines // n_shares if settings.are_shared else pool.n_machines
    n_turns = math.ceil(n_at_once / n_machines)
    return SupplySpec(
        machines=machine_spec(settings, demand.environments),
        pool=pool,
        is_shared=settings.are_shared,
        run=demand.run,
        wait_seconds=min(
            max(LEAST_WAIT_SECONDS, (n_turns - 1) * pool.max_hold_seconds + pool.create_seconds), LONGEST_WAIT_SECONDS
        ),
    )


def _pool_config(demand: Demand) -> PoolConfig:
    settings = demand.settings
    for name, flag in (("name", "--pool-name"), ("n_machines", "--num-vms")):
        if name in settings.pool:
            raise InvalidInput(f"--pool {name}=…: that is what {flag} is for")
    digest = hashlib.sha256(str(demand.place.absolute()).encode()).hexdigest()[:8]
    values = {
        "name": settings.pool_name or f"{demand.run}@{socket.gethostname()}-{digest}",
        "n_machines": settings.num_vms if settings.use_vm_pool else demand.n_own,
        "max_hold_seconds": min(demand.hold_seconds, MAX_SECONDS),
        **settings.pool,
    }
    if settings.pool_name is not None:
        values["n_machines"] = _served(settings.pool_name).n_machines
    return settings_of(PoolConfig, values, "settings of the pool")


def n_shares_of(demand: Demand, pool: PoolConfig, cluster: "Cluster") -> int:
    """Into how many pools the machines are divided: one a node, and none without machines or workers."""
    return min(len(cluster.working_nodes), pool.n_machines, demand.n_workers)


def n_pools_of(demand: Demand | None, cluster: "Cluster | None") -> int:
    """How many processes on the nodes of a cluster open the store beside the workers: one a pool of machines."""
    if demand is None or cluster is None or not demand.settings.use_vm_pool or demand.settings.pool_name is not None:
        return 0
    return n_shares_of(demand, _pool_config(demand), cluster)


def limits_on_machines(limits: StageLimits, supply: SupplySpec | None) -> StageLimits:
    """The wait for a machine is part of an attempt's boot, and of nothing else."""
    return limits if supply is None else replace(limits, boot_seconds=supply.wait_seconds + LEAST_WAIT_SECONDS)


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


def check_places(demand: Demand | None, cluster: "Cluster | None") -> None:
    """Raise `InvalidInput` if workers on the nodes of the cluster could not use such machines, or not apart."""
    if cluster is None or demand is None:
        return
    from outrider.cluster.rollouts.opening import is_one_here  # noqa: PLC0415 takes its time, and few need it

    settings, n_nodes = demand.settings, len(cluster.working_nodes)
    if settings.pool_name is not None and not is_one_here([node.ip for node in cluster.nodes]):
        where = f"has {n_nodes} nodes" if n_nodes > 1 else "is on another machine"
        raise InvalidInput(
            f"--pool-name {settings.pool_name}: that pool serves workers on this host alone, and the Ray cluster "
            f"{where}; give --use-vm-pool --num-vms M instead, and the nodes share M machines of the run's own"
        )
    if settings.provider_name == LISTED and not settings.use_vm_pool and n_nodes > 1:
        raise InvalidInput(
            f"workers on {n_nodes} nodes would take the same machines from the list of {LISTED}; "
            "give --use-vm-pool --num-vms M, and each node gets a part of the list"
        )


async def check_machines(demand: Demand | None, supply: SupplySpec | None, cluster: "Cluster | None" = None) -> None:
    """Raise `InvalidInput` if the machines of the job cannot be had here. Nodes of a cluster see for themselves."""
    if demand is None or supply is None or demand.settings.pool_name is not None or cluster is not None:
        return
    n_pools = 1 if supply.is_shared else demand.n_workers
    await provider_of(supply.machines).check(supply.pool.n_machines * n_pools)


@asynccontextmanager
async def open_machines(
    demand: Demand | None,
    supply: SupplySpec | None,
    store: Store,
    say: Callable[[str], None],
    cluster: "Cluster | None" = None,
    *,
    url: StoreUrl,
) -> AsyncIterator["MachinePool | Shares | None"]:
    """The pool that the workers of the job share, once it has its first machine; None if they share none of ours.

    On a cluster it is several, one for each node, which open the store by `url`.
    """
    if demand is None or supply is None or not supply.is_shared or demand.settings.pool_name is not None:
        yield None
        return
    if cluster is not None:
        from outrider.cluster.rollouts.shares import open_shares  # noqa: PLC0415 takes its time, and few need it

        n_shares = n_shares_of(demand, supply.pool, cluster)
        async with open_shares(cluster, supply, url, n_shares=n_shares, on_line=say) as shares:
            yield shares
        return
    async with hosted_pool(supply.machines, supply.pool, journal=store) as pool:
        say(f"{supply.pool.n_machines} machines of {supply.machines.provider} are being made, pool {pool.name}")
        seconds = supply.pool.create_seconds + supply.pool.probe_seconds
        await pool.wait_until_ready(1, deadline=seconds, max_failures=MAX_FAILURES)
        yield pool


def fits_in_process(episodes: EpisodeSpec, n_workers: int, store_url: StoreUrl | None) -> bool:
    """Whether the workers can be tasks of the command's own process, which starts sooner.

    A user's own code gets a process, which can be ended if the code blocks it; but for a store that no other process
    can open.
    """
    in_memory = store_url is not None and store_url.scheme == "memory"
    return n_workers == 1 and (episodes.is_built_in or in_memory)


def launcher_of(
    store: Store,
    say: Callable[[str], None],
    *,
    as_tasks: bool,
    cluster: "Cluster | None",
    cpus_per_worker: float,
    pool: "MachinePool | Shares | None" = None,
) -> Launcher:
    """Workers in this process, in processes of their own, or on a cluster: there, where their share of machines is."""
    if cluster is not None:
        from outrider.cluster.rollouts.launcher import cluster_launcher  # noqa: PLC0415 takes its time, and few need it

        launcher = partial(cluster_launcher, cluster, say, cpus_per_worker=cpus_per_worker)
        if pool is None or isinstance(pool, MachinePool):
            return launcher()
        return launcher(choose=pool.choose, berths=pool.berths)
    return task_launcher(store, say) if as_tasks else process_launcher(say)


async def machines_now(
    demand: Demand | None, supply: SupplySpec | None, store: Store, pool: "MachinePool | Shares | None"
) -> tuple[MachineRecord, ...]:
    """The machines of the job that exist, as the journal knows them."""
    if demand is None or supply is None or demand.settings.pool_name is not None:
        return ()
    name = supply.pool.name
    own = [own_pool(name, worker) for worker in range(demand.n_workers)]
    here = [name] if supply.is_shared else own
    pools = here if pool is None or isinstance(pool, MachinePool) else pool.pools
    states = [state for state in MachineState if state.exists]
    return tuple([record for pool in pools for record in await store.query_machines(pool, states)])


def idle_machine_settings(demand: Demand) -> list[str]:
    """What the user should know about settings that do nothing with these machines."""
    settings = demand.settings
    if kind_of(settings, demand.environments) != DEFAULT_PROVIDER:
        return []
    given = [name for name in ("path_to_vm", "snapshot_name") if getattr(settings, name) is not None]
    notes = [f"{flag_of(name)} has no effect: {_NO_IMAGE}" for name in given]
    return [*notes, "--headless has no effect: desktops never open a window"] if settings.headless else notes


def flag_of(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def without_effect(names: Sequence[str], why: str) -> list[str]:
    """A note on settings that were given and do nothing, if there are any."""
    verb = "has" if len(names) == 1 else "have"
    return [f"{', '.join(map(flag_of, names))} {verb} no effect{why}"] if names else []
