"""`outrider run` on machines: what is asked for wrongly, and what dies on the way."""

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from machine_runs import ended, folder_for_pools, leased, machines, moves, nothing_is_left, started, workers_of
from outrider.core.machine import MachineState
from outrider.pool.service.place import pools_on_host
from outrider.store import open_store
from outrider.testing import eventually
from processes import OUTRIDER, run_outrider

SLOW = "builtin:solver?latency=0.2"
KILLS_ITS_MACHINE = {
    "id": "deadly",
    "instruction": "Do nothing.",
    "config": [{"type": "execute", "parameters": {"command": "kill -9 -1", "shell": True}}],
    "evaluator": {"func": "infeasible"},
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder to work in, and one for what the host keeps of pools: `outrider pool gc` looks at all of them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("OUTRIDER_STORE", raising=False)
    with folder_for_pools(monkeypatch):
        yield tmp_path


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return f"{request.node.originalname[5:30]}-{os.getpid()}"


def begun(name: str, *arguments: str) -> AbstractContextManager[subprocess.Popen[str]]:
    return started("run", "--mode", "osworld", "--name", name, *arguments)


def results(name: str) -> dict[str, dict[str, Any]]:
    lines = [json.loads(line) for line in Path("results", name, "results.jsonl").read_text().splitlines()]
    assert len({line["rollout_id"] for line in lines}) == len(lines), "a rollout ended twice"
    return {line["task_id"]: line for line in lines}


async def test_a_killed_worker_gives_its_machine_back_and_its_rollout_is_tried_again(name: str):
    arguments = ("--use-vm-pool", "--num-vms", "2", "--workers", "2", "--num-rollouts", "2", "--limit", "4")
    with begun(name, *arguments, "--model", SLOW) as process:
        await eventually(leased(name, 2), within_seconds=40)
        held = {machine.holder for machine in await machines(name, MachineState.LEASED)}
        os.kill(workers_of(process)[0], signal.SIGKILL)
        output = await asyncio.to_thread(ended, process)
    assert process.returncode == 0, output
    found = results(name)
    assert [line["reward"] for line in found.values()] == [1.0] * 4
    (again,) = [line for line in found.values() if line["n_attempts"] > 1]
    assert again["rollout_id"] in held
    (gone,) = [move for move in await moves(name) if "has gone" in move.reason]
    assert gone.holder == again["rollout_id"]
    await nothing_is_left(name)


async def test_a_machine_that_dies_costs_an_attempt_and_no_score(name: str):
    arguments = ("--use-vm-pool", "--num-vms", "2", "--num-rollouts", "2", "--limit", "3", "--model", SLOW)
    with begun(name, *arguments) as process:
        await eventually(leased(name), within_seconds=40)
        (machine, *_) = await machines(name, MachineState.LEASED)
        os.kill(machine.address["pid"], signal.SIGKILL)
        output = await asyncio.to_thread(ended, process)
    assert process.returncode == 0, output
    assert "trouble with machines" in output
    found = results(name)
    assert [line["reward"] for line in found.values()] == [1.0] * 3
    assert sum(line["n_attempts"] for line in found.values()) == 4
    async with open_store(f"sqlite:///results/{name}/store.db") as store:
        attempts = await store.query_attempts(machine.holder)
    assert attempts.items[0].failure is not None
    assert attempts.items[0].failure.boundary == "machine"
    await nothing_is_left(name)


async def test_a_task_that_kills_its_machines_fails_and_the_others_go_on(name: str):
    solvable = (Path(__file__).parents[2] / "src/outrider/env/bundled/osworld.jsonl").read_text().splitlines()[:2]
    Path("tasks.jsonl").write_text("\n".join([json.dumps(KILLS_ITS_MACHINE), *solvable]))
    done = run_outrider(
        "run", "--mode", "osworld", "--data", "tasks.jsonl", "--use-vm-pool", "--num-vms", "2", "--num-rollouts", "3",
        "--model", "builtin:solver", "--name", name, "--json", code=1,
    )  # fmt: skip
    outcome = json.loads(done.stdout)
    total = outcome["summary"]["total"]
    assert (total["n"], total["n_scored"], total["reward"]["scored"]["mean"]) == (3, 2, 1.0)
    assert total["reward"]["all"]["mean"] == pytest.approx(2 / 3)
    deadly = results(name)["deadly"]
    assert (deadly["status"], deadly["n_attempts"], deadly["failure"]["boundary"]) == ("failed", 3, "machine")
    counted = outcome["machines"]
    assert counted["n_deaths"] + counted["n_failures"].get("reset", 0) >= 2  # the last may be ended before it is missed
    await nothing_is_left(name)


@pytest.mark.soak
async def test_a_killed_run_leaves_nothing_that_its_resumption_does_not_end(name: str):
    arguments = ("--use-vm-pool", "--num-vms", "2", "--num-rollouts", "2", "--limit", "3", "--workers", "2")
    with begun(name, *arguments, "--model", SLOW) as process:
        await eventually(leased(name), within_seconds=40)
        process.kill()
        process.wait()
    assert await machines(name, MachineState.LEASED) != ()
    assert [facts.name for facts in pools_on_host() if facts.name.startswith(f"{name}@")] != []
    with begun(name, *arguments, "--model", SLOW, "--resume", name) as process:
        output = await asyncio.to_thread(ended, process)
    assert process.returncode == 0, output
    assert [line["reward"] for line in results(name).values()] == [1.0] * 3
    await nothing_is_left(name)


@pytest.mark.parametrize(
    ("number", "own"),
    [(signal.SIGTERM, True), pytest.param(signal.SIGINT, False, marks=pytest.mark.soak)],
    ids=["own machines", "a pool"],
)
async def test_a_run_that_is_told_to_stop_ends_its_machines(name: str, number: int, own: bool):
    pool = ("--workers", "2") if own else ("--use-vm-pool", "--num-vms", "2")
    with begun(name, *pool, "--num-rollouts", "2", "--model", SLOW, "--limit", "6") as process:
        await eventually(leased(name), within_seconds=40)
        process.send_signal(number)
        output = await asyncio.to_thread(ended, process)
    assert process.returncode == 3, output
    assert f"--resume {name}" in output
    await nothing_is_left(name)


async def test_a_run_that_is_told_to_stop_while_its_machines_are_being_made_leaves_none(name: str):
    with begun(name, "--use-vm-pool", "--num-vms", "8", "--model", SLOW) as process:

        async def are_made() -> bool:
            return bool(await machines(name, MachineState.CREATING))

        await eventually(are_made, within_seconds=40)
        process.send_signal(signal.SIGTERM)
        output = await asyncio.to_thread(ended, process)
    assert process.returncode in (3, 143), output
    await nothing_is_left(name)


@pytest.mark.parametrize(
    ("n_rollouts", "n_machines"),
    [(4, 2), pytest.param(2, 2, marks=pytest.mark.soak), (1, 2)],
    ids=["N > M", "N = M", "N < M"],
)
async def test_any_number_of_rollouts_share_any_number_of_machines(name: str, n_rollouts: int, n_machines: int):
    done = run_outrider(
        "run", "--mode", "py", "--use-vm-pool", "--num-vms", str(n_machines), "--num-rollouts", str(n_rollouts),
        "--limit", "4", "--model", "builtin:solver", "--name", name, "--json",
    )  # fmt: skip
    outcome = json.loads(done.stdout)
    assert outcome["summary"]["total"]["reward"]["scored"]["mean"] == 1.0
    assert (outcome["machines"]["n_leases"], outcome["machines"]["n_leaks"]) == (4, 0)
    assert {machine.provider for machine in await machines(name)} == {"process"}
    await nothing_is_left(name)


def test_web_tasks_are_done_in_browsers_of_a_pool(name: str):
    done = run_outrider(
        "run", "--mode", "web", "--use-vm-pool", "--num-vms", "1", "--num-rollouts", "2", "--limit", "2",
        "--model", "builtin:solver", "--name", name, "--json",
    )  # fmt: skip
    outcome = json.loads(done.stdout)
    assert outcome["summary"]["total"]["reward"]["scored"]["mean"] == 1.0
    assert outcome["machines"]["n_leases"] == 2


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--provider-name", "desktops"], "did you mean desktop?"),
        (["--provider-name", "qemu"], "python -m outrider.pool.qemu.build"),
        (["--provider-name", "qemu", "--path-to-vm", "nowhere"], "nowhere"),
        (["--provider-name", "process"], "needs machines with screen"),
        (["--provider-name", "attach"], "host:port"),
        (["--provider-name", "attach", "--path-to-vm", "127.0.0.1:1"], "attach lists 1"),
        (["--provider-name", "attach", "--path-to-vm", "127.0.0.1:1", "--num-rollouts", "1"], "do not answer"),
        (["--provider-name", "docker"], "docker"),
        (["--use-vm-pool", "--num-vms", "100000"], "would fit"),
        (["--num-rollouts", "100000"], "would fit"),
        (["--pool-name", "nobody"], "outrider pool serve --name nobody"),
        (["--pool", "max_use=3"], "did you mean max_uses?"),
        (["--pool", "n_machines=3"], "--num-vms"),
        (["--machine", "disk=3"], "disk_bytes"),
        (["--screen-width", "3"], "between 320 and 7680"),
        (["--observation-type", "eyes"], "eyes"),
        (["--num-vms", "0"], "num_vms is 0"),
    ],
)
def test_a_mistake_is_explained_before_anything_is_made(arguments: list[str], says: str):
    done = run_outrider("run", "--mode", "osworld", "--model", "builtin:solver", *arguments, code=2)
    assert says in done.stderr
    assert not Path("results").exists()


def test_the_screen_of_a_desktop_that_a_run_makes_is_that_of_the_guide():
    flags = ("--mode", "osworld", "--model", "builtin:solver", "--limit", "1", "--name", "screen")
    run_outrider("run", *flags)
    run_outrider("view", "screen", "--artifacts", "pictures")
    sizes = {
        tuple(int.from_bytes(path.read_bytes()[at : at + 4], "big") for at in (16, 20))
        for path in Path("pictures").rglob("*.png")
    }
    assert sizes == {(1920, 1080)}


def test_settings_without_effect_are_told():
    done = run_outrider(
        "run", "--mode", "osworld", "--model", "builtin:solver", "--limit", "1", "--num-rollouts", "1", "--headless",
        "--path-to-vm", "/vms/ubuntu.vmx",
    )  # fmt: skip
    assert "--path-to-vm has no effect: desktops are made of what this host has installed" in done.stdout
    assert "--headless has no effect" in done.stdout


async def test_a_pool_is_served_shown_reset_shared_by_runs_and_cleaned_up_after_a_kill(name: str):
    serving = [*OUTRIDER, "pool", "serve", "--name", name, "--num-vms", "1", "--store", "sqlite:///pool.db"]
    with subprocess.Popen(serving, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert "are being made" in process.stdout.readline()
            assert f"--pool-name {name}" in process.stdout.readline()
            runs = [
                await asyncio.create_subprocess_exec(
                    *OUTRIDER, "run", "--mode", "osworld", "--pool-name", name, "--limit", "2", "--model",
                    "builtin:solver", "--json", stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
                )
                for _ in range(2)
            ]  # fmt: skip
            for run in runs:
                output, _ = await asyncio.wait_for(run.communicate(), 60)
                assert json.loads(output)["summary"]["total"]["reward"]["scored"]["mean"] == 1.0
            (listed,) = json.loads(run_outrider("pool", "ls", "--pool", name, "--json").stdout)["pools"]
            assert (listed["alive"], listed["statistics"]["n_leases"]) == (True, 4)
            machine_id = listed["machines"][0]["machine_id"]
            assert "is being reset" in run_outrider("pool", "reset", machine_id).stdout
            assert "lists them" in run_outrider("pool", "reset", "nothing", code=2).stderr
            assert machine_id in run_outrider("pool", "ls", "--pool", name).stdout
            assert name not in run_outrider("pool", "gc").stdout
            taken = run_outrider(*serving[len(OUTRIDER) :], code=2).stderr
            assert f"process {process.pid} on this host has the pool" in taken
        finally:
            process.kill()
    assert "was killed" in run_outrider("pool", "ls", "--pool", name).stdout
    assert name in run_outrider("pool", "gc", "--dry-run").stdout
    assert f"pool {name} (desktop)" in run_outrider("pool", "gc", "--store", "sqlite:///pool.db").stdout
    assert f"no pool '{name}'" in run_outrider("pool", "ls", "--pool", name, code=2).stderr
    async with open_store("sqlite:///pool.db") as store:
        assert {machine.state for machine in await store.query_machines()} == {MachineState.GONE}


def test_the_live_picture_shows_machines(name: str):
    from terminal import run_on_terminal

    command = [*OUTRIDER, "run", "--mode", "osworld", "--use-vm-pool", "--num-vms", "2", "--limit", "3"]
    code, text = run_on_terminal([*command, "--num-rollouts", "3", "--model", SLOW, "--name", name])
    assert code == 0, text
    for shown in ("machine", "leased", "machines in use", "wait for a machine"):
        assert shown in text
