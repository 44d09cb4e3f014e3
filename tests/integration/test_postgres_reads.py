"""Reads of a large PostgreSQL store go by index: none reads a whole table."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from many_rollouts import Many, fill_postgres
from outrider.store import Store, open_store
from postgres_load import no_connections_left, schema_of
from postgres_server import PostgresServer

MANY = Many(n_ended=40_000, n_queued=4_000)
GROUP = {"group_id": "g"}

READS: dict[str, Callable[[Store], Awaitable[object]]] = {
    "statistics": lambda store: store.statistics(),
    "the newest": lambda store: store.query_rollouts(descending=True, limit=5),
    "by status": lambda store: store.query_rollouts(status="failed", limit=5),
    "by two statuses": lambda store: store.query_rollouts(status_in=("failed", "queuing"), limit=5),
    "by tag": lambda store: store.query_rollouts(tag="tag-3", limit=5),
    "by mode": lambda store: store.query_rollouts(mode="val", limit=5),
    "by status and tag": lambda store: store.query_rollouts(status="failed", tag="tag-3", limit=5),
    "by mode and tag": lambda store: store.query_rollouts(mode="val", tag="tag-3", limit=5),
    "counts by tag": lambda store: store.query_rollouts(tag="tag-3", status="succeeded", limit=0),
    "last ended": lambda store: store.query_rollouts(sort_by="ended_at", descending=True, limit=5),
    "last ended by tag": lambda store: store.query_rollouts(tag="tag-3", sort_by="ended_at", descending=True, limit=5),
    "of a group": lambda store: store.query_rollouts(**GROUP),
    "by id": lambda store: store.query_rollouts(rollout_ids=["ro-7", "ro-40007"]),
    "one": lambda store: store.get_rollout_by_id("ro-77"),
    "its attempts": lambda store: store.query_attempts("ro-77"),
    "its last attempt": lambda store: store.get_latest_attempt("ro-77"),
    "its events": lambda store: store.query_events("ro-77"),
    "its accounts": lambda store: store.query_accounts(["ro-77"]),
    "the feed": lambda store: store.finished_after(39_000, limit=100),
    "the end of the feed": lambda store: store.finished_after(40_000, limit=100),
    "workers": lambda store: store.query_workers(),
}


@pytest.mark.parametrize("analyzed", [True, False], ids=["analyzed", "not analyzed"])
async def test_no_read_goes_through_all_rollouts(postgres_server: PostgresServer, postgres_url: str, analyzed: bool):
    schema = schema_of(postgres_url)

    def scans() -> dict[str, int]:
        """How often each large table was read from its beginning to its end, by connections that are closed."""
        rows = postgres_server.sql(
            "SELECT relname, seq_scan FROM pg_stat_user_tables "
            f"WHERE schemaname = '{schema}' AND relname IN ('rollouts', 'attempts', 'events', 'accounts')"
        )
        return {name: int(n) for name, n in (line.split("|") for line in rows.splitlines())}

    await fill_postgres(postgres_url, MANY)
    if not analyzed:
        schema_oid = f"'{schema}.rollouts'::regclass"
        await asyncio.to_thread(postgres_server.sql, f"DELETE FROM pg_statistic WHERE starelid = {schema_oid}")
    async with no_connections_left(postgres_server, postgres_url), open_store(postgres_url) as store:
        await store._add_up()  # type: ignore[attr-defined] as it does now and then
    guilty = []
    for name, read in READS.items():
        before = await asyncio.to_thread(scans)
        async with (
            no_connections_left(postgres_server, postgres_url),
            open_store(postgres_url, read_only=True) as store,
        ):
            await read(store)
        after = await asyncio.to_thread(scans)
        guilty += [f"{name}: {table}" for table in after if after[table] > before[table]]
    assert guilty == []
