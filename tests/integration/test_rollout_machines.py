"""`outrider rollout` on machines: members borrow them, wait for them, and lose them; nothing is left at the end."""

import asyncio
import json
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from machine_runs import ended, folder_for_pools, leased, machines, moves, nothing_is_left, started, workers_of
from outrider.core.ledger import GroupState, MemberProgress
from outrider.core.machine import MachineState
from outrider.env.registry import BUNDLED, bundled_tasks
from outrider.policy.spec import PolicySpec
from outrider.pool import PoolConfig
from outrider.pool.service.host import hosted_pool
from outrider.pool.service.place import pools_on_host
from outrider.pool.spec import MachineSpec
from outrider.runner import RunnerConfig
from outrider.runner.kit import EnvironmentSpec, EpisodeSpec
from outrider.runner.machines import SupplySpec
from outrider.runner.supervisor import Scale, Supervisor, task_launcher
from outrider.runner.worker import WorkerSpec
from outrider.store import open_store
from outrider.testing import eventually
from outrider.train.config import EnvManagerConfig, SchedulerConfig
from outrider.train.scheduler import RolloutScheduler
from outrider.train.watch import Phase, standings_of
from processes import OUTRIDER, run_outrider, stop
from terminal import run_on_terminal

SLOW = "builtin:solver?latency=0.2"
DESKTOPS = """
train_env_manager: {num_env_groups: 1, group_size: 4, tags: [osworld]}
custom_envs:
  osworld:
    max_steps: 9
    config: {action_space: pyautogui, client_password: secret}
model: builtin:solver
use_vm_pool: true
num_vms: 2
"""
PROGRAMS = f"""
train_env_manager: {{num_env_groups: 2, group_size: 3, tags: [py]}}
model: {SLOW}
use_vm_pool: true
num_vms: 2
"""
OWN = """
from outrider.env.games import FrozenLakeEnvironments
from outrider.env.python import PythonEnvironments


class Plain(FrozenLakeEnvironments):
    pass


class Acting(PythonEnvironments):
    pass
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "desktops.yaml").write_text(DESKTOPS)
    (tmp_path / "programs.yaml").write_text(PROGRAMS)
    (tmp_path / "own.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("OUTRIDER_STORE", raising=False)
    with folder_for_pools(monkeypatch):
        yield tmp_path


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return f"{request.node.originalname[5:30]}-{os.getpid()}"


def rollout(name: str, config: str, *arguments: str) -> list[dict[str, Any]]:
    done = run_outrider("rollout", "-c", f"{config}.yaml", "--name", name, "--json", *arguments)
    return [json.loads(line) for line in done.stdout.splitlines()]


async def trained(name: str, n_steps: int, *, n_groups: int, group_size: int) -> set[str]:
    """The members of all batches: each batch is whole, and no member is in two."""
    async with open_store(f"sqlite:///results/{name}/store.db", create=False) as store:
        groups = await store.query_groups(name, states=(GroupState.ACKNOWLEDGED,))
    assert Counter(group.batch for group in groups) == dict.fromkeys(range(n_steps), n_groups)
    members = [member for group in groups for member in group.members]
    assert len(set(members)) == len(members) == n_steps * n_groups * group_size
    return set(members)


async def holders(name: str) -> set[str]:
    return {move.holder or "" for move in await moves(name) if move.state is MachineState.LEASED}


async def test_groups_of_four_are_trained_on_with_two_desktops(name: str):
    *steps, end = rollout(name, "desktops", "--steps", "2", "--screen-width", "800", "--screen-height", "600")
    assert [(step["reward"], step["n_trajectories"], step["text"]) for step in steps] == [(1.0, 4, 0)] * 2
    assert (end["complete"], end["dropped"]) == (True, {})
    counted = end["machines"]
    assert (counted["n_machines"], counted["n_created"], counted["n_leaks"], counted["n_deaths"]) == (2, 2, 0, 0)
    assert counted["n_leases"] >= 8
    assert await trained(name, 2, n_groups=1, group_size=4) <= await holders(name)
    assert {machine.provider for machine in await machines(name)} == {"desktop"}
    await nothing_is_left(name)


async def test_programs_and_validations_run_in_sandboxes_and_other_tags_take_none(name: str):
    Path("mixed.yaml").write_text("""
train_env_manager: {num_env_groups: 3, group_size: 2, tags: [py, FrozenLake, "own:Plain"]}
val_env_manager: {num_env_groups: 2, tags: [programs, FrozenLake]}
custom_envs: {programs: {env: "own:Acting"}}
validate_every: 1
model: builtin:solver
provider_name: process
""")
    Path("tasks.jsonl").write_text((BUNDLED / "py.jsonl").read_text().splitlines()[0])
    arguments = ("--set", "custom_envs.programs.tasks=tasks.jsonl", "--use-vm-pool", "--num-vms", "1")
    *steps, end = rollout(name, "mixed", "--steps", "1", *arguments)
    step, validation = steps
    assert (step["kind"], step["n_trajectories"], validation["kind"]) == ("step", 6, "validation")
    assert end["complete"]
    async with open_store(f"sqlite:///results/{name}/store.db", create=False) as store:
        tags = {one.rollout_id: one.tag for one in await store.query_rollouts(limit=100)}
    assert {tags[holder] for holder in await holders(name)} == {"py", "programs"}
    assert {machine.provider for machine in await machines(name)} == {"process"}
    await nothing_is_left(name)


@pytest.mark.parametrize("ahead", [pytest.param(0, marks=pytest.mark.soak), 1], ids=["in turn", "ahead"])
async def test_groups_end_on_fewer_machines_than_they_have_members(name: str, ahead: int):
    settings = {"async_generation_ratio": ahead, "train_env_manager.group_size_redundancy": 1, "hedge_seconds": 30}
    changes = [text for setting, value in settings.items() for text in ("--set", f"{setting}={value}")]
    times = ("--train-seconds", "0.3", "--sync-seconds", "0.1")
    *steps, end = rollout(name, "programs", "--steps", "2", "--num-vms", "1", *times, *changes)
    assert [(step["reward"], step["n_trajectories"]) for step in steps] == [(1.0, 6)] * 2
    assert all(step["staleness_max"] <= ahead for step in steps)
    assert (end["complete"], end["machines"]["n_machines"], end["machines"]["n_leaks"]) == (True, 1, 0)
    await trained(name, 2, n_groups=2, group_size=3)


async def test_without_a_pool_the_tags_that_need_a_machine_have_their_own(name: str):
    Path("own.yaml").write_text("""
train_env_manager: {num_env_groups: 2, group_size: 1, tags: [osworld, py]}
model: builtin:solver
""")
    step, end = rollout(name, "own", "--steps", "1")
    assert (step["reward"], end["complete"], end["machines"]) == (1.0, True, None)
    async with open_store(f"sqlite:///results/{name}/store.db", create=False) as store:
        tags = {one.rollout_id: one.tag for one in await store.query_rollouts(limit=100)}
    assert {tags[holder] for holder in await holders(name)} == {"osworld"}
    assert len(await machines(name)) == 1, "no more than there are members that act on one"
    await nothing_is_left(name)


async def stopped_with_a_machine(name: str) -> tuple[int, str] | None:
    """A worker that does not go on, and the member whose machine it has; None if that was over before."""
    for machine in await machines(name, MachineState.LEASED):
        assert machine.holder is not None
        async with open_store(f"sqlite:///results/{name}/store.db", create=False) as store:
            attempt = await store.get_latest_attempt(machine.holder)
        assert attempt is not None
        pid = int(attempt.worker_id.rpartition(":")[2])
        stop(pid)
        if machine.holder in {one.holder for one in await machines(name, MachineState.LEASED)}:
            return pid, machine.holder
        os.kill(pid, signal.SIGCONT)
    return None


@pytest.mark.soak
async def test_a_killed_worker_gives_its_machine_back_and_its_member_is_played_again(name: str):
    caught: list[tuple[int, str]] = []

    async def is_caught() -> bool:
        caught.extend(filter(None, [await stopped_with_a_machine(name)]))
        return bool(caught)

    arguments = ("-c", "programs.yaml", "--name", name, "--steps", "2", "--workers", "2", "--json")
    with started("rollout", *arguments) as process:
        await eventually(is_caught, within_seconds=40)
        ((pid, member),) = caught
        assert pid in workers_of(process)
        os.kill(pid, signal.SIGKILL)
        output = await asyncio.to_thread(ended, process)
    assert process.returncode == 0, output
    end = json.loads(output.splitlines()[-1])
    assert (end["complete"], end["machines"]["n_leaks"]) == (True, 0)
    assert member in {move.holder for move in await moves(name) if "has gone" in move.reason}
    assert member in await trained(name, 2, n_groups=2, group_size=3)
    async with open_store(f"sqlite:///results/{name}/store.db", create=False) as store:
        assert [attempt.status for attempt in await store.query_attempts(member)][-1] == "succeeded"
        assert (await store.query_attempts(member)).total > 1
    await nothing_is_left(name)


async def test_a_killed_run_leaves_nothing_that_its_resumption_does_not_end(name: str):
    arguments = ("--steps", "2", "--workers", "2", "--json")
    with started("rollout", "-c", "programs.yaml", "--name", name, *arguments) as process:
        await eventually(leased(name), within_seconds=40)
        process.kill()
        process.wait()
    assert await machines(name, MachineState.LEASED) != ()
    (left,) = [facts.name for facts in pools_on_host() if facts.name.startswith(f"{name}@")]
    with started("rollout", "--resume", name, "--num-vms", "1", *arguments) as process:
        output = await asyncio.to_thread(ended, process)
    assert process.returncode == 0, output
    assert json.loads(output.splitlines()[-1])["machines"]["n_machines"] == 1
    assert {machine.pool for machine in await machines(name)} == {left}
    await trained(name, 2, n_groups=2, group_size=3)
    await nothing_is_left(name)
    other = run_outrider("rollout", "--resume", name, "--provider-name", "docker", code=2).stderr
    assert f"{name} was begun with provider_name None, and it is 'docker' now" in other


@asynccontextmanager
async def one_machine_in_use(name: str) -> AsyncIterator[asyncio.Event]:
    """A pool of one sandbox, which somebody else holds until the event is set."""
    over = asyncio.Event()

    async def hold(taken: asyncio.Event) -> None:
        async with pool.acquire(deadline=60, holder="somebody else"):
            taken.set()
            await over.wait()

    opening = hosted_pool(MachineSpec(provider="process"), PoolConfig(name=name, n_machines=1))
    async with opening as pool, asyncio.TaskGroup() as group:
        taken = asyncio.Event()
        group.create_task(hold(taken))
        await taken.wait()
        try:
            yield over
        finally:
            over.set()


async def members(name: str) -> Sequence[MemberProgress]:
    if not Path("results", name, "store.db").exists():
        return ()
    async with open_store(f"sqlite:///results/{name}/store.db") as store:
        return await store.query_progress(name)


async def test_the_wait_for_a_machine_is_no_time_of_the_members_and_hedges_none(name: str):
    seconds = ("--set", "hedge_seconds=6", "--set", "turn_seconds=30", "--set", "trajectory_seconds=30")
    arguments = ("--steps", "1", "--pool-name", name, *seconds, "--json")
    async with one_machine_in_use(name) as over:
        with started("rollout", "-c", "programs.yaml", "--name", name, *arguments) as process:

            async def have_waited() -> bool:
                await asyncio.sleep(0.3)  # it takes seconds, and each look opens a store
                now = datetime.now(UTC)
                standings = standings_of(await members(name))
                return len(standings) == 6 and all(one.seconds(now) > 9 for one in standings)

            await eventually(have_waited, within_seconds=40)
            waiting = standings_of(await members(name))
            async with open_store(f"sqlite:///results/{name}/store.db", create=False) as store:
                assert (await store.query_rollouts()).total == 6, "none was started a second time"
            assert {one.phase for one in waiting} == {Phase.MACHINE}
            shown = run_outrider("status", "--store", f"sqlite:///results/{name}/store.db").stdout
            assert "6 machine" in shown
            over.set()
            output = await asyncio.to_thread(ended, process)
    assert process.returncode == 0, output
    step, end = [json.loads(line) for line in output.splitlines() if line.startswith('{"kind"')]
    assert (step["reward"], end["complete"], end["dropped"]) == (1.0, True, {})
    assert end["machines"] is None, "the pool is not the run's own"


async def test_members_that_are_held_back_hold_no_machine_so_a_trainer_can_validate_before_it_publishes(name: str):
    manager = EnvManagerConfig(num_env_groups=1, group_size=3, tags=("py",))
    config = SchedulerConfig(
        train_env_manager=manager, val_env_manager=EnvManagerConfig(num_env_groups=2, tags=("py",))
    )
    kind, size = MachineSpec(provider="process"), PoolConfig(name=name, n_machines=1)
    episodes = EpisodeSpec(
        policy=PolicySpec(model="builtin:solver"),
        environments={"py": EnvironmentSpec(name="py")},
        supply=SupplySpec(machines=kind, pool=size, is_shared=True),
    )
    async with open_store("sqlite:///own.db") as store, hosted_pool(kind, size), asyncio.TaskGroup() as group:
        spec = WorkerSpec(
            store_url=store.url, episodes=episodes, config=RunnerConfig(max_env_num_per_worker=8, tags=("py",))
        )
        workers = Supervisor(store, spec, scale=Scale(minimum=1, maximum=1), launcher=task_launcher(store, print))
        async with RolloutScheduler(store, config, tasks={"py": bundled_tasks("py")}) as scheduler:
            group.create_task(workers.run())
            first = await scheduler.get_batch(timeout=60)

            async def are_held() -> bool:
                return scheduler.status().n_held == 3

            await eventually(are_held, within_seconds=20)
            validated = await scheduler.validate(timeout=60)
            await scheduler.publish()
            second = await scheduler.get_batch(timeout=60)
            workers.drain()
    assert (validated.tags["py"].n_scored, validated.tags["py"].reward) == (2, 1.0)
    assert [batch.batch.trajectories[0].reward for batch in (first, second)] == [1.0, 1.0]


def test_the_picture_shows_machines_and_so_does_the_end(name: str):
    command = [*OUTRIDER, "rollout", "-c", "programs.yaml", "--name", name, "--steps", "2", "--timeline", "slots.html"]
    code, text = run_on_terminal(command)
    assert code == 0, text
    for shown in ("machines in use", "waiting for one", "leased", "wait for a machine", "2 lent"):
        assert shown in text
    assert "waits for a machine to be free" in Path("slots.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--set", "train_env_manager.tags=[py,web]"], "py those of process, web those of browser; name the one"),
        (["--provider-name", "proces"], "did you mean process?"),
        (["--provider-name", "browser"], "tag py: py needs machines with commands"),
        (["--set", "pool_name=nobody"], "outrider pool serve --name nobody"),
        (["--num-vms", "1000000"], "would fit"),
        (["--num-vms", "0"], "num_vms is 0"),
        (["--pool", "max_use=3"], "did you mean max_uses?"),
        (["--set", "pool.n_machines=3"], "--num-vms"),
        (["--set", "pool=3"], "pool must hold settings"),
        (["--set", "train_env_manager.tags=[nowhere:Env]"], "tag nowhere:Env: environment 'nowhere:Env': there is no"),
    ],
)
def test_a_mistake_is_explained_before_anything_is_made(arguments: list[str], says: str):
    done = run_outrider("rollout", "-c", "programs.yaml", "--steps", "1", *arguments, code=2)
    assert says in done.stderr
    assert not Path("results").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--num-vms", "2", "--use-vm-pool"], "--use-vm-pool, --num-vms have no effect: no tag acts on machines"),
        (["--headless"], "--headless has no effect: no tag acts on machines"),
        (["--num-vms", "3"], None),
    ],
)
def test_settings_of_machines_without_effect_are_told(arguments: list[str], says: str | None):
    Path("lake.yaml").write_text("train_env_manager: {num_env_groups: 1, tags: [FrozenLake]}")
    done = run_outrider("rollout", "-c", "lake.yaml", "--steps", "1", *arguments)
    if says is None:
        assert "note:" not in done.stdout
    else:
        assert f"note: {says}" in done.stdout


def test_a_dry_run_checks_machines_and_makes_none():
    done = run_outrider("rollout", "-c", "desktops.yaml", "--dry-run", "--machine", "disk_bytes=100000000")
    settings = json.loads(done.stdout)["settings"]
    assert (settings["num_vms"], settings["machine"]) == (2, {"disk_bytes": 100000000})
    assert list(pools_on_host()) == []


def test_signals_end_the_machines(name: str):
    with started("rollout", "-c", "programs.yaml", "--name", name, "--workers", "2", "--steps", "50") as process:
        asyncio.run(eventually(leased(name), within_seconds=40))
        process.send_signal(signal.SIGTERM)
        output = ended(process)
    assert process.returncode == 3, output
    assert f"--resume {name}" in output
    asyncio.run(nothing_is_left(name))
