"""The commands of the guide to N rollouts on M machines, as they stand: only the program's name, the data and the
provider are others, and a model server of ours stands behind the model's name.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from outrider.core.machine import MachineState
from outrider.env.registry import BUNDLED
from outrider.policy.opening import open_policy
from outrider.policy.spec import PolicySpec
from outrider.pool.providers.desktop import DesktopProvider
from outrider.store import open_store
from outrider.testing import ModelServer
from qemu_guest import desktop_image
from warm_outrider import run_warm

WITH_POOL = """
    --mode osworld \
    --data path/to/benchmark.jsonl \
    --num-rollouts 5 \
    --num-vms 3 \
    --use-vm-pool \
    --path-to-vm /path/to/vm.vmx \
    --provider-name desktop \
    --action-space computer_13 \
    --screen-width 1920 \
    --screen-height 1080 \
    --model gpt-4.1-2025-04-14 \
    --output-dir results
"""

WITHOUT_POOL = """
    --mode osworld \
    --data path/to/benchmark.jsonl \
    --num-rollouts 5 \
    --path-to-vm /path/to/vm.vmx \
    --provider-name desktop \
    --model gpt-4.1-2025-04-14 \
    --output-dir results
"""

OTHERS = """
    --mode math \
    --data path/to/benchmark.jsonl \
    --num-rollouts 5 \
    --model gpt-4.1-2025-04-14 \
    --output-dir results
"""

SMALL = """
    --mode osworld \
    --data benchmarks/osworld_tasks.jsonl \
    --num-rollouts 3 \
    --num-vms 2 \
    --use-vm-pool \
    --path-to-vm /vms/ubuntu.vmx \
    --provider-name desktop \
    --action-space computer_13
"""

LARGE = """
    --mode math \
    --data benchmarks/math_tasks.jsonl \
    --num-rollouts 10 \
    --model gpt-4.1-2025-04-14
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OUTRIDER_STORE", raising=False)
    return tmp_path


@pytest.fixture
async def server() -> AsyncIterator[ModelServer]:
    policy = await open_policy(PolicySpec(model="builtin:solver"))
    async with ModelServer(policy, models=("gpt-4.1-2025-04-14",)) as server:
        yield server


def benchmark(path: str, mode: str, n: int) -> None:
    lines = (BUNDLED / f"{mode}.jsonl").read_text().splitlines()[:n]
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text("\n".join(lines) + "\n")


async def outrider_run(server: ModelServer, arguments: str) -> dict[str, Any]:
    """What the command printed, as JSON."""
    variables = {"OPENAI_API_KEY": "any", "OPENAI_BASE_URL": server.base_url}
    done = await asyncio.to_thread(run_warm, "run", *arguments.split(), "--json", seconds=100, **variables)
    assert done.returncode == 0, done.stderr
    outcome: dict[str, Any] = json.loads(done.stdout)
    return outcome


async def most_at_once(outcome: dict[str, Any]) -> tuple[int, set[MachineState]]:
    """How many machines existed at the same time, and how all of them ended."""
    async with open_store(f"sqlite:///{outcome['folder']}/store.db") as store:
        moves = reversed((await store.query_machine_moves()).items)
        there: set[str] = set()
        most = 0
        for move in moves:
            (there.add if move.state.exists else there.discard)(move.machine_id)
            most = max(most, len(there))
        return most, {machine.state for machine in await store.query_machines()}


@pytest.mark.parametrize(
    ("arguments", "data", "n_tasks", "n_machines"),
    [
        (WITH_POOL, "path/to/benchmark.jsonl", 6, 3),
        pytest.param(SMALL, "benchmarks/osworld_tasks.jsonl", 4, 2, marks=pytest.mark.soak),
        (WITHOUT_POOL, "path/to/benchmark.jsonl", 5, 5),
    ],
    ids=["with the pool", "small, with the pool", "without the pool"],
)
async def test_rollouts_share_machines(server: ModelServer, arguments: str, data: str, n_tasks: int, n_machines: int):
    benchmark(data, "osworld", n_tasks)
    outcome = await outrider_run(server, arguments)
    total = outcome["summary"]["total"]
    assert outcome["complete"]
    assert (total["n"], total["n_scored"], total["reward"]["scored"]["mean"]) == (n_tasks, n_tasks, 1.0)
    assert await most_at_once(outcome) == (n_machines, {MachineState.GONE})
    if "--use-vm-pool" in arguments:
        counted = outcome["machines"]
        assert (counted["n_machines"], counted["n_leases"], counted["n_leaks"]) == (n_machines, n_tasks, 0)
    async with open_store(f"sqlite:///{outcome['folder']}/store.db") as store:
        for pool in await store.query_pools():
            assert await DesktopProvider().owned(pool.name) == ()


async def test_rollouts_share_virtual_machines(server: ModelServer):
    benchmark("benchmarks/osworld_tasks.jsonl", "osworld", 2)
    image = str(desktop_image().folder)
    arguments = SMALL.replace("/vms/ubuntu.vmx", image).replace("desktop", "qemu")
    outcome = await outrider_run(server, arguments)
    assert (outcome["complete"], outcome["summary"]["total"]["reward"]["scored"]["mean"]) == (True, 1.0)
    assert await most_at_once(outcome) == (2, {MachineState.GONE})


@pytest.mark.parametrize(
    ("arguments", "data"), [(OTHERS, "path/to/benchmark.jsonl"), (LARGE, "benchmarks/math_tasks.jsonl")]
)
async def test_other_modes_need_no_machine(server: ModelServer, arguments: str, data: str):
    benchmark(data, "math", 12)
    outcome = await outrider_run(server, arguments)
    total = outcome["summary"]["total"]
    assert (total["n"], total["reward"]["scored"]["mean"]) == (12, 1.0)
    assert outcome["machines"] is None
    assert await most_at_once(outcome) == (0, set())
