"""Workers as processes and as tasks: killed, broken, too many, too few."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest

from outrider import RolloutConfig, RolloutRequest, Store
from outrider.core.errors import InvalidInput, WorkersFailed
from outrider.core.status import QUEUED, AttemptStatus, RolloutStatus
from outrider.runner import RunnerConfig
from outrider.runner.kit import EpisodeSpec
from outrider.runner.supervisor import Scale, Supervisor, process_launcher, task_launcher
from outrider.runner.worker import WorkerSpec
from outrider.testing import eventually
from processes import marked, run_outrider
from promptly import within
from store_invariants import check_invariants

AGENTS = """
import asyncio, ctypes, os, signal, subprocess, time
from pathlib import Path

async def quick(task, ctx):
    return 1.0

async def slow(task, ctx):
    await asyncio.sleep(task.get("seconds", 30))
    return 1.0

def leaves_a_word(task, ctx):
    import atexit, threading
    atexit.register(Path("exit handler").touch)
    threading.Thread(target=lambda: (time.sleep(0.5), Path("thread").touch()), daemon=False).start()
    print("a word", end="")
    return 1.0

async def broke(task, ctx):
    from outrider.core.errors import BudgetSpent
    raise BudgetSpent("1,000 tokens are used up")

def litter(task, ctx):
    import subprocess
    subprocess.Popen(["sleep", "600"])
    os._exit(9)

async def deadly(task, ctx):
    await asyncio.sleep(0.2)
    if task.get("deadly"):
        os.kill(os.getpid(), signal.SIGSEGV)
    return 1.0

def at_work():
    Path(f"at-work-{os.getpid()}").touch()

async def littering(task, ctx):
    subprocess.Popen(["setsid", "--fork", "sleep", "600"])
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    at_work()
    await asyncio.sleep(600)

async def blocks(task, ctx):
    at_work()
    time.sleep(1e9)

async def lock_twice(library):
    mutex = ctypes.create_string_buffer(64)
    at_work()
    for _ in range(2):
        library.pthread_mutex_lock(mutex)

async def blocks_in_a_library(task, ctx):
    await lock_twice(ctypes.CDLL(None))

async def holds_the_lock(task, ctx):
    await lock_twice(ctypes.PyDLL(None))

async def swallows(task, ctx):
    at_work()
    while True:
        try:
            await asyncio.sleep(600)
        except BaseException:
            pass

async def forks(task, ctx):
    if os.fork() == 0:
        os.setsid()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGHUP})
        await asyncio.sleep(600)
        time.sleep(600)
    at_work()
    await asyncio.sleep(600)

async def stops(task, ctx):
    at_work()
    os.kill(os.getpid(), signal.SIGSTOP)
"""


@pytest.fixture
def agents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with agents, which worker processes start in."""
    (tmp_path / "some_agents.py").write_text(AGENTS)
    (tmp_path / "broken_agents.py").write_text("raise RuntimeError('broken on import')")
    (tmp_path / "deadly_agents.py").write_text("import os\nos.write(2, b'broken on import')\nos._exit(7)")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def supervise(
    store: Store, agent: str, *, scale: Scale | int, lines: list[str] | None = None, **config: object
) -> Supervisor:
    said = [] if lines is None else lines
    spec = WorkerSpec(store_url=store.url, episodes=EpisodeSpec(agent=agent), config=RunnerConfig(**config))  # type: ignore[arg-type]
    if isinstance(scale, int):
        scale = Scale(minimum=scale, maximum=scale)
    return Supervisor(store, spec, scale=scale, launcher=process_launcher(said.append), on_line=said.append)


async def until_ended(store: Store, supervisor: Supervisor, rollout_ids: list[str], seconds: float = 30.0) -> None:
    async def drain() -> None:
        ended = await store.wait_for_rollouts(rollout_ids, timeout=seconds)
        supervisor.drain()
        assert len(ended) == len(rollout_ids)

    async with asyncio.timeout(seconds + 10), asyncio.TaskGroup() as group:
        group.create_task(supervisor.run())
        group.create_task(drain())


async def running(store: Store, n: int) -> None:
    async def so_many() -> bool:
        return (await store.query_rollouts(status="running", limit=0)).total == n

    await eventually(so_many, within_seconds=20)


async def test_a_killed_worker_is_noticed_at_once_replaced_and_its_rollout_retried(store: Store, agents: Path):
    lines: list[str] = []
    rollout = await store.enqueue_rollout({"seconds": 30}, config=RolloutConfig(unresponsive_seconds=25))
    supervisor = supervise(store, "some_agents:slow", scale=1, lines=lines)

    async def second_attempt() -> bool:
        return len(await store.query_attempts(rollout.rollout_id)) == 2

    async def kill() -> None:
        await running(store, 1)
        (worker,) = supervisor.workers
        with within(10):  # and not when the lease expires
            os.kill(worker.pid, signal.SIGKILL)  # type: ignore[attr-defined]
            await eventually(second_attempt)

    async with asyncio.TaskGroup() as group:
        group.create_task(supervisor.run())
        await kill()
        await store.cancel_rollouts([rollout.rollout_id])
        supervisor.drain()

    first, _ = await store.query_attempts(rollout.rollout_id)
    assert first.status is AttemptStatus.UNRESPONSIVE
    assert first.failure is not None
    assert "SIGKILL" in first.failure.message
    assert any("SIGKILL" in line for line in lines)
    assert supervisor.n_deaths == 1, lines


async def test_a_task_that_kills_its_workers_fails_alone(store: Store, agents: Path):
    config = RolloutConfig(max_attempts=2)
    others = [await store.enqueue_rollout({}, config=config) for _ in range(20)]
    deadly = [await store.enqueue_rollout({"deadly": True}, config=config, priority=1) for _ in range(2)]
    ids = [rollout.rollout_id for rollout in (*deadly, *others)]
    lines: list[str] = []
    supervisor = supervise(store, "some_agents:deadly", scale=2, lines=lines, max_env_num_per_worker=8)

    async def told(*command: str) -> str:
        return (await asyncio.to_thread(run_outrider, *command, "--store", store.url.reveal())).stdout

    async def look() -> None:
        """Until status and show tell of those that are set aside."""
        while not re.search(r"\d+ rollouts? waits? set aside, each to run alone", await told("status")):
            continue
        while waiting := [one.rollout_id for one in await store.query_rollouts() if one.is_set_aside]:
            if "waits to run alone" in await told("show", waiting[-1]):
                return
        raise AssertionError("show said nothing of those that were set aside")

    async with asyncio.TaskGroup() as group:
        group.create_task(asyncio.wait_for(look(), 60))
        group.create_task(until_ended(store, supervisor, ids, seconds=60))
    assert any(re.search(r"\d+ of its \d+ rollouts set aside, each to run alone", line) for line in lines), lines

    await check_invariants(store)
    ended = {rollout.rollout_id: rollout for rollout in await store.query_rollouts()}
    for rollout in (ended[one.rollout_id] for one in deadly):
        assert (rollout.status, rollout.n_failures) == (RolloutStatus.FAILED, 2)
        assert rollout.failure is not None
        assert rollout.failure.boundary.is_infrastructure
        assert "killed its worker 2 times" in rollout.failure.message
        assert "SIGSEGV" in rollout.failure.message
    for rollout in (ended[one.rollout_id] for one in others):
        assert (rollout.status, rollout.n_failures) == (RolloutStatus.SUCCEEDED, 0)
    assert supervisor.n_deaths <= 2 + 2 * 2, "rollouts that were set aside ran together"


async def test_a_worker_that_somebody_else_terminates_is_replaced(store: Store, agents: Path):
    lines: list[str] = []
    rollout = await store.enqueue_rollout({"seconds": 30})
    supervisor = supervise(store, "some_agents:slow", scale=1, lines=lines, grace_seconds=0.1)

    async def terminate() -> None:
        await running(store, 1)
        (worker,) = supervisor.workers
        os.kill(worker.pid, signal.SIGTERM)  # type: ignore[attr-defined]

        async def second_attempt() -> bool:
            return len(await store.query_attempts(rollout.rollout_id)) == 2

        await eventually(second_attempt, within_seconds=20)

    async with asyncio.TaskGroup() as group:
        group.create_task(supervisor.run())
        await terminate()
        await store.cancel_rollouts([rollout.rollout_id])
        supervisor.drain()

    first, _ = await store.query_attempts(rollout.rollout_id)
    assert first.status is AttemptStatus.CANCELLED, "it was handed back, and counts as no failure"
    assert any("SIGTERM from outside" in line for line in lines)


async def test_what_a_dead_worker_has_started_ends_with_it(store: Store, agents: Path):
    rollout = await store.enqueue_rollout({}, config=RolloutConfig(max_attempts=1))
    supervisor = supervise(store, "some_agents:litter", scale=1)

    await until_ended(store, supervisor, [rollout.rollout_id])

    (attempt,) = await store.query_attempts(rollout.rollout_id)
    assert attempt.failure is not None
    assert "exited with code 9" in attempt.failure.message
    group = attempt.worker_id.rpartition(":")[2]

    async def gone() -> bool:  # a killed process is there until its parent, by now init, has taken note
        return not any(_process_group(pid) == group for pid in Path("/proc").glob("[0-9]*"))

    await eventually(gone)


def _process_group(process: Path) -> str:
    """The group of a process that is alive: one that init has not buried yet is not."""
    try:
        state, _, group = (process / "stat").read_text().rpartition(")")[2].split()[:3]
    except OSError:
        return ""
    return "" if state == "Z" else group


async def test_a_run_that_is_cancelled_leaves_no_worker(store: Store, agents: Path):
    for delay in (0.0, 0.01, 0.05, 0.3):
        supervisor = supervise(store, "some_agents:slow", scale=3)
        run = asyncio.create_task(supervisor.run())
        await asyncio.sleep(delay)
        run.cancel()
        await asyncio.wait([run], timeout=10)
        assert run.cancelled()
        assert supervisor.workers == ()


async def test_a_worker_that_ends_runs_exit_handlers_waits_for_threads_and_says_all(store: Store, agents: Path):
    lines: list[str] = []
    rollout = await store.enqueue_rollout({})
    supervisor = supervise(store, "some_agents:leaves_a_word", scale=1, lines=lines)
    await until_ended(store, supervisor, [rollout.rollout_id])
    assert Path("exit handler").exists()
    assert Path("thread").exists()
    assert "a word" in lines


@pytest.mark.parametrize(
    ("agent", "error", "says"),
    [
        ("nowhere:agent", InvalidInput, "no module 'nowhere'"),
        ("some_agents:nobody", InvalidInput, "has no 'nobody'"),
        ("broken_agents:agent", InvalidInput, "broken on import"),
        ("deadly_agents:agent", WorkersFailed, "5 times"),
    ],
)
async def test_workers_that_cannot_start_end_the_run(
    store: Store, agents: Path, agent: str, error: type[Exception], says: str
):
    lines: list[str] = []
    async with asyncio.timeout(30):
        with pytest.raises(error, match=says):
            await supervise(store, agent, scale=2, lines=lines).run()
    if error is WorkersFailed:
        assert any("broken on import" in line for line in lines)
    else:
        assert not any("💀" in line for line in lines), "workers that the supervisor has ended are no news"


async def test_the_number_of_workers_follows_the_queue_up_and_down(store: Store, agents: Path):
    supervisor = supervise(store, "some_agents:slow", scale=Scale(minimum=0, maximum=3))

    def workers(n: int) -> Callable[[], asyncio.Future[bool]]:
        async def so_many() -> bool:
            return len(supervisor.workers) == n

        return so_many  # type: ignore[return-value]

    async with asyncio.TaskGroup() as group:
        group.create_task(supervisor.run())
        rollouts = [await store.enqueue_rollout({"seconds": 60}) for _ in range(5)]
        await eventually(workers(3), within_seconds=40)
        await running(store, 3)
        await store.cancel_rollouts([rollout.rollout_id for rollout in rollouts])
        await eventually(workers(0), within_seconds=40)
        again = await store.enqueue_rollout({"seconds": 0})
        (ended,) = await store.wait_for_rollouts([again.rollout_id], timeout=15)
        assert ended.status is RolloutStatus.SUCCEEDED
        supervisor.drain()


async def test_the_same_supervisor_keeps_workers_as_tasks(store: Store, agents: Path):
    sys.path.insert(0, str(agents))
    try:
        ids = [(await store.enqueue_rollout({})).rollout_id for _ in range(20)]
        spec = WorkerSpec(store_url=store.url, episodes=EpisodeSpec(agent="some_agents:quick"))
        lines: list[str] = []
        scale = Scale(minimum=4, maximum=4)
        supervisor = Supervisor(store, spec, scale=scale, launcher=task_launcher(store, lines.append))
        await until_ended(store, supervisor, ids)
    finally:
        sys.path.remove(str(agents))
    assert len(lines) == 20
    assert lines[0].startswith("▶ Worker-0 processing rollout: ro-")


@pytest.mark.parametrize(
    "agent", ["littering", "blocks", "blocks_in_a_library", "swallows", "forks", "stops", "holds_the_lock"]
)
def test_nothing_outlives_a_supervisor_that_was_killed(store_url: str, agents: Path, agent: str):
    outrider = [sys.executable, "-m", "outrider"]
    subprocess.run([*outrider, "enqueue", "--test", "2", "--store", store_url], check=True, capture_output=True)
    mark = f"SUPERVISED={uuid4()}"
    work = ["work", "--workers", "2", "--agent", f"some_agents:{agent}", "--grace", "0.2", "--store", store_url]
    supervisor = subprocess.Popen(
        [*outrider, *work], stdout=subprocess.PIPE, text=True, env={**os.environ, **dict([mark.split("=")])}
    )
    assert supervisor.stdout is not None
    n_at_work = 0
    while n_at_work < 2:
        n_at_work += "processing" in supervisor.stdout.readline()
    while len(list(agents.glob("at-work-*"))) < 2:
        time.sleep(0.05)

    supervisor.kill()
    supervisor.wait()
    supervisor.stdout.close()

    deadline = time.monotonic() + 15
    while left := marked(mark):
        assert time.monotonic() < deadline, f"outlived their supervisor: {left}"
        time.sleep(0.05)


def test_impossible_numbers_of_workers_are_refused():
    for minimum, maximum in ((2, 1), (-1, 3), (0, 0)):
        with pytest.raises(InvalidInput):
            Scale(minimum=minimum, maximum=maximum)


@pytest.mark.parametrize("kind", ["tasks", "processes"])
async def test_a_spent_budget_drains_all_workers_and_leaves_the_work_in_the_queue(
    store: Store, agents: Path, kind: str
):
    await store.enqueue_many_rollouts([RolloutRequest(input={}) for _ in range(10)])
    said: list[str] = []
    launcher = task_launcher(store, said.append) if kind == "tasks" else process_launcher(said.append)
    spec = WorkerSpec(store_url=store.url, episodes=EpisodeSpec(agent="some_agents:broke"))
    supervisor = Supervisor(store, spec, scale=Scale(minimum=2, maximum=2), launcher=launcher)

    await asyncio.wait_for(supervisor.run(), 30)

    assert supervisor.stopped_by is not None
    assert "1,000 tokens are used up" in supervisor.stopped_by
    assert supervisor.n_deaths == 0
    statistics = await store.statistics()
    assert sum(statistics.rollouts[status] for status in QUEUED) == 10
