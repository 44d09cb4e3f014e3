"""The commands with `--ray`, as people use them: on two nodes with PostgreSQL, and on a Ray of their own."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from outrider import RolloutRequest, Store, open_store
from outrider.core.status import RolloutStatus
from outrider.testing import eventually
from processes import OUTRIDER, run_outrider
from promptly import within
from ray_nodes import RayNodes, children, node_without, ray_nodes

EXAMPLE = Path(__file__).parents[3] / "examples" / "cluster" / "squares.py"
MATH = ("--mode", "math", "--model", "builtin:solver", "--limit", "6", "--output-dir", "results")
SETTINGS = """
train_env_manager: {tags: [FrozenLake], num_env_groups: 4, group_size: 2, num_groups_partition: [4]}
"""
AGENTS = """
import asyncio, os

async def slow(task, ctx):
    assert os.environ["OPENAI_API_KEY"] == "of the driver"
    while not os.path.exists(task.get("until", "never")):
        await asyncio.sleep(0.02)
    return 1.0
"""


@pytest.fixture(scope="module")
def two_nodes() -> Iterator[RayNodes]:
    with ray_nodes(2) as nodes:
        yield nodes


@pytest.fixture(scope="module")
def one_node() -> Iterator[RayNodes]:
    with ray_nodes(1) as nodes:
        yield nodes


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "frozen_lake.yaml").write_text(SETTINGS)
    (tmp_path / "some_agents.py").write_text(AGENTS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def nodes_of(nodes: RayNodes, pids: set[int]) -> list[int]:
    """How many of these processes are on each node."""
    return [len(pids.intersection(children(raylet))) for raylet in nodes.raylets]


async def working(store: Store) -> set[int]:
    """The processes that hold leases."""
    return {int(worker.worker_id.rpartition(":")[2]) for worker in await store.query_workers(status="busy")}


async def test_a_run_has_a_worker_on_each_node(two_nodes: RayNodes, postgres_url: str):
    Path("ray.yaml").write_text(f"ray: {two_nodes.address}\n")
    done = run_outrider("run", *MATH, "--config", "ray.yaml", "--store", postgres_url, "--name", "r", "--json")

    outcome = json.loads(done.stdout.splitlines()[-1])
    assert outcome["complete"]
    assert outcome["summary"]["total"]["n"] == 6
    assert "2 workers on 2 nodes of Ray" in done.stderr
    await gone_from(two_nodes, await working_ever(postgres_url))
    config = Path("results/r/config.yaml").read_text()
    assert f"ray: {two_nodes.address}" in config
    assert "workers" not in config, "the number of nodes is not a setting"


async def gone_from(nodes: RayNodes, pids: set[int]) -> None:
    """No worker is left on the cluster; those on other nodes than the driver's are told, not seen, to end."""

    async def are_gone() -> bool:
        return nodes_of(nodes, pids) == [0, 0]

    await eventually(are_gone)


async def working_ever(store_url: str) -> set[int]:
    async with open_store(store_url) as store:
        return {int(worker.worker_id.rpartition(":")[2]) for worker in await store.query_workers()}


def test_a_training_run_is_spread_over_the_nodes(two_nodes: RayNodes, postgres_url: str):
    place = ("--ray", two_nodes.address, "--store", postgres_url)
    done = run_outrider("rollout", "-c", "frozen_lake.yaml", "--steps", "2", *place, "--json")
    end = json.loads(done.stdout.splitlines()[-1])
    assert (end["steps"], end["complete"]) == (2, True)
    assert "2 workers on 2 nodes of Ray" in done.stderr


def test_the_example_runs_as_a_job_of_the_cluster_does(two_nodes: RayNodes, postgres_url: str, folder: Path):
    shutil.copy(EXAMPLE, folder)
    command = [sys.executable, EXAMPLE.name, "--store", postgres_url, "--rollouts", "40"]
    environment = {**os.environ, "RAY_ADDRESS": two_nodes.address}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "40 rollouts ended on" in done.stdout


@contextmanager
def at_work(nodes: RayNodes, store_url: str, *options: str) -> Iterator[subprocess.Popen[str]]:
    command = [*OUTRIDER, "work", "--store", store_url, "--ray", nodes.address, "--agent", "some_agents:slow"]
    environment = {**os.environ, "OPENAI_API_KEY": "of the driver"}
    with subprocess.Popen(
        [*command, *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as driver:
        try:
            yield driver
        finally:
            driver.kill()


async def test_the_first_signal_drains_and_leaves_nothing_on_the_cluster(two_nodes: RayNodes, postgres_url: str):
    go = Path("go").absolute()
    async with open_store(postgres_url) as store:
        short, long = [(await store.enqueue_rollout({"until": until})).rollout_id for until in (str(go), "never")]

        async def both_run() -> bool:
            return len(await working(store)) == 2

        with at_work(two_nodes, postgres_url, "--workers", "2", "--grace", "4") as driver:
            await eventually(both_run, within_seconds=30)
            pids = await working(store)
            assert nodes_of(two_nodes, pids) == [1, 1]
            driver.send_signal(signal.SIGINT)
            go.touch()
            said, _ = driver.communicate(timeout=30)
        assert "🛑 Stopping" in said
        assert driver.returncode == 0, said
        found = {rollout.rollout_id: rollout.status for rollout in await store.query_rollouts()}
        assert found[short] is RolloutStatus.SUCCEEDED
        assert found[long] in {RolloutStatus.QUEUING, RolloutStatus.REQUEUING}
    await gone_from(two_nodes, pids)


async def test_workers_end_with_a_driver_that_was_killed(two_nodes: RayNodes, postgres_url: str):
    async with open_store(postgres_url) as store:
        await store.enqueue_rollout({})

        async def runs() -> bool:
            return len(await working(store)) == 1

        with at_work(two_nodes, postgres_url, "--workers", "2") as driver:
            await eventually(runs, within_seconds=30)
            (pid,) = await working(store)
            driver.kill()

        async def gone() -> bool:
            return not Path(f"/proc/{pid}").exists()

        await eventually(gone, within_seconds=40)


async def test_the_command_ends_soon_after_the_last_rollout_however_many_workers_are_still_to_start(
    one_node: RayNodes, folder: Path
):
    store_url = f"sqlite:///{folder / 'runs.db'}"
    async with open_store(store_url, create=True) as store:
        last = await store.enqueue_rollout({"until": str(folder)})
        with at_work(one_node, store_url, "--workers", "32", "--until-done") as driver:
            await store.wait_for_rollouts([last.rollout_id], timeout=60)
            with within(8):
                said, _ = await asyncio.to_thread(driver.communicate, timeout=60)
    assert driver.returncode == 0, said


@pytest.mark.soak
@pytest.mark.timeout(900)
async def test_sixty_four_workers_do_no_less_than_sixteen(one_node: RayNodes, folder: Path):
    n_rollouts = 6_000
    rates: dict[int, float] = {}
    for n_workers in (16, 64):
        store_url = f"sqlite:///{folder / f'{n_workers}.db'}"
        async with open_store(store_url, create=True) as store:
            await store.enqueue_many_rollouts([RolloutRequest(input={"until": str(folder)}) for _ in range(n_rollouts)])
        with at_work(one_node, store_url, "--workers", str(n_workers), "--until-done") as driver:
            said, _ = await asyncio.to_thread(driver.communicate, timeout=400)
            gone_at = time.time()
        assert driver.returncode == 0, said[-2000:]
        async with open_store(store_url, read_only=True) as store:
            ended = sorted(one.ended_at.timestamp() for one in await store.query_rollouts() if one.ended_at)
        rates[n_workers] = n_rollouts / (ended[-1] - ended[0])
        print(f"{n_workers} workers: {rates[n_workers]:.0f}/s, ended {gone_at - ended[-1]:.1f} s after the last")
        assert gone_at - ended[-1] < 8
    assert rates[64] > 0.6 * rates[16]  # a machine may be busy with something else meanwhile


async def test_a_node_that_joins_and_does_not_see_the_file_of_the_store_is_left_out(one_node: RayNodes, folder: Path):
    go = folder / "go"
    store_url = f"sqlite:///{folder / 'runs.db'}"
    async with open_store(store_url, create=True) as store:
        for _ in range(2):
            await store.enqueue_rollout({"until": str(go)})

        async def at_work_on(*others: int) -> bool:
            return len(await working(store) - {*others}) == 2

        with at_work(one_node, store_url, "--workers", "2", "--until-done") as driver:
            await eventually(partial(at_work_on), within_seconds=60)
            with node_without(folder, one_node.address):
                await eventually(partial(asyncio.to_thread, has_joined, one_node, 2), within_seconds=60)
                killed = (await working(store)).pop()
                os.kill(killed, signal.SIGKILL)  # the other node has fewer workers, so the next one goes there
                await eventually(partial(at_work_on, killed), within_seconds=60)
                go.touch()
                said, _ = await asyncio.to_thread(driver.communicate, timeout=60)
        assert driver.returncode == 0, said
        assert said.count("node 127.0.0.99 is left out: it does not see the store") == 1
        ended = await store.query_rollouts(status=RolloutStatus.SUCCEEDED)
        assert ended.total == 2


def has_joined(nodes: RayNodes, n_nodes: int) -> bool:
    source = (
        "import ray, sys; ray.init(sys.argv[1], logging_level='ERROR'); print(sum(n['Alive'] for n in ray.nodes()))"
    )
    done = subprocess.run([sys.executable, "-c", source, nodes.address], capture_output=True, text=True, check=True)
    return int(done.stdout.split()[-1]) == n_nodes


@pytest.mark.parametrize("command", [("run", *MATH), ("rollout", "-c", "frozen_lake.yaml"), ("work",)])
def test_a_file_is_refused_as_the_store_of_two_nodes_before_anything_is_made(
    two_nodes: RayNodes, command: tuple[str, ...]
):
    done = run_outrider(*command, "--ray", two_nodes.address, code=2)
    assert "has 2 nodes, and a SQLite store is a file of this one" in done.stderr
    assert "--store postgresql://" in done.stderr
    assert not Path("results").exists()
    assert not Path("outrider.db").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("run", *MATH, "--ray", "127.0.0.1:1"), "no Ray answers at 127.0.0.1:1"),
        (("run", *MATH, "--ray", "here"), "is not host:port of a Ray"),
        (("run", *MATH, "--dry-run", "--ray", "127.0.0.1:1"), "no Ray answers at 127.0.0.1:1"),
        (("run", *MATH, "--ray", "--cpus-per-worker=-1"), "cpus_per_worker is -1.0; give 0 or more"),
        (("work", "--ray", "--store", "memory://"), "lives in one process"),
        (("work", "--ray", "--tasks"), "give one of them"),
    ],
)
def test_mistakes_are_named_at_once_and_change_nothing(arguments: tuple[str, ...], says: str):
    assert says in run_outrider(*arguments, code=2).stderr
    assert not Path("results").exists()
