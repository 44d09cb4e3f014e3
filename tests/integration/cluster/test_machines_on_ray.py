"""Machines of a run on the nodes of a cluster: lent where they are, and set up again where they were lost."""

import asyncio
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from outrider import Store, open_store
from outrider.cli.machines import check_places, supply_spec
from outrider.cli.run_config import RunConfig
from outrider.cli.run_setup import demand_of
from outrider.cluster.cluster import Cluster
from outrider.cluster.info import NodeInfo
from outrider.cluster.rollouts.launcher import cluster_launcher
from outrider.cluster.rollouts.shares import Shares, open_shares
from outrider.core.errors import InvalidInput
from outrider.core.machine import MachineState
from outrider.core.status import LIVE, RolloutStatus
from outrider.env.registry import bundled_tasks
from outrider.policy.spec import PolicySpec
from outrider.pool import PoolConfig
from outrider.pool.providers.process import ProcessProvider
from outrider.pool.service.host import clean_up
from outrider.pool.service.place import PoolPlace, pools_on_host
from outrider.pool.spec import MachineSpec
from outrider.runner import RunnerConfig
from outrider.runner.kit import EnvironmentSpec, EpisodeSpec
from outrider.runner.machines import SupplySpec
from outrider.runner.supervisor import Scale, Supervisor
from outrider.runner.worker import WorkerSpec
from outrider.testing import eventually
from processes import OUTRIDER, parent_of, stop, stop_between_writes
from ray_nodes import descendants, ray_nodes

SLOW = "builtin:solver?latency=0.3"


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(local=True, num_nodes=2) as opened:
        yield opened


@pytest.fixture
def short_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What the host keeps of pools and machines, in a folder of the test's own."""
    assert tmp_path.exists()  # made before there is another folder for what is temporary
    with tempfile.TemporaryDirectory(prefix="or-") as short:
        monkeypatch.setenv("TMPDIR", short)
        monkeypatch.setattr(tempfile, "tempdir", short)
        yield


class Run:
    """A run of Python tasks on a cluster, with machines in two shares; told where each worker was sent."""

    def __init__(self, store: Store, shares: Shares, supervisor: Supervisor, sent: list[tuple[int, int]]) -> None:
        self.store = store
        self.shares = shares
        self.supervisor = supervisor
        self.sent = sent

    async def follow(self) -> None:
        """Work until every rollout has ended."""

        async def all_ended() -> bool:
            rollouts = await self.store.query_rollouts(limit=100)
            return all(rollout.status not in LIVE | {"queuing", "requeuing"} for rollout in rollouts)

        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            group.create_task(self.supervisor.run())
            await eventually(all_ended, within_seconds=50)
            self.supervisor.drain()

    def worker(self, index: int) -> int:
        """The process of the worker."""
        (found,) = [w for w in self.supervisor.workers if getattr(w, "index", None) == index]
        return int(found.worker_id.rpartition(":")[2])


@asynccontextmanager
async def begun(
    cluster: Cluster, store: Store, lines: list[str], *, n_tasks: int, n_machines: int = 3, n_workers: int = 2
) -> AsyncIterator[Run]:
    pool = PoolConfig(name=f"r{os.getpid()}", n_machines=n_machines)
    supply = SupplySpec(machines=MachineSpec(provider="process"), pool=pool, is_shared=True)
    for task in bundled_tasks("py", limit=n_tasks):
        await store.enqueue_rollout(task.as_input(), tag="py")
    episodes = EpisodeSpec(
        policy=PolicySpec(model=SLOW), environments={"py": EnvironmentSpec(name="py")}, supply=supply
    )
    spec = WorkerSpec(
        store_url=store.url, episodes=episodes, config=RunnerConfig(max_env_num_per_worker=2, tags=("py",))
    )
    sent: list[tuple[int, int]] = []
    async with open_shares(cluster, supply, store.url, n_shares=2, on_line=lines.append) as shares:

        async def choose(spec: WorkerSpec, nodes: Sequence[NodeInfo]) -> tuple[NodeInfo, WorkerSpec] | None:
            chosen = await shares.choose(spec, nodes)
            if chosen is not None:
                sent.append((spec.index, chosen[0].node_id))
            return chosen

        launcher = cluster_launcher(cluster, lines.append, choose=choose, berths=shares.berths)
        scale = Scale(minimum=n_workers, maximum=n_workers)
        yield Run(store, shares, Supervisor(store, spec, scale=scale, launcher=launcher, on_line=lines.append), sent)


def lent(store: Store, *pools: str) -> Callable[[], Awaitable[bool]]:
    async def are_lent() -> bool:
        leased = await store.query_machines(None, [MachineState.LEASED])
        return {machine.pool for machine in leased} >= set(pools)

    return are_lent


def pid_of(pool: str) -> int:
    facts = PoolPlace(pool).facts()
    assert facts is not None
    return facts.pid


async def all_scored_once(store: Store, n: int) -> None:
    rollouts = await store.query_rollouts(limit=100)
    assert [rollout.status for rollout in rollouts] == [RolloutStatus.SUCCEEDED] * n
    for rollout in rollouts:
        attempts = await store.query_attempts(rollout.rollout_id)
        assert [attempt.status for attempt in attempts].count("succeeded") == 1


async def nothing_is_left(store: Store, pools: Sequence[str]) -> None:
    assert {machine.state for machine in await store.query_machines()} == {MachineState.GONE}
    for pool in pools:
        assert not PoolPlace(pool).folder.exists()
        assert await ProcessProvider().owned(pool) == ()


@pytest.mark.usefixtures("short_folder")
async def test_each_node_has_its_share_of_the_machines_and_the_workers_that_use_them(cluster: Cluster, store: Store):
    lines: list[str] = []
    async with begun(cluster, store, lines, n_tasks=8) as run:
        pools = [pid_of(pool) for pool in run.shares.pools]
        await run.follow()
        sizes = [len(await store.query_machines(pool)) for pool in run.shares.pools]

    await all_scored_once(store, 8)
    counted = run.shares.statistics()
    assert (counted.n_machines, counted.n_leases, counted.n_leaks) == (3, 8, 0)
    assert sizes == [2, 1]
    assert sorted(run.sent) == [(0, 0), (1, 1)]
    moves = (await store.query_machine_moves()).items
    assert {move.pool for move in moves if move.state is MachineState.LEASED} == set(run.shares.pools)
    assert not any(Path(f"/proc/{pid}").exists() for pid in pools)
    await nothing_is_left(store, run.shares.pools)
    assert [line for line in lines if "has its first machine" in line]


@pytest.mark.usefixtures("short_folder")
async def test_a_killed_pool_is_back_on_its_node_with_its_machines_and_its_workers_wait_for_it(
    cluster: Cluster, store: Store
):
    lines: list[str] = []
    async with begun(cluster, store, lines, n_tasks=10) as run:
        async with asyncio.TaskGroup() as group:
            following = group.create_task(run.follow())
            await eventually(lent(store, *run.shares.pools), within_seconds=20)
            killed = pid_of(run.shares.pools[0])
            before = {machine.machine_id for machine in await store.query_machines(run.shares.pools[0])}
            os.kill(killed, signal.SIGKILL)

            async def is_back() -> bool:
                return pid_of(run.shares.pools[0]) != killed and run.shares.statistics().n_machines == 3

            await eventually(is_back, within_seconds=20)
            await following
        exists = [state for state in MachineState if state.exists]
        after = {machine.machine_id for machine in await store.query_machines(run.shares.pools[0], exists)}
        assert after == before

    await all_scored_once(store, 10)
    assert run.supervisor.n_deaths == 0
    assert len(run.sent) == 2
    assert any("is lost" in line and "SIGKILL" in line for line in lines)
    await nothing_is_left(store, run.shares.pools)


@pytest.mark.usefixtures("short_folder")
async def test_a_pool_whose_node_is_silent_moves_and_its_workers_are_called_after_it(
    cluster: Cluster, store: Store, tmp_path: Path
):
    lines: list[str] = []
    async with begun(cluster, store, lines, n_tasks=8) as run, asyncio.TaskGroup() as group:
        following = group.create_task(run.follow())
        await eventually(lent(store, *run.shares.pools), within_seconds=20)
        worker = run.worker(1)
        stop_between_writes(worker, tmp_path / "runs.db")
        stop(parent_of(worker))
        os.kill(pid_of(run.shares.pools[1]), signal.SIGKILL)
        await following
        os.kill(worker, signal.SIGKILL)

    await all_scored_once(store, 8)
    assert run.sent[-1] == (1, 0)
    assert any("was recalled: its machines are on node" in line for line in lines)
    await nothing_is_left(store, run.shares.pools)


@asynccontextmanager
async def names_taken(pools: Sequence[str]) -> AsyncIterator[None]:
    """The processes of the pools are killed, and another has their names: they cannot come back."""
    places = [PoolPlace(pool) for pool in pools]
    for pool, place in zip(pools, places, strict=True):
        os.kill(pid_of(pool), signal.SIGKILL)

        async def is_ours(place: PoolPlace = place) -> bool:
            with suppress(InvalidInput):
                place.claim(MachineSpec(provider="process"), 1)
                return True
            return False

        await eventually(is_ours, within_seconds=30)
    try:
        yield
    finally:
        for place in places:
            place.leave(forget=False)


@pytest.mark.usefixtures("short_folder")
async def test_while_a_share_cannot_be_set_up_again_the_others_do_its_work(
    cluster: Cluster, store: Store, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("outrider.cluster.rollouts.shares.PAUSE_SECONDS", 0.01)
    lines: list[str] = []
    async with begun(cluster, store, lines, n_tasks=5) as run:
        async with asyncio.TaskGroup() as group:
            following = group.create_task(run.follow())
            await eventually(lent(store, *run.shares.pools), within_seconds=20)
            async with names_taken(run.shares.pools[1:]):
                await following
        await all_scored_once(store, 5)

        async def is_back() -> bool:
            return run.shares.statistics().n_machines == 3

        await eventually(is_back, within_seconds=20)

    assert any("was recalled: its machines are lost" in line for line in lines)
    assert any("has the pool" in line for line in lines)
    await nothing_is_left(store, run.shares.pools)


@pytest.mark.usefixtures("short_folder")
async def test_a_run_ends_when_no_share_can_be_set_up_again(
    cluster: Cluster, store: Store, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("outrider.cluster.rollouts.shares.PAUSE_SECONDS", 0.01)
    monkeypatch.setattr("outrider.cluster.rollouts.shares.MAX_FAILED_STARTS", 2)
    async with begun(cluster, store, [], n_tasks=8) as run:
        running = asyncio.create_task(run.supervisor.run())
        await eventually(lent(store, *run.shares.pools), within_seconds=20)
        async with names_taken(run.shares.pools):
            with pytest.raises(
                InvalidInput, match=r"pool r\d+\.[01] on node .*: process \d+ on this host has the pool"
            ):
                await asyncio.wait_for(running, 40)
    for facts in list(pools_on_host()):  # what a share that got its name back at last has not ended itself
        await clean_up(facts, journal=store)
    await nothing_is_left(store, run.shares.pools)


@pytest.mark.usefixtures("short_folder")
async def test_machines_that_cannot_be_had_are_refused_and_the_node_is_named(cluster: Cluster, store: Store):
    ip = cluster.nodes[0].ip
    with pytest.raises(InvalidInput, match=rf"pool r\d+\.[01] on node {ip}: .*memory"):
        async with begun(cluster, store, [], n_tasks=1, n_machines=1_000_000):
            pass
    assert not await store.query_machines()


def test_a_pool_of_this_host_is_not_for_workers_elsewhere(cluster: Cluster, tmp_path: Path):
    with pytest.raises(InvalidInput, match=r"--pool-name mine: .* has 2 nodes; give --use-vm-pool --num-vms M"):
        check_places(demand_of(RunConfig(mode="py", pool_name="mine", ray=""), "r", tmp_path), cluster)
    with pytest.raises(InvalidInput, match=r"2 nodes would take the same machines .*; give --use-vm-pool"):
        check_places(demand_of(RunConfig(mode="osworld", provider_name="attach", ray=""), "r", tmp_path), cluster)


def test_how_long_a_worker_waits_follows_from_the_smallest_share(cluster: Cluster, tmp_path: Path):
    config = RunConfig(mode="py", use_vm_pool=True, num_vms=3, num_rollouts=6, workers=2, timeout=100.0)
    alone, shared = (supply_spec(demand_of(config, "r", tmp_path), on) for on in (None, cluster))
    assert alone is not None
    assert shared is not None
    hold = alone.pool.max_hold_seconds
    assert (alone.wait_seconds, shared.wait_seconds) == (hold + 300.0, 2 * hold + 300.0)


@pytest.mark.timeout(200)
async def test_a_run_on_ray_outlives_a_node_and_its_share_of_the_machines(
    postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    name = f"lost-{os.getpid()}"
    command = [*OUTRIDER, "run", "--mode", "py", "--model", SLOW, "--name", name, "--store", postgres_url, "--json"]
    command += ["--use-vm-pool", "--num-vms", "4", "--num-rollouts", "6", "--samples-per-task", "2", "--limit", "9"]
    async with open_store(postgres_url) as store:
        with ray_nodes(2) as nodes:
            process = subprocess.Popen(
                [*command, "--ray", nodes.address],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            with process:
                try:
                    await eventually(both_lend(store), within_seconds=80)
                    pools = {machine.pool for machine in await store.query_machines()}
                    (lost,) = [pool for pool in pools if pid_of(pool) in descendants(nodes.raylets[1])]
                    await asyncio.to_thread(nodes.lose)
                    output, _ = await asyncio.to_thread(process.communicate, timeout=60)
                finally:
                    process.kill()
        assert process.returncode == 0, output
        *lines, outcome = output.splitlines()
        assert any(line.startswith(f"💀 pool {lost} on node") for line in lines), output
        assert sum(line.startswith(f"pool {lost} on node") for line in lines) == 2, "its first machine, twice"
        assert json.loads(outcome)["machines"]["n_machines"] == 4
        await all_scored_once(store, 18)
        await nothing_is_left(store, sorted(pools))


def both_lend(store: Store) -> Callable[[], Awaitable[bool]]:
    async def do_both() -> bool:
        return len({machine.pool for machine in await store.query_machines(None, [MachineState.LEASED])}) == 2

    return do_both
