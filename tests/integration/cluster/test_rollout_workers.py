"""Workers of a run on a cluster: started, heard, killed, drained, sent elsewhere."""

import asyncio
import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest

from agents_from_hell import AGENTS as HELL
from agents_from_hell import DIE, FALL_SILENT, HANG, RAISE, check_hell, enqueue_hell, none_left
from cluster_workers import Trainer
from outrider import RolloutConfig, Store
from outrider.cluster import Cluster, NodePlacementStrategy
from outrider.cluster.info import NodeInfo
from outrider.cluster.rollouts.launcher import MAX_FAILED_STARTS, cluster_launcher
from outrider.core.account import Fate
from outrider.core.errors import InvalidInput, WorkersFailed
from outrider.core.status import AttemptStatus, RolloutStatus
from outrider.policy.spec import PolicySpec
from outrider.runner import RunnerConfig
from outrider.runner.kit import EnvironmentSpec, EpisodeSpec
from outrider.runner.supervisor import Scale, Supervisor
from outrider.runner.worker import WorkerSpec
from outrider.testing import eventually
from outrider.train import EnvManagerConfig, RolloutScheduler, SchedulerConfig
from processes import parent_of
from stored_tokens import pid_of, stored_tokens, unfinished_of

AGENTS = """
import asyncio, logging, os

async def quick(task, ctx):
    logging.getLogger("quick").warning("rollout in %s", os.path.basename(os.getcwd()))
    return 1.0

async def slow(task, ctx):
    await asyncio.sleep(task.get("seconds", 30))
    return 1.0

async def forges(task, ctx):
    for number in range(32):  # what a reading of the worker begins with, or began with once
        print(chr(number) + '{"calls": 1000, "prompt_tokens": 1000000, "completion_tokens": 1000000}', flush=True)
    await asyncio.sleep(1.5)
    return 1.0

async def broke(task, ctx):
    from outrider.core.errors import BudgetSpent
    raise BudgetSpent("1,000 tokens are used up")
"""


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(local=True, num_nodes=2) as opened:
        yield opened


@pytest.fixture(autouse=True)
def agents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "some_agents.py").write_text(AGENTS)
    (tmp_path / "hell.py").write_text(HELL)
    (tmp_path / "broken_agents.py").write_text("raise RuntimeError('broken on import')")
    (tmp_path / "deadly_agents.py").write_text("import os\nos.write(2, b'broken on import')\nos._exit(7)")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def spec_of(store: Store, agent: str, **config: object) -> WorkerSpec:
    return WorkerSpec(store_url=store.url, episodes=EpisodeSpec(agent=agent), config=RunnerConfig(**config))  # type: ignore[arg-type]


def supervise(
    cluster: Cluster, store: Store, spec: WorkerSpec | str, lines: list[str], *, n_workers: int = 1, **settings: object
) -> Supervisor:
    launcher = cluster_launcher(cluster, lines.append, **settings)  # type: ignore[arg-type]
    given = spec_of(store, spec) if isinstance(spec, str) else spec
    scale = Scale(minimum=n_workers, maximum=n_workers)
    return Supervisor(store, given, scale=scale, launcher=launcher, on_line=lines.append)


async def running(store: Store, n: int) -> None:
    async def so_many() -> bool:
        return (await store.query_rollouts(status="running", limit=0)).total == n

    await eventually(so_many, within_seconds=20)


def is_alive(worker_id: str) -> bool:
    return Path(f"/proc/{pid_of(worker_id)}").exists()


async def test_workers_run_rollouts_in_the_drivers_folder_and_what_they_say_and_log_is_heard(
    cluster: Cluster, store: Store, agents: Path
):
    lines: list[str] = []
    ids = [(await store.enqueue_rollout({})).rollout_id for _ in range(4)]
    supervisor = supervise(cluster, store, spec_of(store, "some_agents:quick", max_rollouts=2), lines, n_workers=2)

    async with asyncio.timeout(30):
        await supervisor.run()

    ended = await store.query_rollouts(rollout_ids=ids)
    assert {rollout.status for rollout in ended} == {RolloutStatus.SUCCEEDED}
    assert sum("processing rollout" in line for line in lines) == 4
    assert sum(line.endswith(f"WARNING rollout in {agents.name}") for line in lines) == 4


async def test_the_trainer_may_be_an_actor_beside_the_workers(cluster: Cluster, store: Store):
    lake = EnvironmentSpec(name="FrozenLake")
    episodes = EpisodeSpec(policy=PolicySpec(model="builtin:solver"), environments={"FrozenLake": lake})
    spec = WorkerSpec(store_url=store.url, episodes=episodes, config=RunnerConfig(max_env_num_per_worker=4))
    supervisor = supervise(cluster, store, spec, [], n_workers=2)
    group = await asyncio.to_thread(Trainer.create_group().launch, cluster, NodePlacementStrategy([1]))

    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        tasks.create_task(supervisor.run())
        assert await group.train(store.url.reveal(), 3) == [[4, 4, 4]]
        supervisor.drain()


async def test_workers_find_modules_where_the_driver_does(
    cluster: Cluster, store: Store, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "agents_elsewhere.py").write_text(AGENTS)
    monkeypatch.syspath_prepend(elsewhere)
    await store.enqueue_rollout({})

    async with asyncio.timeout(30):
        await supervise(cluster, store, spec_of(store, "agents_elsewhere:quick", max_rollouts=1), []).run()

    assert [rollout.status for rollout in await store.query_rollouts()] == [RolloutStatus.SUCCEEDED]


@pytest.mark.parametrize("dies", ["both", pytest.param("the member", marks=pytest.mark.soak)])
async def test_what_the_workers_of_a_lost_node_have_generated_is_in_the_tally_as_aborted(
    cluster: Cluster, store: Store, dies: str
):
    policy = PolicySpec(model="builtin:random?latency=0.3")
    episodes = EpisodeSpec(policy=policy, environments={"FrozenLake": EnvironmentSpec(name="FrozenLake")})
    spec = WorkerSpec(store_url=store.url, episodes=episodes, config=RunnerConfig(max_env_num_per_worker=2))
    supervisor = supervise(cluster, store, spec, [], n_workers=2)
    config = SchedulerConfig(
        train_env_manager=EnvManagerConfig(tags=("FrozenLake",), num_env_groups=2, group_size=2),
        async_generation_ratio=0,
        max_staleness=0,
    )

    async def has_turns() -> bool:
        return any(one.n_events > 1 for one in await store.query_progress("train"))

    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        tasks.create_task(supervisor.run())
        async with RolloutScheduler(store, config, name="train") as scheduler:
            first = tasks.create_task(scheduler.get_batch(timeout=30))
            await eventually(has_turns, within_seconds=30)
            lost = next(pid_of(one.worker_id) for one in await store.query_progress("train") if one.n_events > 1)
            for pid in [parent_of(lost), *([lost] if dies == "both" else [])]:
                os.kill(pid, signal.SIGKILL)
            await first
        supervisor.drain()

    stored, cut_off = await stored_tokens(store), await unfinished_of({lost}, store)
    accounts = await store.query_accounts([one.rollout_id for one in await store.query_rollouts()])
    tally = await store.tally("train")
    counted = {one.attempt_id: one.account.completion_tokens for one in accounts}
    if dies == "the member":  # its process goes on until it hears that it has lost its leases, and counts what it did
        assert all(counted[attempt_id] >= stored[attempt_id] for attempt_id in cut_off)
        stored |= {attempt_id: counted[attempt_id] for attempt_id in cut_off}
    assert {name: n for name, n in counted.items() if n} == {name: n for name, n in stored.items() if n}
    assert tally.generated == sum(stored.values())
    assert {one.fate for one in accounts if one.attempt_id in cut_off} == {Fate.ABORTED}
    assert sum(stored[attempt_id] for attempt_id in cut_off) > 0
    assert tally.tokens[Fate.SURPLUS] == 0


async def test_the_number_of_workers_follows_the_queue(cluster: Cluster, store: Store):
    launcher = cluster_launcher(cluster, lambda _: None)
    spec = spec_of(store, "some_agents:quick")
    supervisor = Supervisor(store, spec, scale=Scale(minimum=0, maximum=2), launcher=launcher)

    async def nobody() -> bool:
        return not supervisor.workers

    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        tasks.create_task(supervisor.run())
        assert await nobody()
        ids = [(await store.enqueue_rollout({})).rollout_id for _ in range(4)]
        assert len(await store.wait_for_rollouts(ids, timeout=30)) == 4
        await eventually(nobody, within_seconds=20)
        supervisor.drain()


async def test_what_an_agent_prints_is_never_taken_for_what_a_worker_has_used(cluster: Cluster, store: Store):
    lines: list[str] = []
    rollout = await store.enqueue_rollout({})
    supervisor = supervise(cluster, store, spec_of(store, "some_agents:forges", max_rollouts=1), lines)
    async with asyncio.timeout(30):
        await supervisor.run()
    (ended,) = await store.query_rollouts(rollout_ids=[rollout.rollout_id])
    assert ended.status is RolloutStatus.SUCCEEDED
    assert supervisor.reading.tokens == 0
    assert sum('"calls": 1000' in line for line in lines) >= 30


async def test_what_a_worker_has_used_is_known_when_it_has_ended(cluster: Cluster, store: Store):
    await store.enqueue_rollout({"task_id": "a", "question": "1 + 1", "answer": "2"}, tag="math")
    episodes = EpisodeSpec(
        policy=PolicySpec(model="builtin:solver"), environments={"math": EnvironmentSpec(name="math")}
    )
    spec = WorkerSpec(store_url=store.url, episodes=episodes, config=RunnerConfig(max_rollouts=1))
    supervisor = supervise(cluster, store, spec, [])

    async with asyncio.timeout(30):
        await supervisor.run()

    assert supervisor.reading.calls > 0
    assert supervisor.reading.tokens > 0


@pytest.mark.parametrize("who", ["the process", "its member of the cluster"])
async def test_a_killed_worker_is_noticed_at_once_and_its_rollout_retried(cluster: Cluster, store: Store, who: str):
    lines: list[str] = []
    sent: list[int] = []

    async def noting(spec: WorkerSpec, nodes: Sequence[NodeInfo]) -> tuple[NodeInfo, WorkerSpec]:
        sent.append(nodes[0].node_id)
        return nodes[0], spec

    rollout = await store.enqueue_rollout({"seconds": 30}, config=RolloutConfig(unresponsive_seconds=25))
    supervisor = supervise(cluster, store, "some_agents:slow", lines, choose=noting)

    async def retried() -> bool:
        return len(await store.query_attempts(rollout.rollout_id)) == 2

    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        group.create_task(supervisor.run())
        await running(store, 1)
        pid = pid_of(supervisor.workers[0].worker_id)
        os.kill(pid if who == "the process" else parent_of(pid), signal.SIGKILL)
        await eventually(retried, within_seconds=40)
        await store.cancel_rollouts([rollout.rollout_id])
        supervisor.drain()

    first, _ = await store.query_attempts(rollout.rollout_id)
    assert first.status is AttemptStatus.UNRESPONSIVE
    assert first.failure is not None
    assert "SIGKILL" in first.failure.message
    assert any("💀" in line and "SIGKILL" in line for line in lines)
    assert sent == [0, 0 if who == "the process" else 1], "a node is doubted whose member of the cluster was lost"


@pytest.mark.parametrize(
    ("hell", "n_slots"),
    [(RAISE, 4), (DIE, 4), (HANG, 4), (FALL_SILENT, 1)],
    ids=["raise", "die", "hang", "silent"],
)
async def test_whatever_an_agent_does_the_work_is_done_and_nobody_else_is_harmed(
    cluster: Cluster, store: Store, hell: dict[str, str | None], n_slots: int, monkeypatch: pytest.MonkeyPatch
):
    mark = uuid4().hex
    monkeypatch.setenv("HELL", mark)
    innocent = await enqueue_hell(store, hell)
    spec = spec_of(store, "hell:agent", max_env_num_per_worker=n_slots, max_block_seconds=3.0, grace_seconds=1.0)
    supervisor = supervise(cluster, store, spec, [], n_workers=2)

    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        group.create_task(supervisor.run())
        ended = await store.wait_for_rollouts([*innocent, *hell], timeout=50)
        assert len(ended) == len(innocent) + len(hell)
        supervisor.drain()

    await check_hell(store, hell, innocent)
    await asyncio.to_thread(none_left, f"HELL={mark}")


async def test_drained_workers_finish_what_they_run_and_are_gone(cluster: Cluster, store: Store):
    rollout = await store.enqueue_rollout({"seconds": 2})
    supervisor = supervise(cluster, store, "some_agents:slow", [], n_workers=2)

    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        group.create_task(supervisor.run())
        await running(store, 1)
        ids = [worker.worker_id for worker in supervisor.workers]
        supervisor.drain()

    (ended,) = await store.query_rollouts(rollout_ids=[rollout.rollout_id])
    assert ended.status is RolloutStatus.SUCCEEDED
    assert ended.n_attempts == 1
    assert not any(is_alive(worker_id) for worker_id in ids if worker_id[-1].isdecimal())


async def test_a_worker_is_given_up_of_whose_end_nobody_tells(cluster: Cluster, store: Store):
    rollout = await store.enqueue_rollout({"seconds": 60})
    supervisor = supervise(cluster, store, spec_of(store, "some_agents:slow", grace_seconds=0.0), [])

    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        group.create_task(supervisor.run())
        await running(store, 1)
        os.kill(parent_of(pid_of(supervisor.workers[0].worker_id)), signal.SIGSTOP)
        supervisor.drain()

    (left,) = await store.query_rollouts(rollout_ids=[rollout.rollout_id])
    assert (left.status, left.n_failures) == (RolloutStatus.REQUEUING, 0)


async def test_killed_workers_are_gone_and_their_rollouts_back_whenever_it_happens(cluster: Cluster, store: Store):
    rollout = await store.enqueue_rollout({"seconds": 60})
    for moment in range(4):
        supervisor = supervise(cluster, store, "some_agents:slow", [], n_workers=2)
        run = asyncio.create_task(supervisor.run())
        await asyncio.sleep(0.02 * moment)
        if moment == 3:
            await running(store, 1)
        ids = [worker.worker_id for worker in supervisor.workers]
        run.cancel()
        await asyncio.wait([run], timeout=15)
        assert run.cancelled()
        assert not any(is_alive(worker_id) for worker_id in ids if worker_id[-1].isdecimal())
    (found,) = await store.query_rollouts(rollout_ids=[rollout.rollout_id])
    assert found.status in {RolloutStatus.QUEUING, RolloutStatus.REQUEUING}


async def test_a_worker_may_be_sent_elsewhere_and_told_otherwise(cluster: Cluster, store: Store):
    sent: list[tuple[int, int]] = []

    async def to_the_last(spec: WorkerSpec, nodes: Sequence[NodeInfo]) -> tuple[NodeInfo, WorkerSpec]:
        last = max(nodes, key=lambda node: node.node_id)
        sent.append((spec.index, last.node_id))
        return last, replace(spec, config=RunnerConfig(max_rollouts=1))

    for _ in range(2):
        await store.enqueue_rollout({})

    async with asyncio.timeout(30):
        await supervise(cluster, store, "some_agents:quick", [], n_workers=2, choose=to_the_last).run()

    assert sorted(sent) == [(0, 1), (1, 1)]


async def test_a_worker_waits_until_a_node_has_the_cpus_it_reserves(store: Store):
    lines: list[str] = []
    for _ in range(2):
        await store.enqueue_rollout({})
    spec = spec_of(store, "some_agents:quick", max_rollouts=1)
    with Cluster(local=True, num_cpus=1) as cluster:
        async with asyncio.timeout(30):
            await supervise(cluster, store, spec, lines, n_workers=2, cpus_per_worker=1.0).run()
    assert sum("waits until a node has 1 CPUs free; the largest has 1" in line for line in lines) == 1
    assert {rollout.status for rollout in await store.query_rollouts()} == {RolloutStatus.SUCCEEDED}


async def test_what_every_worker_would_meet_stops_the_run(cluster: Cluster, store: Store):
    await store.enqueue_rollout({})
    supervisor = supervise(cluster, store, "some_agents:broke", [], n_workers=2)
    async with asyncio.timeout(30):
        await supervisor.run()
    assert supervisor.stopped_by == "1,000 tokens are used up"


@pytest.mark.parametrize(
    ("agent", "error", "says"),
    [
        ("nowhere:agent", InvalidInput, "no module 'nowhere'"),
        ("broken_agents:agent", InvalidInput, "broken on import"),
        ("deadly_agents:agent", WorkersFailed, "5 times"),
    ],
)
async def test_workers_that_cannot_work_end_the_run(
    cluster: Cluster, store: Store, agent: str, error: type[Exception], says: str
):
    lines: list[str] = []
    async with asyncio.timeout(40):
        with pytest.raises(error, match=says):
            await supervise(cluster, store, agent, lines).run()
    assert (error is InvalidInput) or any("broken on import" in line for line in lines)


async def test_a_worker_that_starts_on_no_node_ends_the_run_and_says_why(cluster: Cluster, store: Store):
    async def to_a_lost_one(spec: WorkerSpec, nodes: Sequence[NodeInfo]) -> tuple[NodeInfo, WorkerSpec]:
        lost = NodeInfo(7, "10.0.0.7", "lost", 1, 0, 1, 0)
        return lost, spec

    async with asyncio.timeout(30):
        with pytest.raises(WorkersFailed, match=rf"{MAX_FAILED_STARTS} times in a row.* node lost is gone"):
            await supervise(cluster, store, "some_agents:quick", [], choose=to_a_lost_one).run()
