"""Agents that do the worst they can to their worker, beside innocent ones, under `outrider work --until-done`.

Whatever they do, the same holds: the command ends by itself, in time, with a truthful exit code; each of them is failed
with a message that names the cause, or did no harm; every innocent rollout succeeds, and no failure is counted against
it; no process is left.
"""

import os
import subprocess
import sys
import time
from pathlib import Path
from uuid import uuid4

import pytest

from outrider import RolloutConfig, open_store
from outrider.core.errors import Boundary
from outrider.core.status import RolloutStatus
from processes import marked
from store_invariants import check_invariants

AGENTS = """
import asyncio, ctypes, os, re, signal, subprocess, sys, time

class Weird(BaseException):
    def __str__(self):
        raise KeyboardInterrupt

# -- what raises

async def raises_cancelled():
    raise asyncio.CancelledError

async def exits():
    sys.exit(0)

async def exits_in_a_task():
    async def leave():
        sys.exit(2)
    await asyncio.create_task(leave())

async def interrupts():
    raise KeyboardInterrupt

async def is_weird():
    raise Weird

async def reads_input():
    input("name? ")

async def recurses():
    def deeper(n):
        return deeper(n + 1) + 1
    deeper(0)

async def raises_much():
    raise ValueError("x" * 50_000_000)

async def exhausts_descriptors():
    held = []
    try:
        while True:
            held.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        await asyncio.sleep(1.5)
        raise
    finally:
        for descriptor in held:
            os.close(descriptor)

async def closes_the_loop():
    asyncio.get_running_loop().close()

# -- what dies

async def exits_at_once():
    os._exit(0)

async def exits_as_if_invalid():
    os._exit(2)

async def kills_itself():
    os.kill(os.getpid(), signal.SIGKILL)

async def segfaults():
    ctypes.string_at(0)

async def cancels_everything():
    for task in asyncio.all_tasks():
        task.cancel()
    await asyncio.sleep(10)

async def closes_all_descriptors():
    os.closerange(3, 256)
    await asyncio.sleep(10)

async def terminates_itself():
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.sleep(0.1)
    return 1.0

# -- what hangs

async def blocks():
    time.sleep(1e9)

async def blocks_in_a_task():
    async def block():
        time.sleep(1e9)
    await asyncio.create_task(block())

async def holds_the_lock():
    re.match(r"(a+)+$", "a" * 60 + "b")

async def stops_itself():
    os.kill(os.getpid(), signal.SIGSTOP)

async def swallows_cancellation():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        try:
            await asyncio.sleep(1e9)
        except BaseException:
            pass

# -- what leaves something behind, and is harmless but for that

async def forks_and_raises():
    if os.fork() == 0:
        raise ValueError("in the child")
    await asyncio.sleep(0.3)

async def forks_and_returns():
    if os.fork() == 0:
        return 2.0
    await asyncio.sleep(0.3)

async def forks_and_awaits():
    if os.fork() == 0:
        await asyncio.get_running_loop().create_future()
    await asyncio.sleep(0.3)

async def forks_and_exits():
    if os.fork() == 0:
        sys.exit(3)
    await asyncio.sleep(0.3)

async def closes_output():
    os.close(1)
    os.close(2)

async def prints_much():
    sys.stdout.write("x" * 30_000_000)
    sys.stdout.flush()

async def starts_a_daemon():
    subprocess.Popen(["setsid", "--fork", "sleep", "600"])
    subprocess.Popen(["sleep", "600"], start_new_session=True)

async def rearranges():
    os.chdir("/")
    os.umask(0o777)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)

async def stops_the_loop():
    asyncio.get_running_loop().stop()
    await asyncio.sleep(0.1)

async def forges_output():
    print(chr(0x1e) + "{}")
    print(chr(0x1f) + "the end")

async def agent(task, ctx):
    if "hell" not in task:
        await asyncio.sleep(0.05)
        return 1.0
    return await globals()[task["hell"]]()

def plain(task, ctx):
    if "hell" not in task:
        time.sleep(0.05)
        return 1.0
    return asyncio.run(globals()[task["hell"]]())
"""

RAISE = {
    "raises_cancelled": "nobody had cancelled",
    "exits": "SystemExit: 0",
    "exits_in_a_task": "SystemExit: 2",
    "interrupts": "KeyboardInterrupt",
    "is_weird": "__str__ raised",
    "reads_input": "EOFError",
    "recurses": "RecursionError",
    "raises_much": "more characters",
    "exhausts_descriptors": "Too many open files",
    "closes_the_loop": "Cannot close a running event loop",
    "closes_output": None,
}
DIE = {
    "exits_at_once": "exited with code 0",
    "exits_as_if_invalid": "exited with code 2",
    "kills_itself": "SIGKILL",
    "segfaults": "SIGSEGV",
    "cancels_everything": "cancelled all of its tasks",
    "closes_all_descriptors": "exited with code 1",
    "terminates_itself": None,
}
HANG = {
    "blocks": "in blocks",
    "blocks_in_a_task": "in block",
    "swallows_cancellation": "timeout_seconds",
}
FALL_SILENT = {
    "holds_the_lock": "in holds_the_lock",
    "stops_itself": "said nothing",
}
LITTER = {
    "forks_and_raises": None,
    "forks_and_returns": None,
    "forks_and_awaits": None,
    "forks_and_exits": None,
    "prints_much": None,
    "starts_a_daemon": None,
    "rearranges": None,
    "stops_the_loop": None,
    "forges_output": None,
}
IN_THREADS = {
    "exits": "SystemExit: 0",
    "interrupts": "KeyboardInterrupt",
    "is_weird": "__str__ raised",
    "raises_cancelled": "CancelledError",
    "forks_and_raises": None,
    "forks_and_exits": None,
    "exits_at_once": "exited with code 0",
}

IN_ONE_PROCESS = {
    "exits": "SystemExit: 0",
    "exits_in_a_task": "SystemExit: 2",
    "interrupts": "KeyboardInterrupt",
    "raises_cancelled": "nobody had cancelled",
    "swallows_cancellation": "timeout_seconds",
    "stops_the_loop": None,
}

BLAMED = {*RAISE, "blocks", "blocks_in_a_task"}
"""Those whose failure is known to be the agent's own."""

N_INNOCENT = 12


@pytest.mark.parametrize(
    ("function", "hell", "n_slots"),
    [
        ("agent", RAISE, 4),
        ("agent", DIE, 4),
        ("agent", HANG, 4),
        ("agent", FALL_SILENT, 1),
        ("agent", LITTER, 4),
        ("plain", IN_THREADS, 4),
        ("agent", IN_ONE_PROCESS, 0),
    ],
    ids=["raise", "die", "hang", "silent", "litter", "threads", "tasks"],
)
async def test_whatever_an_agent_does_the_work_is_done_and_nobody_else_is_harmed(
    tmp_path: Path, function: str, hell: dict[str, str | None], n_slots: int
):
    (tmp_path / "hell.py").write_text(AGENTS)
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    config = RolloutConfig(max_attempts=1, timeout_seconds=40)
    async with open_store(url) as store:
        innocent = [(await store.enqueue_rollout({}, config=config)).rollout_id for _ in range(N_INNOCENT)]
        for name in hell:
            limited = RolloutConfig(max_attempts=1, timeout_seconds=3 if name.startswith("swallows") else 40)
            await store.enqueue_rollout({"hell": name}, rollout_id=name, config=limited, priority=1)

    ended = work(url, tmp_path, f"hell:{function}", n_slots)

    async with open_store(url) as store:
        await check_invariants(store)
        rollouts = {rollout.rollout_id: rollout for rollout in await store.query_rollouts()}
        for name, says in hell.items():
            rollout = rollouts[name]
            if says is None:
                assert (rollout.status, rollout.n_failures) == (RolloutStatus.SUCCEEDED, 0), (name, rollout.failure)
            else:
                assert rollout.status is RolloutStatus.FAILED, name
                assert rollout.failure is not None
                assert says in rollout.failure.message, name
                assert rollout.failure.boundary is (Boundary.AGENT if name in BLAMED else rollout.failure.boundary)
        for rollout_id in innocent:
            rollout = rollouts[rollout_id]
            assert (rollout.status, rollout.n_failures) == (RolloutStatus.SUCCEEDED, 0), rollout.failure
    assert ended.returncode == 0, ended.stderr
    assert len(ended.stdout) < 3_000_000, "more is shown than anybody can read"


def work(url: str, folder: Path, agent: str, n_slots: int) -> "subprocess.CompletedProcess[str]":
    """Work until all is done, with short limits; fails if a process is left behind. No slots: as tasks."""
    mark = f"HELL={uuid4()}"
    command = [sys.executable, "-m", "outrider", "work", "--until-done", "--agent", agent, "--store", url]
    command += ["--workers", "2", "--max-block", "4", "--grace", "1"]
    command += ["--max-env-num-per-worker", str(n_slots)] if n_slots else ["--max-env-num-per-worker", "4", "--tasks"]
    name, _, value = mark.partition("=")
    try:
        return subprocess.run(
            command,
            check=False,
            cwd=folder,
            env={**os.environ, name: value},
            capture_output=True,
            text=True,
            timeout=100,
        )
    finally:
        deadline = time.monotonic() + 5
        while left := marked(mark):
            assert time.monotonic() < deadline, f"left behind: {left}"
            time.sleep(0.05)
