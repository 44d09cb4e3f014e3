"""The guard over worker processes, which ends what their supervisor cannot end any more."""

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path
from uuid import uuid4

import pytest

from ordinary_user import with_open_ways
from outrider.core.processes import WORKER_MARK
from outrider.runner import guard
from outrider.runner.kit import EpisodeSpec
from outrider.runner.worker import Guard, WorkerSpec
from outrider.store import StoreUrl

STOPPED = "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"


@pytest.fixture
def name() -> str:
    return f"test-{uuid4()}."


def start(name: str, *command: str) -> "subprocess.Popen[bytes]":
    """A marked process that stops itself, so that it can do nothing for its own end."""
    process = subprocess.Popen(
        [sys.executable, "-c", STOPPED, *command], env={**os.environ, WORKER_MARK: f"{name}0."}, start_new_session=True
    )
    while " T " not in Path(f"/proc/{process.pid}/stat").read_text():
        time.sleep(0.01)
    return process


def test_workers_get_their_time_to_drain_and_are_then_killed_with_all_that_is_marked(name: str):
    worker, other = start(name, guard.PROGRAM), start(name)
    unmarked = start(f"another-{name}", guard.PROGRAM)
    watching = subprocess.Popen(
        [sys.executable, "-IS", guard.__file__, f"{WORKER_MARK}={name}", "0.5"], stdin=subprocess.PIPE
    )
    try:
        assert watching.wait(timeout=10) == 0, "the guard is nobody's child"
        assert watching.stdin is not None
        time.sleep(0.3)
        assert worker.poll() is None, "the supervisor is there"
        closed_at = time.monotonic()
        watching.stdin.close()
        assert worker.wait(timeout=10) < 0
        assert other.wait(timeout=10) < 0
        assert time.monotonic() - closed_at > 0.4, "it got no time to drain"
        assert unmarked.poll() is None
    finally:
        for process in (worker, other, unmarked):
            process.kill()
            process.wait()


def test_what_is_left_is_killed_at_once_when_no_worker_is(name: str):
    daemon = start(name)
    watching = subprocess.Popen(
        [sys.executable, "-IS", guard.__file__, f"{WORKER_MARK}={name}", "60"], stdin=subprocess.PIPE
    )
    try:
        watching.wait(timeout=10)
        assert watching.stdin is not None
        watching.stdin.close()
        assert daemon.wait(timeout=10) < 0
    finally:
        daemon.kill()
        daemon.wait()


UNDUMPABLE = """
import os, subprocess, sys
from outrider.core.processes import WORKER_MARK
from outrider.runner import guard

mark = f"{WORKER_MARK}={sys.argv[1]}0."
waits = "from outrider.core.undumpable import become_undumpable as b; b(); print(flush=True); input()"
command = [sys.executable, "-B", "-c", waits, guard.PROGRAM, mark]
worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
worker.stdout.readline()
print(os.access(f"/proc/{worker.pid}/environ", os.R_OK), guard.marked(mark) == [worker.pid])
guard.kill_marked(mark)
print(worker.wait(timeout=20))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_worker_whose_environment_cannot_be_read_is_found_by_its_command_line(name: str):
    assert with_open_ways(UNDUMPABLE, name).split() == ["False", "True", "-9"]


async def test_the_guard_of_workers_that_are_gone_leaves_alone_those_that_replace_them():
    guards, spec = Guard(), WorkerSpec(store_url=StoreUrl("memory://"), episodes=EpisodeSpec(agent="a:b"))
    first = guards.enter(spec)
    await guards.settled()
    left_behind = start(f"{first.partition('.')[0]}.left.")  # the guard is done when this is gone
    await guards.leave(first)
    second = guards.enter(spec)
    replacement = subprocess.Popen(["sleep", "60"], env={WORKER_MARK: second})
    try:
        await guards.settled()
        await asyncio.to_thread(left_behind.wait, 20)
        assert replacement.poll() is None
    finally:
        for process in (left_behind, replacement):
            process.kill()
            process.wait()
        await guards.leave(second)
