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
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from uuid import uuid4

import pytest

from agents_from_hell import AGENTS as HELL
from agents_from_hell import HANG, check_hell, enqueue_hell, none_left
from outrider import RolloutRequest, Store, open_store
from outrider.core.account import Fate
from outrider.core.status import RolloutStatus
from outrider.policy import PolicySpec, open_policy
from outrider.pool.service.place import pools_on_host
from outrider.testing import ModelServer, eventually
from processes import OUTRIDER, parent_of, run_outrider
from promptly import within
from ray_nodes import RayNodes, descendants, node_without, ray_nodes
from soaking import note_soak
from stored_tokens import pid_of, stored_tokens, unfinished_of
from warm_outrider import run_warm

EXAMPLE = Path(__file__).parents[3] / "examples" / "cluster" / "squares.py"
MATH = ("--mode", "math", "--model", "builtin:solver", "--limit", "6", "--output-dir", "results")
SETTINGS = """
train_env_manager: {tags: [FrozenLake], num_env_groups: 4, group_size: 2, num_groups_partition: [4]}
"""
AGENTS = """
import asyncio, os, subprocess
from functools import cache
from pathlib import Path

@cache
def refuse_keys():
    assert os.environ["JUDGE_TOKEN"] == "passed"
    assert not {"OPENAI_API_KEY", "OUTRIDER_CLUSTER"} & os.environ.keys()
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        os.write(child.stdin.fileno(), b"there?")
        os.read(child.stdout.fileno(), 6)
        for pid in (os.getpid(), child.pid):
            variables = Path(f"/proc/{pid}/environ").read_bytes()
            assert b"of the driver" not in variables
            assert b"OUTRIDER_CLUSTER" not in variables

async def slow(task, ctx):
    refuse_keys()
    while not os.path.exists(task.get("until", "never")):
        await asyncio.sleep(0.02)
    return 1.0
"""


THE_THIRD_WAITS = "waits until a node has 2 CPUs free; the largest has 2"


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
    (tmp_path / "hell.py").write_text(HELL)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def nodes_of(nodes: RayNodes, pids: set[int]) -> list[int]:
    """How many of these processes are on each node."""
    return [len(pids.intersection(descendants(raylet))) for raylet in nodes.raylets]


async def working(store: Store) -> set[int]:
    """The processes that hold leases."""
    return {pid_of(worker.worker_id) for worker in await store.query_workers(status="busy")}


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


async def test_workers_ask_the_model_with_the_keys_that_are_named_and_are_no_more_than_the_reserved_cpus_allow(
    two_nodes: RayNodes, postgres_url: str
):
    async with ModelServer(await open_policy(PolicySpec(model="builtin:solver")), key="right") as server:
        model = ("--model", "test-model", "--base-url", server.base_url, "--api-key-env", "MY_MODEL")
        place = ("--ray", two_nodes.address, "--store", postgres_url, "--workers", "3", "--cpus-per-worker", "2")
        header = ("--header", "X-Api-Key=env:MY_HEADER")
        run = partial(run_warm, seconds=100, MY_MODEL="right", MY_HEADER="another")
        done = await asyncio.to_thread(run, "run", "--mode", "FrozenLake", "--limit", "2", *model, *header, *place)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {request.headers["x-api-key"] for request in server.requests} == {"another"}
    assert THE_THIRD_WAITS in done.stdout


async def gone_from(nodes: RayNodes, pids: set[int]) -> None:
    """No worker is left on the cluster; those on other nodes than the driver's are told, not seen, to end."""

    async def are_gone() -> bool:
        return nodes_of(nodes, pids) == [0, 0]

    await eventually(are_gone)


async def working_ever(store_url: str) -> set[int]:
    async with open_store(store_url) as store:
        return {pid_of(worker.worker_id) for worker in await store.query_workers()}


def test_a_training_run_is_spread_over_the_nodes(two_nodes: RayNodes, postgres_url: str):
    place = ("--ray", two_nodes.address, "--store", postgres_url, "--workers", "3", "--cpus-per-worker", "2")
    done = run_outrider("rollout", "-c", "frozen_lake.yaml", "--steps", "2", *place, "--json")
    end = json.loads(done.stdout.splitlines()[-1])
    assert (end["steps"], end["complete"]) == (2, True)
    assert "3 workers on 2 nodes of Ray" in done.stderr
    assert THE_THIRD_WAITS in done.stderr


@pytest.mark.soak
@pytest.mark.parametrize("raylet_alone", [False, True])
async def test_what_a_lost_node_has_generated_is_in_the_tally_as_aborted(
    two_nodes: RayNodes, postgres_url: str, raylet_alone: bool
):
    place = ("--ray", two_nodes.address, "--store", postgres_url, "--workers", "2", "--name", "lossy")
    settings = ("--set", "model=builtin:random?latency=0.2", "--steps", "4", "--json")
    command = [*OUTRIDER, "rollout", "-c", "frozen_lake.yaml", *settings, *place]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        try:
            async with open_store(postgres_url, create=True) as store:
                await eventually(partial(have_turns_on, two_nodes.raylets[1], store), within_seconds=60)
                pids = set(descendants(two_nodes.raylets[1]))
                await asyncio.to_thread(two_nodes.lose, 1, raylet_alone=raylet_alone)
                said, log = await asyncio.to_thread(run.communicate, timeout=100)
                stored, lost = await stored_tokens(store), await unfinished_of(pids, store)
                accounts = await store.query_accounts([one.rollout_id for one in await store.query_rollouts()])
                tally = await store.tally("lossy")
        finally:
            run.kill()
    assert run.returncode == 0, log
    assert json.loads(said.splitlines()[-1])["complete"]
    assert {one.attempt_id: one.account.completion_tokens for one in accounts} == stored
    assert tally.generated == sum(stored.values())
    assert {one.fate for one in accounts if one.attempt_id in lost} == {Fate.ABORTED}
    assert sum(stored[attempt_id] for attempt_id in lost) > 0
    assert tally.tokens[Fate.SURPLUS] == 0


async def have_turns_on(raylet: int, store: Store) -> bool:
    """Whether a worker of this node runs members of which turns are stored."""
    pids = descendants(raylet)
    at_work = await store.query_progress("lossy")
    return any(one.n_events > 1 and pid_of(one.worker_id) in pids for one in at_work)


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
    command += ["--pass-env", "JUDGE_TOKEN"]
    environment = {**os.environ, "OPENAI_API_KEY": "of the driver", "JUDGE_TOKEN": "passed"}
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


@pytest.mark.soak  # test_rollout_workers.py does it on a local cluster
async def test_agents_that_hang_harm_nobody_else(
    two_nodes: RayNodes, postgres_url: str, monkeypatch: pytest.MonkeyPatch
):
    mark = uuid4().hex
    monkeypatch.setenv("OPENAI_HELL", mark)  # variables of that name are handed on to workers
    options = ("--agent", "hell:agent", "--max-env-num-per-worker", "4", "--max-block", "3", "--grace", "1")
    async with open_store(postgres_url) as store:
        innocent = await enqueue_hell(store, HANG)
        with at_work(two_nodes, postgres_url, *options, "--workers", "2", "--until-done", "--allow-failures") as driver:
            said, _ = await asyncio.to_thread(driver.communicate, timeout=60)
        assert driver.returncode == 0, said
        await check_hell(store, HANG, innocent)
    await asyncio.to_thread(none_left, f"OPENAI_HELL={mark}")


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
    two_nodes: RayNodes, postgres_url: str, folder: Path
):
    async with open_store(postgres_url) as store:
        last = await store.enqueue_rollout({"until": str(folder)})
        many = ("--workers", "8", "--cpus-per-worker", "1", "--until-done")
        with at_work(two_nodes, postgres_url, *many) as driver:
            await store.wait_for_rollouts([last.rollout_id], timeout=60)
            with within(2):
                said, _ = await asyncio.to_thread(driver.communicate, timeout=60)
    assert driver.returncode == 0, said
    assert "waits until a node has 1 CPUs free; the largest has 2" in said


async def have_succeeded(store: Store, n: int) -> bool:
    await asyncio.sleep(0.3)  # a look costs, and it is the workers that are measured
    return (await store.statistics()).rollouts[RolloutStatus.SUCCEEDED] == n


def cpu_seconds(nodes: RayNodes) -> float:
    """Of all processes of the nodes that are alive."""
    ticks = 0
    for pid in descendants(nodes.raylets[0]):
        with suppress(OSError):
            ticks += sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


@pytest.mark.soak
@pytest.mark.alone
@pytest.mark.timeout(900)
async def test_sixty_four_workers_that_are_all_at_work_do_half_of_what_sixteen_do_at_least(
    one_node: RayNodes, folder: Path
):
    n_rollouts = 20_000
    rates: dict[int, float] = {}
    for n_workers in (16, 64):
        store_url, go = f"sqlite:///{folder / f'{n_workers}.db'}", folder / f"{n_workers} are there"
        async with open_store(store_url, create=True) as store:
            last = await store.enqueue_rollout({"until": str(go)})

            async def are_there(store: Store = store, n_workers: int = n_workers) -> bool:
                return len(await store.query_workers()) == n_workers

            with at_work(one_node, store_url, "--workers", str(n_workers), "--until-done") as driver:
                await eventually(are_there, within_seconds=300)
                await store.enqueue_many_rollouts([RolloutRequest(input={"until": str(folder)})] * n_rollouts)
                before = cpu_seconds(one_node)
                await eventually(partial(have_succeeded, store, n_rollouts), within_seconds=200)
                spent = cpu_seconds(one_node) - before
                go.touch()
                said, _ = await asyncio.to_thread(driver.communicate, timeout=60)
                gone_at = time.time()
            assert driver.returncode == 0, said[-2000:]
            ended_last = await store.get_rollout_by_id(last.rollout_id)
            assert ended_last is not None
            assert ended_last.ended_at is not None
            seconds = gone_at - ended_last.ended_at.timestamp()
            ended = sorted(one.ended_at for one in await store.query_rollouts() if one.ended_at)
        rates[n_workers] = n_rollouts / (ended[-2] - ended[0]).total_seconds()
        print(
            f"{n_workers} workers: {rates[n_workers]:.0f}/s, {1000 * spent / n_rollouts:.2f} ms of CPU for each,"
            f" ended {seconds:.1f} s after the last"
        )
        note_soak(
            f"no-op rollouts, {n_workers} workers of Ray on one SQLite file",
            per_second=round(rates[n_workers]),
            cpu_microseconds=round(1e6 * spent / n_rollouts),
        )
        assert seconds < 10
    assert rates[64] > 0.5 * rates[16]


async def test_a_node_that_joins_and_does_not_see_the_file_of_the_store_is_left_out(one_node: RayNodes, folder: Path):
    go = folder / "go"
    store_url = f"sqlite:///{folder / 'runs.db'}"
    async with open_store(store_url, create=True) as store:
        for _ in range(2):
            await store.enqueue_rollout({"until": str(go)})

        async def at_work_but(*others: int) -> bool:
            return len(await working(store) - {*others}) == 2

        with at_work(one_node, store_url, "--workers", "2", "--until-done") as driver:
            assert driver.stdout is not None
            while "Initializing" not in await asyncio.to_thread(driver.stdout.readline):
                pass
            with node_without(folder, one_node.address):
                await asyncio.to_thread(have_joined, one_node, 2)
                await eventually(partial(at_work_but), within_seconds=60)
                killed = (await working(store)).pop()
                os.kill(killed, signal.SIGKILL)  # the other node has fewer workers, so the next one goes there
                await eventually(partial(at_work_but, killed), within_seconds=60)
                go.touch()
                said, _ = await asyncio.to_thread(driver.communicate, timeout=60)
        assert driver.returncode == 0, said
        assert said.count("node 127.0.0.99 is left out: it does not see the store") == 1
        ended = await store.query_rollouts(status=RolloutStatus.SUCCEEDED)
        assert ended.total == 2


@pytest.mark.soak
async def test_machines_come_back_where_the_file_of_the_store_is_seen(one_node: RayNodes, folder: Path):
    async def pools() -> list[int]:
        return [facts.pid for facts in pools_on_host() if facts.pid in descendants(one_node.raylets[0])]

    command = [*OUTRIDER, "run", "--mode", "py", "--model", "builtin:solver?latency=0.3", "--ray", one_node.address]
    command += ["--limit", "8", "--num-rollouts", "2", "--use-vm-pool", "--provider-name", "process", "--num-vms", "2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as run:
        try:
            await eventually(pools, within_seconds=60)
            with node_without(folder, one_node.address):
                await asyncio.to_thread(have_joined, one_node, 2)
                (store_file,) = folder.glob("results/*/store.db")
                async with open_store(f"sqlite:///{store_file}", read_only=True) as store:
                    workers = await working(store)
                    # With nobody left there, it looks for another node.
                    killed = [*map(parent_of, workers), *workers, *await pools()]
                for pid in killed:
                    os.kill(pid, signal.SIGKILL)
                said, _ = await asyncio.to_thread(run.communicate, timeout=100)
        finally:
            run.kill()
    assert run.returncode == 0, said
    assert "is lost" in said
    assert said.count("node 127.0.0.99 is left out: it does not see the store") == 1
    assert "8 of 8 tasks" in said
    assert await pools() == []


JOINED = """
import ray, sys, time
ray.init(sys.argv[1], logging_level="ERROR")
while sum(node["Alive"] for node in ray.nodes()) != int(sys.argv[2]):
    time.sleep(0.05)
"""


def have_joined(nodes: RayNodes, n_nodes: int) -> None:
    """Wait until the cluster has so many nodes."""
    command = [sys.executable, "-c", JOINED, nodes.address, str(n_nodes)]
    subprocess.run(command, capture_output=True, check=True, timeout=60)


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(("run", *MATH), marks=pytest.mark.soak),
        ("rollout", "-c", "frozen_lake.yaml"),
        pytest.param(("work",), marks=pytest.mark.soak),
    ],
)
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
