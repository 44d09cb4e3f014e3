"""Options of commands by what they do: those that no other test is about."""

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outrider.store import Revoked, open_store
from outrider.testing import ModelServer
from processes import OUTRIDER, run_outrider
from promptly import within
from warm_outrider import run_warm

AGENTS = """
import asyncio, time

async def even_passes(task, ctx):
    for i in range(3):
        ctx.log("step", i=i)
    if task["task_id"] % 2:
        raise ValueError("odd")
    return 1.0

async def blocks(task, ctx):
    time.sleep(60)

async def hangs(task, ctx):
    await asyncio.sleep(60)

async def asks(task, ctx):
    await ctx.policy.complete(ctx.opening)
    return 1.0
"""
LAKES = ("--mode", "FrozenLake", "--name", "one")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "my_agents.py").write_text(AGENTS)
    monkeypatch.chdir(tmp_path)
    for name in ("OUTRIDER_STORE", "OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


GAME = ("--mode", "FrozenLake", "--limit", "1", "--model", "builtin:solver")


def told(*arguments: str, code: int = 0) -> str:
    done = run_outrider(*arguments, code=code)
    return done.stdout + done.stderr


def ran(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """Whatever its exit code."""
    return run_warm(*arguments, seconds=60)


def as_json(*arguments: str) -> Any:
    return json.loads(run_outrider(*arguments, "--json").stdout)


def lines() -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path("results", "one", "results.jsonl").read_text().splitlines()]


def test_what_is_enqueued_has_the_group_seed_priority_and_time_it_was_given():
    given = ("--group", "twins", "--seed", "7", "--priority", "5", "--timeout", "2.5")
    ids = as_json("enqueue", "--test", "2", *given)["rollout_ids"]
    for rollout_id in ids:
        rollout = as_json("show", rollout_id)["rollout"]
        assert (rollout["group_id"], rollout["seed"], rollout["priority"]) == ("twins", 7, 5)
        assert rollout["config"]["timeout_seconds"] == 2.5


def test_commands_keep_to_rollouts_of_a_tag_or_mode():
    told("enqueue", "--test", "4", "--tag", "here", "--mode", "val", "--max-attempts", "1")
    told("enqueue", "--test", "3", "--tag", "there", "--max-attempts", "1")
    told(
        *("work", "--tag", "here", "--agent", "my_agents:even_passes", "--tasks", "--workers", "1"),
        *("--max-rollouts", "4"),
        code=1,
    )
    assert as_json("status", "--mode", "val")["rollouts"]["succeeded"] == 2
    assert as_json("status", "--mode", "train")["rollouts"]["queuing"] == 3
    told("export", "--tag", "here", "--output", "here.jsonl")
    assert len(Path("here.jsonl").read_text().splitlines()) == 4
    told(
        *("work", "--tag", "there", "--agent", "my_agents:even_passes", "--tasks", "--workers", "1"),
        *("--max-rollouts", "3"),
        code=1,
    )
    failed = as_json("status", "--tag", "there")["rollouts"]["failed"]
    assert as_json("retry", "--failed", "--tag", "there")["enqueued"] == failed > 0
    assert as_json("status", "--tag", "here")["rollouts"].get("queuing", 0) == 0


async def test_a_worker_looks_by_itself_as_often_as_it_was_told():
    """For rollouts that were set aside: nothing wakes an idle worker for them."""
    async with open_store("sqlite:///outrider.db") as store:
        await store.enqueue_rollout({"task_id": 2})
        work = ["work", "--tasks", "--workers", "1", "--poll-interval", "0.05", "--agent", "my_agents:even_passes"]
        process = await asyncio.create_subprocess_exec(*OUTRIDER, *work, stdout=subprocess.DEVNULL)
        try:
            await store.wait_for_rollouts([one.rollout_id for one in await store.query_rollouts()], timeout=30)
            aside = await store.start_rollout({"task_id": 2}, worker_id="another")
            await store.revoke_leases("another", reason="it died", how=Revoked.ISOLATED)
            with within(4):  # it looks every 5 s if not told
                (ended,) = await store.wait_for_rollouts([aside.rollout_id], timeout=30)
        finally:
            process.kill()
            await process.wait()
    assert ended.status == "succeeded"


def test_the_events_of_an_earlier_attempt_can_be_shown_and_no_more_than_asked_for():
    told("enqueue", "--test", "2", "--max-attempts", "2")
    told("work", "--agent", "my_agents:even_passes", "--tasks", "--workers", "1", "--until-done", code=1)
    (failed,) = (id for id in ids_of("failed"))
    shown = as_json("show", failed)
    first, second = (attempt["attempt_id"] for attempt in shown["attempts"])
    assert {event["attempt_id"] for event in shown["events"]} == {second}
    assert {event["attempt_id"] for event in as_json("show", failed, "--attempt", first)["events"]} == {first}
    assert len(as_json("show", failed, "--events", "1")["events"]) == 1
    assert re.search(r"… \d+ more events; --events \d+ shows all", told("show", failed, "--events", "1"))


def ids_of(status: str) -> list[str]:
    told("export", "--output", "all.jsonl")
    rows = [json.loads(line)["rollout"] for line in Path("all.jsonl").read_text().splitlines()]
    return [row["rollout_id"] for row in rows if row["status"] == status]


async def test_sampling_options_reach_the_server_with_the_key_that_was_named():
    async with ModelServer("Up", key="mine") as server:
        arguments = (
            *("run", *LAKES, "--model", "test-model", "--base-url", server.base_url, "--limit", "1"),
            *("--api-key-env", "KEY_OF_MINE", "--agent", "my_agents:asks"),
            *("--temperature", "0.25", "--top-p", "0.5", "--max-tokens", "77", "--logprobs"),
        )
        done = await asyncio.to_thread(run_warm, *arguments, seconds=60, KEY_OF_MINE="mine")
    assert done.returncode == 0, done.stderr
    body = server.requests[-1].body
    assert (body["temperature"], body["top_p"], body["logprobs"]) == (0.25, 0.5, True)
    assert 77 in {body.get("max_tokens"), body.get("max_completion_tokens")}


def test_a_conversation_is_trimmed_to_the_context_that_it_may_take():
    long = ("run", *LAKES, "--model", "builtin:random", "--env", "max_steps=40", "--limit", "4")
    told(*long, "--max-context-tokens", "400")
    assert max(line["n_turns"] for line in lines()) > 3
    assert all(line["prompt_tokens"] < 450 * line["n_turns"] for line in lines())


def test_an_attempt_ends_after_its_time():
    ended = ran("run", *LAKES, "--agent", "my_agents:hangs", "--model", "builtin:solver", "--limit", "1",
                "--timeout", "0.5", "--max-attempts", "1")  # fmt: skip
    assert ended.returncode == 1
    assert lines()[0]["status"] == "failed"
    assert lines()[0]["failure"]["boundary"] == "limit"


def test_a_worker_that_an_agent_blocks_is_replaced_after_the_time_it_was_given():
    ended = ran("run", *LAKES, "--agent", "my_agents:blocks", "--model", "builtin:solver", "--limit", "1",
                "--workers", "2", "--max-block", "3", "--max-attempts", "1")  # fmt: skip
    assert ended.returncode == 1
    assert "was blocked for 3 s" in lines()[0]["failure"]["message"]


@pytest.mark.parametrize(
    ("budget", "word"),
    [
        (["--budget-seconds", "0.5"], "0.5 s have passed"),
        (["--budget-money", "0.001", "--prompt-price", "1", "--completion-price", "10"], "money"),
    ],
)
def test_a_budget_of_time_or_money_stops_a_run(budget: list[str], word: str):
    ended = ran("run", *LAKES, "--model", "builtin:solver?latency=0.2", "--limit", "200", "--json", *budget)
    outcome = json.loads(ended.stdout)
    assert word in outcome["stopped_by"]
    assert ended.returncode == 3
    assert outcome["summary"]["total"]["n"] < 200


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["run", "--mode", "osworld", "--model", "builtin:solver", "--screen-height", "3"], "height is between 320"),
        (["run", "--mode", "osworld", "--model", "builtin:solver", "--action-space", "mouse"], "computer_13"),
        (["run", "--mode", "osworld", "--model", "builtin:solver", "--provider-name", "qemu", "--snapshot-name", "x"],
         "outrider.pool.qemu.build"),
        (["rollout", "-c", "lakes.yaml", "--model", "builtin:solvr"], "solver"),
        (["rollout", "-c", "desks.yaml", "--provider-name", "qemu", "--path-to-vm", "nowhere"], "nowhere"),
        (["rollout", "-c", "lakes.yaml", "--ray", "--cpus-per-worker=-1"], "cpus_per_worker is -1"),
        (["work", "--ray", "--cpus-per-worker=-1"], "cpus_per_worker is -1"),
        (["run", *GAME, "--timeout", "1e12"], "timeout is 1000000000000.0; give 3153600000 at most"),
        (["run", *GAME, "--max-block", "1e12"], "max_block is 1000000000000.0; give 3153600000 at most"),
        (["run", *GAME, "--max-attempts", "10000000000000"], "max_attempts is 10000000000000; give 2147483647 at most"),
        (["run", *GAME, "--num-rollouts", "100000000000000000000"], "num_rollouts is 100000000000000000000"),
        (["run", *GAME, "--temperature", "nan", "--dry-run"], "temperature is nan; give a number, 0 or more"),
        (["run", *GAME, "--prompt-price=-1"], "prompt_price is -1.0; give 0 or more"),
        (["run", *GAME, "--env", "rewards={goal: .inf}"], "goal is inf; give 1e+30 at most"),
        (["rollout", "-c", "lakes.yaml", "--set", "turn_seconds=1.0e+12"], "turn_seconds is 1000000000000.0; give"),
        (["rollout", "-c", "lakes.yaml", "--set", f"max_buffer_bytes={2**70}"], f"max_buffer_bytes is {2**70}; give"),
        (["rollout", "-c", "lakes.yaml", "--set", "workers=100000000000000000000"], "workers is 1000000000"),
        (["pool", "serve", "--pool", "reset_seconds=1.0e+12"], "reset_seconds is 1000000000000.0; give"),
        (["work", "--max-workers", "10000000000000"], "max_workers is 10000000000000; give 2147483647 at most"),
        (["pool", "serve", "--provider-name", "qemu", "--path-to-vm", "nowhere"], "nowhere"),
        (["pool", "serve", "--screen-width", "3"], "between 320 and 7680"),
        (["pool", "serve", "--screen-height", "3"], "height is between 320 and 7680"),
        (["pool", "serve", "--pool", "max_use=3"], "did you mean max_uses?"),
        (["pool", "serve", "--machine", "disk=3"], "disk_bytes"),
        (["pool", "serve", "--provider-name", "process", "--snapshot-name", "x"], "takes no snapshot"),
        (["rollout", "-c", "desks.yaml", "--provider-name", "process", "--snapshot-name", "x"], "takes no snapshot"),
    ],
)  # fmt: skip
def test_a_value_that_cannot_be_used_is_refused(arguments: list[str], says: str):
    Path("lakes.yaml").write_text("train_env_manager: {num_env_groups: 2, tags: [FrozenLake]}\n")
    Path("desks.yaml").write_text("train_env_manager: {num_env_groups: 2, tags: [osworld]}\n")
    assert says in told(*arguments, code=2)
    assert not Path("results").exists()


def test_a_served_machine_is_replaced_and_what_a_killed_pool_left_is_listed_for_scripts():
    name = f"opt-{os.getpid()}"
    serve = ["pool", "serve", "--name", name, "--provider-name", "process", "--num-vms", "1", "--headless"]
    with subprocess.Popen([sys.executable, "-m", "outrider", *serve], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            said = [process.stdout.readline() for _ in range(2)]
            assert f"--pool-name {name}" in said[1], said
            (machine,) = machines_of(name)
            told("pool", "reset", "--replace", machine)
            until(lambda: machines_of(name) not in ([], [machine]))
        finally:
            process.kill()
    (left,) = [pool for pool in as_json("pool", "gc")["pools"] if pool["name"] == name]
    assert (left["found"] >= 1, left["left"]) == (True, 0)


def machines_of(name: str) -> list[str]:
    (pool,) = as_json("pool", "ls", "--pool", name)["pools"]
    return [machine["machine_id"] for machine in pool["machines"] if machine["state"] != "gone"]


def until(happened: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not happened():
        assert time.monotonic() < end
