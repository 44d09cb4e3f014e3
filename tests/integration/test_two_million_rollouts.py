"""A store of two million ended rollouts: made by SQL, brought up to date, looked at from the command line."""

import asyncio
import json
import sqlite3
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from many_rollouts import Many, fill_postgres, fill_sqlite
from outrider.store import open_store
from postgres_load import schema_of
from postgres_server import PostgresServer

MANY = Many(n_ended=2_000_000, n_queued=5_000)

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]


async def _look(url: str, plain: Counter[tuple[str, str, str]]) -> None:
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
    command = [str(Path(sys.executable).with_name("outrider")), "status", "--store", url, "--tag", "tag-3", "--json"]
    shown = json.loads((await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True)).stdout)
    for status, n in shown["rollouts"].items():
        assert n == sum(k for kind, k in plain.items() if kind[0] == status and kind[2] == "tag-3")


async def test_counts_of_two_million_rollouts_are_exact_in_sqlite(tmp_path: Path):
    path = tmp_path / "runs.db"
    await asyncio.to_thread(fill_sqlite, path, MANY)
    database = sqlite3.connect(path)
    plain = database.execute("SELECT status, mode, tag, count(*) FROM rollouts GROUP BY 1, 2, 3").fetchall()
    database.close()
    await _look(f"sqlite:///{path}", Counter({tuple(kind): n for *kind, n in plain}))


async def test_counts_of_two_million_rollouts_are_exact_in_postgres(postgres_server: PostgresServer, postgres_url: str):
    await fill_postgres(postgres_url, MANY)
    rows = postgres_server.sql(
        f"SELECT status, mode, tag, count(*) FROM {schema_of(postgres_url)}.rollouts GROUP BY 1, 2, 3"
    )
    plain = [line.split("|") for line in rows.splitlines()]
    await _look(postgres_url, Counter({tuple(kind): int(n) for *kind, n in plain}))
