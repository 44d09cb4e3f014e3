"""A store of two million ended rollouts: made by SQL, brought up to date, looked at from the command line."""

import asyncio
import json
import os
import resource
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest

from many_rollouts import Many, fill_postgres, fill_sqlite
from outrider.store import open_store
from postgres_load import schema_of
from postgres_server import PostgresServer
from soaking import note_soak

MANY = Many(n_ended=2_000_000, n_queued=5_000)

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]


LOOK_SECONDS = 0.3
"""What one look may take, and what a command that looks may cost in CPU time beside the same on an empty store."""

IDLE_SECONDS = 10.0
"""How long a supervisor without work is watched."""


async def _look(url: str, empty_url: str, plain: Counter[tuple[str, str, str]]) -> None:
    """Every count is that of a plain look at all rows."""
    async with open_store(url) as store:
        statistics = await store.statistics()
        for status, n in statistics.rollouts.items():
            assert n == sum(k for kind, k in plain.items() if kind[0] == status)
        for (status, mode, tag), n in plain.items():
            page = await store.query_rollouts(status=status, mode=mode, tag=tag, limit=5)
            assert (page.total, len(page)) == (n, min(n, 5))
        newest = await store.query_rollouts(sort_by="ended_at", descending=True, limit=3, tag="tag-1")
        assert [one.tag for one in newest] == ["tag-1"] * 3
        looks: dict[str, Callable[[], Awaitable[object]]] = {
            "statistics": store.statistics,
            "tag": partial(store.query_rollouts, tag="tag-3", limit=5),
            "status_and_tag": partial(store.query_rollouts, status="failed", tag="tag-3", limit=5),
            "status_and_mode": partial(store.query_rollouts, status="succeeded", mode="val", limit=5),
            "mode_and_tag": partial(store.query_rollouts, mode="val", tag="tag-3", limit=5),
        }
        took = {name: min([await _seconds_of(look()) for _ in range(5)]) for name, look in looks.items()}
    assert max(took.values()) < LOOK_SECONDS, took
    shown = json.loads(await asyncio.to_thread(_outrider, "status", "--store", url, "--tag", "tag-3", "--json"))
    for status, n in shown["rollouts"].items():
        assert n == sum(k for kind, k in plain.items() if kind[0] == status and kind[2] == "tag-3")
    async with open_store(empty_url) as empty:
        await empty.enqueue_rollout("x", tag="tag-3")
    costs = {
        name: await asyncio.to_thread(_cpu_of_status, url, *chosen)
        - await asyncio.to_thread(_cpu_of_status, empty_url, *chosen)
        for name, chosen in {"status": [], "status_of_tag": ["--tag", "tag-3"]}.items()
    }
    costs["idle_supervisor"] = await asyncio.to_thread(_cpu_of_idle_supervisor, url)
    assert max(costs.values()) < LOOK_SECONDS, costs
    counts = {f"{name}_ms": round(seconds * 1000) for name, seconds in (took | costs).items()}
    note_soak(f"looks at {MANY.n:,} rollouts in {url.partition(':')[0]}", **counts)


async def _seconds_of(call: Awaitable[object]) -> float:
    began = time.perf_counter()
    await call
    return time.perf_counter() - began


def _outrider(*arguments: str) -> bytes:
    command = [str(Path(sys.executable).with_name("outrider")), *arguments]
    return subprocess.run(command, check=True, capture_output=True, timeout=60).stdout


def _cpu_of_status(url: str, *chosen: str) -> float:
    """CPU seconds of the command, the least of several; on PostgreSQL without those of the server."""
    costs = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        _outrider("status", "--store", url, *chosen)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        costs.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(costs)


def _cpu_of_idle_supervisor(url: str) -> float:
    """CPU seconds of `outrider work` while nothing in its queue has the tag that its workers take."""
    command = [str(Path(sys.executable).with_name("outrider")), "work", "--store", url]
    command += ["--workers", "1", "--tag", "nowhere"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as working:
        try:
            assert working.stdout is not None
            next(line for line in working.stdout if "Starting Worker-0" in line)
            time.sleep(IDLE_SECONDS)  # for the worker to start
            before = _cpu_of(working.pid)
            time.sleep(IDLE_SECONDS)
            assert working.poll() is None
            return _cpu_of(working.pid) - before
        finally:
            working.terminate()
            working.wait(30)


def _cpu_of(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def test_counts_of_two_million_rollouts_are_exact_in_sqlite(tmp_path: Path):
    path = tmp_path / "runs.db"
    await asyncio.to_thread(fill_sqlite, path, MANY)
    database = sqlite3.connect(path)
    plain = database.execute("SELECT status, mode, tag, count(*) FROM rollouts GROUP BY 1, 2, 3").fetchall()
    database.close()
    await _look(
        f"sqlite:///{path}", f"sqlite:///{tmp_path / 'empty.db'}", Counter({tuple(kind): n for *kind, n in plain})
    )


async def test_counts_of_two_million_rollouts_are_exact_in_postgres(postgres_server: PostgresServer, postgres_url: str):
    await fill_postgres(postgres_url, MANY)
    rows = postgres_server.sql(
        f"SELECT status, mode, tag, count(*) FROM {schema_of(postgres_url)}.rollouts GROUP BY 1, 2, 3"
    )
    plain = [line.split("|") for line in rows.splitlines()]
    await _look(postgres_url, postgres_server.new_url(), Counter({tuple(kind): int(n) for *kind, n in plain}))
