"""Programs that are killed at a named point between two writes, and started again until they come to their end.

Arguments: the name of a scenario, an empty folder, the URL of a store or nothing, and points as POINT:N, or
POINT:*SECONDS for the first time that it is reached, the second, and so on, as long as `until(SECONDS)` goes on. For
each death, and first for the story without one, it prints a line of JSON. All that is slow to import is imported once:
lives are forks.
"""

import asyncio
import itertools
import json
import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from outrider import open_store
from outrider.cli import cli, enqueue, export, rollout, run, work  # noqa: F401 before lives are forked
from outrider.cli.leases import take_leases_of_the_dead
from outrider.cluster.channel.durable import DurableChannel
from outrider.core.clock import SystemClock
from outrider.core.crash_points import crash_at
from outrider.core.ledger import GroupState
from outrider.core.machine import MachineState
from outrider.pool import MachinePool, PoolConfig
from outrider.pool.providers.process import ProcessProvider
from outrider.testing.history import check_store
from outrider.train.export import read_jsonl, write_jsonl
from soaking import until
from training import Lab, Model, config_of

LIFE_SECONDS = 60.0
MOST_LIVES = 4
EVERY_TIME = "*"
HISTORY = "history"
EARLIER = {"leases.taken": "runner.claimed:1"}
"""A point that only those reach who go on after another death."""


def command(*arguments: str) -> None:
    try:
        cli.main(list(arguments), standalone_mode=False)
    except SystemExit as exc:
        if exc.code:
            raise


class Scenario:
    """Begins and goes on by `live`, alone in the current folder; `outcome` is the same however often that took."""

    own_store = "sqlite:///runs.db"

    def __init__(self, url: str, point: str) -> None:
        self.url = url or self.own_store
        self.point = point
        self.store_option = ["--store", url] if url else []

    def live(self) -> None: ...

    async def outcome(self) -> Any: ...

    async def checked(self) -> tuple[int, Any]:
        async with open_store(self.url, create=False) as store:
            return await check_store(store, Path(HISTORY)), await self.outcome()


class Run(Scenario):
    """`outrider run`, resumed."""

    own_store = "sqlite:///results/r/store.db"

    how: tuple[str, ...] = ("--model", "builtin:solver")

    def live(self) -> None:
        self.run(*self.how, "--record", "record.jsonl")

    @property
    def begun(self) -> bool:
        return Path("results/r/plan.json").exists()

    def run(self, *options: str) -> None:
        how = ["--mode", "FrozenLake", "--limit", "2", "--num-rollouts", "2", *options]
        command("run", "--resume" if self.begun else "--name", "r", *how, *self.store_option)

    async def outcome(self) -> Any:
        lines = [json.loads(line) for line in Path("results/r/results.jsonl").read_text().splitlines()]
        total = json.loads(Path("results/r/summary.json").read_text())["total"]
        files = sorted(path.name for path in Path("results/r").iterdir() if path.is_file())
        return {
            "results": sorted((line["rollout_id"], line["status"], line["reward"]) for line in lines),
            "total": {name: total[name] for name in ("n", "n_scored", "statuses", "reward", "pass_at")},
            "files": [name for name in files if not name.startswith("store.db")],
        }


class Extend(Run):
    """A run that is resumed with more samples for each task."""

    def live(self) -> None:
        if not self.begun:
            self.run(*self.how)
        self.run(*self.how, "--samples-per-task", "2")


class Retry(Run):
    """A run whose failed samples are run again, in place of the failed."""

    how = (*Run.how, "--agent", "chaos_agents:stumble", "--samples-per-task", "2", "--no-fail-fast", "--allow-failures")

    def live(self) -> None:
        self.run(*self.how)
        self.run(*self.how, "--retry-failed")


N_TASKS = 3


class Work(Scenario):
    """`outrider enqueue`, `work`, `export`."""

    def live(self) -> None:
        if (exported := Path("out.jsonl")).exists():
            assert exported.read_text().count("\n") == N_TASKS, "a file that is there is whole"
        # A supervisor takes the leases of a worker that an agent has killed.
        harm = {"supervisor.revoked": "kill", "supervisor.blocking_failed": "block"}.get(self.point.partition(":")[0])
        tasks = [{"id": f"t{number}", "harm": harm if number == 1 else None} for number in range(N_TASKS)]
        Path("tasks.jsonl").write_text("".join(f"{json.dumps(task)}\n" for task in tasks))
        how = ["--id-field", "id", "--unresponsive", "2", "--max-attempts", "9"]
        command("enqueue", "tasks.jsonl", *how, "--store", self.url)
        workers = {"kill": [], "block": ["--max-block", "1"]}.get(harm or "", ["--tasks"])
        how = ["--workers", "1", "--max-env-num-per-worker", "3", "--agent", "chaos_agents:toil"]
        command("work", "--until-done", *how, *workers, "--store", self.url)
        command("export", "-o", "out.jsonl", "--store", self.url)

    async def outcome(self) -> Any:
        lines = [json.loads(line)["rollout"] for line in Path("out.jsonl").read_text().splitlines()]
        return sorted((line["rollout_id"], line["status"], line["reward"]) for line in lines)


SETTINGS = """
train_env_manager: {max_env_num_per_worker: 4, num_env_groups: 2, group_size: 2, tags: [FrozenLake]}
val_env_manager: {max_env_num_per_worker: 4, num_env_groups: 1, group_size: 1, tags: [FrozenLake]}
validate_every: 1
steps: 2
max_turns: 3
"""


class Rollout(Scenario):
    """`outrider rollout`, resumed."""

    own_store = "sqlite:///results/r/store.db"

    def live(self) -> None:
        Path("settings.yaml").write_text(SETTINGS)
        begun = Path("results/r/rollout.yaml").exists()
        command(
            "rollout", *(["--resume", "r"] if begun else ["-c", "settings.yaml", "--name", "r", *self.store_option])
        )

    async def outcome(self) -> Any:
        async with open_store(self.url, create=False) as store:
            return await trained_on(store, "r")


async def trained_on(store: Any, ledger: str) -> Any:
    """Which rollouts each batch had, and what they were worth."""
    batches: dict[int, Any] = {}
    for group in await store.query_groups(ledger):
        assert group.state is not GroupState.DELIVERED
        if group.batch is not None:
            rollouts = await store.query_rollouts(rollout_ids=group.members)
            ended = sorted((one.rollout_id, one.status, one.seed) for one in rollouts)
            batches.setdefault(group.batch, []).append([group.group_id, ended])
    tally = await store.tally(ledger)
    assert tally.generated == sum(tally.tokens.values())
    return [sorted(batches[number]) for number in sorted(batches)]


N_BATCHES = 2


class Train(Scenario):
    """A trainer of its own: takes batches, writes them down, publishes a model for each."""

    def live(self) -> None:
        asyncio.run(self._train())

    async def _train(self) -> None:
        clock = SystemClock()
        config = config_of(n_groups=2, async_generation_ratio=0.0, max_staleness=1)
        async with open_store(self.url) as store:
            lab = Lab(store=store, clock=clock, model=Model(clock))
            await take_leases_of_the_dead(store)
            async with lab.training(config, n_workers=1) as scheduler:
                while scheduler.version < N_BATCHES:
                    batch = await scheduler.get_batch()
                    write_jsonl(batch.batch, f"batch-{batch.number}.jsonl")
                    await scheduler.publish(model=f"model-{batch.number + 1}")
                await scheduler.stop(abort=True)

    async def outcome(self) -> Any:
        async with open_store(self.url, create=False) as store:
            resources = await store.get_latest_resources()
            assert resources is not None
            files = [
                sorted((one.sample.rollout_id, one.version) for one in read_jsonl(path))
                for path in sorted(Path().glob("batch-*.jsonl"))
            ]
            return [await trained_on(store, "train"), files, resources.resources["policy"]["model"]]


class Pool(Scenario):
    """A pool of one sandbox, used twice, whose owner is killed."""

    def live(self) -> None:
        asyncio.run(self._use())

    async def _use(self) -> None:
        config = PoolConfig(n_machines=1, name=self._name)
        async with open_store(self.url) as store, MachinePool(ProcessProvider(), config, journal=store) as pool:
            for _ in range(2):
                async with pool.acquire(deadline=30) as lease:
                    await lease.computer.write_file("left", b"behind")

    @property
    def _name(self) -> str:
        return f"crash-{Path.cwd().name}"

    async def outcome(self) -> Any:
        assert not await ProcessProvider().owned(self._name), "a machine is left"
        async with open_store(self.url, create=False) as store:
            left = await store.query_machines(self._name, [state for state in MachineState if state.exists])
            assert not left, "the journal knows of machines that are not there"
        return "no machine is left"


ITEMS = list(range(3))


class Channel(Scenario):
    """A durable channel: all items are put, each is read under a lease and noted, then it is closed."""

    def live(self) -> None:
        with DurableChannel("c", self.url, lease_seconds=1.0) as channel, Path("read").open("a") as noted:
            if not asyncio.run(self._n_put()):
                channel.put_many(ITEMS)
            while channel.qsize() or asyncio.run(self._n_put(is_open=True)):
                with channel.lease(timeout=20) as item:
                    noted.write(f"{item}\n")
                    noted.flush()
            channel.close()

    async def _n_put(self, *, is_open: bool = False) -> int:
        async with open_store(self.url, read_only=True) as store:
            states = ["queuing", "requeuing", "preparing", "running"] if is_open else None
            return (await store.query_rollouts(tag="channel/c/default", status_in=states)).total

    async def outcome(self) -> Any:
        async with open_store(self.url, create=False) as store:
            statuses = sorted(one.status for one in (await store.query_rollouts()).items)
        return sorted({int(line) for line in Path("read").read_text().split()}), statuses


class Abandon(Scenario):
    """A durable channel that is closed with all its items in it, which nobody shall read."""

    def live(self) -> None:
        with DurableChannel("c", self.url) as channel:
            if not channel.qsize() and not asyncio.run(self._is_closed()):
                channel.put_many(ITEMS)
            channel.close(drain=False)

    async def _is_closed(self) -> bool:
        async with open_store(self.url, read_only=True) as store:
            return bool((await store.query_rollouts(status="cancelled")).total)

    async def outcome(self) -> Any:
        async with open_store(self.url, create=False) as store:
            return sorted(one.status for one in (await store.query_rollouts()).items)


SCENARIOS: dict[str, type[Scenario]] = {
    "run": Run,
    "extend": Extend,
    "retry": Retry,
    "work": Work,
    "rollout": Rollout,
    "train": Train,
    "pool": Pool,
    "channel": Channel,
    "abandon": Abandon,
}


def forked(act: Callable[[], None], log: Path) -> int:
    """Let a child act; how it ended, as `waitpid` tells."""
    if (pid := os.fork()) == 0:
        code = 1
        try:
            descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            os.dup2(descriptor, 1)
            os.dup2(descriptor, 2)
            act()
            code = 0
        except SystemExit as exc:
            print(exc, file=sys.stderr)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    deadline = time.monotonic() + LIFE_SECONDS
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return status
        time.sleep(0.005)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    raise TimeoutError(f"a life lasted longer than {LIFE_SECONDS:g} s: {log.read_text()[-3000:]}")


def tried(scenario: str, folder: Path, url: str, point: str) -> dict[str, Any]:
    """Live until the end, killed once at `point`; what came of it."""
    folder.mkdir()
    log = folder / "log"
    deaths = [f"{EARLIER[name]}:{folder / 'earlier'}"] if (name := point.partition(":")[0]) in EARLIER else []
    deaths += [f"{point}:{folder / 'died'}"]
    made = SCENARIOS[scenario](url, point)

    def live(death: str) -> None:
        os.chdir(folder)
        os.environ["OUTRIDER_HISTORY"] = str(folder / HISTORY)
        if point:
            crash_at(death)
        made.live()

    def check() -> None:
        os.chdir(folder)
        n_calls, outcome = asyncio.run(made.checked())
        (folder / "outcome").write_text(json.dumps([n_calls, outcome]))

    for number in range(MOST_LIVES):
        death = deaths[min(number, len(deaths) - 1)]
        status = forked(lambda death=death: live(death), log)
        if status == 0:
            break
        if not os.WIFSIGNALED(status) or os.WTERMSIG(status) != signal.SIGKILL:
            return {"point": point, "error": f"ended with {status}: {log.read_text()[-3000:]}"}
    else:
        return {"point": point, "error": f"did not come to its end: {log.read_text()[-3000:]}"}
    if forked(check, log) != 0:
        return {"point": point, "error": log.read_text()[-3000:]}
    n_calls, outcome = json.loads((folder / "outcome").read_text())
    died = (folder / "died").exists()
    shutil.rmtree(folder)
    return {"point": point, "died": died, "n_calls": n_calls, "outcome": outcome}


def main(scenario: str, folder: Path, url: str, points: list[str]) -> None:
    numbers = itertools.count()

    def told(point: str) -> bool:
        """Whether it was reached."""
        number = next(numbers)
        told = tried(scenario, folder / f"{number}", url and f"{url}_{number}", point)  # a schema for each
        print(json.dumps(told), flush=True)
        return told.get("died", False)

    told("")
    for point in points:
        name, _, n = point.partition(":")
        if n.startswith(EVERY_TIME):
            any(not told(f"{name}:{number + 1}") for number in until(float(n.removeprefix(EVERY_TIME))))
        else:
            told(point)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3], sys.argv[4:])
