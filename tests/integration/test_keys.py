"""Keys in the environment of a command are neither in that of its workers nor in that of what agents start."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from outrider import open_store
from outrider.cluster import Cluster
from outrider.cluster.rollouts.launcher import cluster_launcher
from outrider.runner.kit import EpisodeSpec
from outrider.runner.supervisor import Launcher, Scale, Supervisor, process_launcher
from outrider.runner.worker import WorkerSpec
from outrider.testing import ModelServer
from warm_outrider import run_warm

OWN_KEY = "canary-of-the-model"
KEYS = {
    "OPENAI_API_KEY": "canary-1",
    "AWS_SECRET_ACCESS_KEY": "canary-2",
    "HF_TOKEN": "canary-3",
    "PGPASSWORD": "canary-4",
    "DATABASE_URL": "postgresql://me:canary-5@host/database",
    "OUTRIDER_STORE": "postgresql://me@host/database?password=canary-6",
}
PASSED = "HF_TOKEN"

AGENTS = """
import json, os, subprocess
from pathlib import Path

from outrider.env.sandbox.census import family

async def look(task, ctx):
    if ctx.policy is not None:
        await ctx.policy.complete(ctx.opening)
    return spy(task, ctx)

def spy(task, ctx):
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        os.write(child.stdin.fileno(), b"there?")
        os.read(child.stdout.fileno(), 6)
        found = {}
        for pid in {child.pid, *family(os.getpid())}:
            try:
                command, variables = (Path(f"/proc/{pid}/{name}").read_bytes() for name in ("cmdline", "environ"))
            except OSError:
                continue  # Chromium's come and go
            keys = [entry.decode() for entry in variables.split(b"\\0") if b"canary-" in entry]
            found[f"{pid} {command.decode()}"] = keys
        own = {name: value for name, value in os.environ.items() if "canary-" in value}
    Path("seen.json").write_text(json.dumps({"own": own, "processes": found}))
    return 1.0

def needy(task, ctx):
    return os.environ["OPENAI_API_KEY"]
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "key_agents.py").write_text(AGENTS)
    (tmp_path / "needy_agents.py").write_text("import os\nkey = os.environ['OPENAI_API_KEY']\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    return tmp_path


def outrider(*arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    return run_warm(*arguments, seconds=60, **KEYS, **variables)


def seen() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path("seen.json").read_text())
    return found


def exposed() -> set[str]:
    """The keys that an agent found, in its own environment or in that of a process which it looked at."""
    processes = seen()["processes"].values()
    return {*seen()["own"], *(entry.partition("=")[0] for entries in processes for entry in entries)}


async def enqueued() -> tuple[str, str]:
    """A store with one rollout, as an option."""
    async with open_store("sqlite:///runs.db") as store:
        await store.enqueue_rollout({})
    return "--store", "sqlite:///runs.db"


@pytest.mark.parametrize("workers", ["1", "2"], ids=["embedded worker", "worker processes"])
async def test_a_run_in_a_browser_shows_no_key_and_asks_the_model_with_its_own(workers: str):
    async with ModelServer("Hello.", key=OWN_KEY) as server:
        model = ("--model", "test-model", "--base-url", server.base_url, "--api-key-env", "MY_MODEL")
        run = ("run", "--mode", "web", "--limit", "1", *model, "--workers", workers, "--agent", "key_agents:look")
        done = await asyncio.to_thread(outrider, *run, "--allow-failures", MY_MODEL=OWN_KEY)
    assert done.returncode == 0, done.stdout + done.stderr
    assert server.n_calls >= 1
    commands = " ".join(seen()["processes"])
    for program in ("cat", "playwright", "chrom"):
        assert program in commands
    assert exposed() == set()
    names = ", ".join(sorted({*KEYS, "MY_MODEL"}))
    assert f"note: not in the environment of agents: {names}; --pass-env NAME hands one on" in done.stdout


@pytest.mark.parametrize("where", ["--tasks", "--workers=1"])
async def test_an_agent_finds_the_variables_that_are_passed_and_no_others(where: str):
    work = ("work", "--until-done", where, "--agent", "key_agents:spy", "--pass-env", PASSED, *await enqueued())
    done = await asyncio.to_thread(outrider, *work)
    assert done.returncode == 0, done.stdout + done.stderr
    assert seen()["own"] == {PASSED: KEYS[PASSED]}
    (child,) = (keys for command, keys in seen()["processes"].items() if command.split()[1] == "cat\0")
    assert child == [f"{PASSED}={KEYS[PASSED]}"]
    assert exposed() == {PASSED}


@pytest.mark.parametrize("how", ["flag", "file"])
def test_a_run_passes_what_it_is_asked_to(how: str):
    if how == "flag":
        lake = ("--mode", "FrozenLake", "--limit", "1", "--model", "builtin:solver", "--agent", "key_agents:spy")
        done = outrider("run", *lake, "--pass-env", PASSED)
    else:
        settings = {"mode": "FrozenLake", "limit": 1, "model": "builtin:solver", "agent": "key_agents:spy"}
        Path("run.yaml").write_text(json.dumps({**settings, "pass_env": [PASSED]}))
        done = outrider("run", "--config", "run.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert exposed() == {PASSED}


def test_a_training_run_passes_what_it_is_asked_to():
    manager = {"tags": ["FrozenLake"], "num_env_groups": 1, "group_size": 1}
    train = {"train_env_manager": manager, "custom_envs": {"FrozenLake": {}}, "steps": 1, "agent": "key_agents:spy"}
    Path("train.yaml").write_text(json.dumps(train))
    done = outrider("rollout", "-c", "train.yaml", "--allow-failures", "--pass-env", PASSED)
    assert done.returncode == 0, done.stdout + done.stderr
    assert exposed() == {PASSED}


@pytest.mark.parametrize("where", ["--tasks", "--workers=1"])
async def test_an_agent_that_misses_a_key_says_how_to_hand_it_on(where: str):
    store = await enqueued()
    done = await asyncio.to_thread(outrider, "work", "--until-done", where, "--agent", "key_agents:needy", *store)
    assert done.returncode == 1
    hint = "KeyError: 'OPENAI_API_KEY'; OPENAI_API_KEY is not in the environment of agents, --pass-env OPENAI_API_KEY"
    async with open_store("sqlite:///runs.db") as opened:
        (rollout,) = await opened.query_rollouts()
    assert rollout.failure is not None
    assert hint in rollout.failure.message


@pytest.mark.parametrize("command", ["run", "work"])
async def test_a_module_that_misses_a_key_says_how_to_hand_it_on(command: str):
    place = await enqueued()
    run = ("run", "--mode", "FrozenLake", "--limit", "1", "--model", "builtin:solver")
    work = ("work", "--until-done", "--tasks", *place)
    done = await asyncio.to_thread(outrider, *(run if command == "run" else work), "--agent", "needy_agents:play")
    assert done.returncode != 0
    assert "--pass-env OPENAI_API_KEY hands it on" in done.stdout + done.stderr


def test_a_variable_that_is_not_set_cannot_be_passed():
    run = ("run", "--mode", "FrozenLake", "--limit", "1", "--model", "builtin:solver")
    done = outrider(*run, "--pass-env", "NOT_THERE_TOKEN")
    assert done.returncode == 2
    assert "--pass-env NOT_THERE_TOKEN: this variable is not set" in done.stderr
    assert not Path("results").exists()


@pytest.mark.parametrize("kind", ["processes", "local cluster"])
async def test_workers_that_a_program_starts_have_no_keys_either(kind: str):
    """Here nothing is withheld from the program itself, which is the user's own."""
    program = f"""
import asyncio, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import test_keys
asyncio.run(test_keys.work({kind!r}))
"""
    environment = {**os.environ, **KEYS, "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert exposed() == set()


async def work(kind: str) -> None:
    """What that program does."""
    async with open_store("sqlite:///runs.db") as store:
        await store.enqueue_rollout({})
        spec = WorkerSpec(store_url=store.url, episodes=EpisodeSpec(agent="key_agents:spy"))
        if kind == "processes":
            await _work(spec, store, process_launcher(print))
        else:
            with Cluster(local=True) as cluster:
                await _work(spec, store, cluster_launcher(cluster, print))


async def _work(spec: WorkerSpec, store: Any, launcher: Launcher) -> None:
    supervisor = Supervisor(store, spec, scale=Scale(minimum=1, maximum=1), launcher=launcher, on_line=print)
    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        tasks.create_task(supervisor.run())
        (rollout,) = await store.query_rollouts()
        await store.wait_for_rollouts([rollout.rollout_id], timeout=25)
        supervisor.drain()
