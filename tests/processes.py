"""Python programs in processes of their own, for tests; none outlives its test."""

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from warm_outrider import run_warm

PROGRAM_SECONDS = 60

CLAIMER = """
import asyncio, json, sys
from outrider.store import open_store

async def main(url, name):
    taken = []
    async with open_store(url) as store:
        print("ready", flush=True)
        sys.stdin.readline()
        async def slot():
            while claimed := await store.dequeue_many_rollouts(3, worker_id=name):
                for rollout in claimed:
                    taken.append(rollout.input)
                    await store.update_attempt(rollout.rollout_id, rollout.attempt.attempt_id, status="succeeded")
        await asyncio.gather(*(slot() for _ in range(4)))
    print(json.dumps(taken), flush=True)

asyncio.run(main(*sys.argv[1:]))
"""
"""Claims and finishes all it can, on `url` under the name it is given, once it is told to; prints what it had."""


@contextmanager
def program(source: str, *arguments: str, **variables: str) -> Iterator[subprocess.Popen[str]]:
    """A program that speaks with its test in lines; killed at the end of the block."""
    process = subprocess.Popen(
        [sys.executable, "-c", source, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
        env={**os.environ, **variables},
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def is_running(pid: int) -> bool:
    """Whether it is there, and not just waiting to be buried."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def stop(pid: int) -> None:
    """Stop a process, and see it stopped, or ended: the signal is on its way when `kill` returns."""
    os.kill(pid, signal.SIGSTOP)
    ends_at = time.monotonic() + 10
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "TZ":
        assert time.monotonic() < ends_at, f"process {pid} does not stop"
        time.sleep(0.001)


def stop_between_writes(pid: int, database: Path) -> None:
    """Stop a process that writes to a SQLite file while it does not hold the lock: all others would wait for it."""
    while True:
        stop(pid)
        with closing(sqlite3.connect(database, timeout=1.0, isolation_level=None)) as other:
            try:
                other.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                os.kill(pid, signal.SIGCONT)
            else:
                return


def line(process: subprocess.Popen[str]) -> str:
    """The next line it prints."""
    assert process.stdout is not None
    text = process.stdout.readline()
    assert text, "the program has ended"
    return text.rstrip("\n")


def tell(process: subprocess.Popen[str], text: str = "") -> None:
    assert process.stdin is not None
    process.stdin.write(text + "\n")
    process.stdin.flush()


def output_of(source: str, *arguments: str) -> str:
    """What a program prints that ends by itself, with success and within a minute."""
    done = subprocess.run(
        [sys.executable, "-c", source, *arguments], capture_output=True, text=True, timeout=PROGRAM_SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


OUTRIDER = (sys.executable, "-m", "outrider")


def run_outrider(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run a command to its end: it must exit with this code, and never with a traceback."""
    done = run_warm(*arguments, seconds=100)
    assert done.returncode == code, (done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    return done


def marked(variable: str) -> list[str]:
    """The command lines of the processes that were started with this in their environment, as `NAME=value`."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if variable.encode() in (folder / "environ").read_bytes():
                found.append((folder / "cmdline").read_text())
        except OSError:
            continue
    return found
