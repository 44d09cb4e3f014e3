"""A training run with machines on the nodes of a Ray cluster: each node has its share, and the workers that use it."""

import json
import os
from pathlib import Path

import pytest

from outrider import open_store
from outrider.core.ledger import GroupState
from outrider.core.machine import MachineState
from outrider.pool.providers.process import ProcessProvider
from outrider.pool.service.place import PoolPlace
from processes import run_outrider
from ray_nodes import ray_nodes

SETTINGS = """
train_env_manager: {num_env_groups: 2, group_size: 3, tags: [py]}
model: builtin:solver?latency=0.3
use_vm_pool: true
num_vms: 2
"""


async def test_members_use_the_machines_of_the_node_they_are_on(
    postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    Path("programs.yaml").write_text(SETTINGS)
    name = f"shared-{os.getpid()}"
    with ray_nodes(2) as nodes:
        place = ("--ray", nodes.address, "--store", postgres_url)
        done = run_outrider("rollout", "-c", "programs.yaml", "--steps", "2", "--name", name, *place, "--json")
        refused = run_outrider("rollout", "-c", "programs.yaml", "--pool-name", "mine", *place, code=2).stderr
    assert "--pool-name mine: that pool serves workers on this host alone" in refused
    *steps, end = [json.loads(line) for line in done.stdout.splitlines()]
    assert [step["reward"] for step in steps] == [1.0, 1.0]
    assert (end["complete"], end["machines"]["n_machines"], end["machines"]["n_leaks"]) == (True, 2, 0)
    async with open_store(postgres_url) as store:
        known = await store.query_machines()
        moves = (await store.query_machine_moves()).items
        groups = await store.query_groups(name, states=(GroupState.ACKNOWLEDGED,))
        workers = {one.rollout_id: (await store.query_attempts(one.rollout_id)) for one in await store.query_rollouts()}
    members = {member for group in groups for member in group.members}
    assert len(members) == 12
    lent = {move.holder: move.pool for move in moves if move.state is MachineState.LEASED}
    assert members <= lent.keys()
    pools = {machine.pool for machine in known}
    assert len(pools) == 2
    by_worker = {(workers[member].items[-1].worker_id, lent[member]) for member in members}
    assert len(by_worker) == len({worker for worker, _ in by_worker}) == 2, (
        "a worker has one pool, and each has its own"
    )
    assert {machine.state for machine in known} == {MachineState.GONE}
    for pool in pools:
        assert not PoolPlace(pool).folder.exists()
        assert await ProcessProvider().owned(pool) == ()
