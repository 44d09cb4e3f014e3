"""Makes stores of millions of rollouts in seconds, by SQL: what `seq` a row has says all else about it.

Of `n_ended` rollouts every 50th has failed and every 100th was cancelled; one in 100 is of mode `val`. `n_tags` tags
go round, so that each has ended rollouts of every kind. They ended in blocks of `BLOCK`, each block backwards: the
order of their ends is not that of their places. `n_queued` more wait, every 20th of them with priority 1.
"""

import sqlite3
from dataclasses import dataclass
from pathlib import Path

import asyncpg

from outrider.core import wire
from outrider.core.attempt import Failure
from outrider.core.errors import Boundary
from outrider.core.rollout import RolloutConfig
from outrider.store import StoreUrl, open_store
from outrider.store.postgres.address import address_of
from outrider.store.sqlite.file import connect

BLOCK = 1000
EPOCH = 1_750_000_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Many:
    """How many rollouts to make. `n_ended` is a multiple of `BLOCK`; no more than 10,000 tags."""

    n_ended: int
    n_queued: int = 0
    n_tags: int = 10

    @property
    def n(self) -> int:
        return self.n_ended + self.n_queued

    @property
    def columns(self) -> dict[str, str]:
        """SQL for each column that both engines have, from `seq`."""
        is_ended = f"seq <= {self.n_ended}"
        mode = "CASE WHEN seq / 7 % 100 = 41 THEN 'val' ELSE 'train' END"
        tag = f"'tag-' || ((seq + seq / 7 + seq / 1000) % {self.n_tags})"
        status = "CASE WHEN seq % 50 = 7 THEN 'failed' WHEN seq % 100 = 13 THEN 'cancelled' ELSE 'succeeded' END"
        ended = {
            "attempt_status": status,
            "worker_id": "'Worker-' || (seq % 8)",
            "started_at": f"{EPOCH} + seq / 100.0",
            "heartbeat_at": f"{EPOCH} + seq / 100.0",
            "ended_at": f"{EPOCH} + seq / 100.0 + 30",
            "finish_seq": f"(seq - 1) / {BLOCK} * {BLOCK} + {BLOCK} - (seq - 1) % {BLOCK}",
            "reward": "CASE WHEN seq % 50 <> 7 THEN seq % 2 END",
        }
        return {
            "rollout_id": "'ro-' || seq",
            "status": f"CASE WHEN {is_ended} THEN {status} ELSE 'queuing' END",
            "mode": mode,
            "tag": tag,
            "seed": "seq",
            "priority": f"CASE WHEN {is_ended} OR seq % 20 > 0 THEN 0 ELSE 1 END",
            "enqueued_at": f"{EPOCH} + seq / 1000.0",
            "n_attempts": f"CASE WHEN {is_ended} THEN 1 ELSE 0 END",
            "n_failures": f"CASE WHEN {is_ended} AND seq % 50 = 7 THEN 1 ELSE 0 END",
            "lane": f"CASE WHEN {is_ended} THEN NULL ELSE {mode} || '/' || {tag} END",
        } | {name: f"CASE WHEN {is_ended} THEN {sql} END" for name, sql in ended.items()}


FAILURE = wire.to_record(Failure(boundary=Boundary.ENV, kind="WorldEnded", message="the world ended"))
CONFIG = wire.to_record(RolloutConfig(max_attempts=1))
INPUT = wire.encode({"prompt": "What is next?", "task_id": 1})
METADATA = wire.encode({})


def fill_sqlite(path: Path, many: Many) -> None:
    """Make a store in `path` with these rollouts, and nothing else."""
    connect(path, synchronous="normal", create=True, migrate=True).close()
    database = sqlite3.connect(path, isolation_level=None)
    try:
        database.execute("PRAGMA synchronous = off")
        database.execute("PRAGMA cache_size = -262144")
        # Sorting at the end is much quicker than keeping indexes in order row by row.
        made = "type = 'index' AND tbl_name = 'rollouts' AND sql IS NOT NULL"
        indexes = database.execute(f"SELECT name, sql FROM sqlite_master WHERE {made}").fetchall()
        database.execute("BEGIN IMMEDIATE")
        for name, _ in indexes:
            database.execute(f"DROP INDEX {name}")
        columns = many.columns | {
            "attempt_id": f"CASE WHEN seq <= {many.n_ended} THEN printf('at-%x-1-00000000', seq) END",
            "failure": f"CASE WHEN seq <= {many.n_ended} AND seq % 50 = 7 THEN ?1 END",
            "config": "?2",
        }
        places = f"WITH RECURSIVE places (seq) AS (SELECT 1 UNION ALL SELECT seq + 1 FROM places LIMIT {many.n})"
        names, values = ", ".join(columns), ", ".join(columns.values())
        database.execute(
            f"{places} INSERT INTO rollouts (seq, {names}) SELECT seq, {values} FROM places", (FAILURE, CONFIG)
        )
        database.execute("INSERT INTO inputs SELECT seq, ?, ? FROM rollouts", (INPUT, METADATA))
        for _, sql in indexes:
            database.execute(sql)
        database.execute("COMMIT")
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    finally:
        database.close()


async def fill_postgres(url: str, many: Many) -> None:
    """Make a store at `url` with these rollouts, and nothing else."""
    async with open_store(url) as store:
        await store.statistics()
    # Without the limit on each command that the store has.
    address = address_of(StoreUrl(url))
    link = await asyncpg.connect(
        address.dsn.reveal(),
        server_settings={"search_path": address.schema, "synchronous_commit": "off", "maintenance_work_mem": "256MB"},
    )
    try:
        async with link.transaction():
            made = "tablename = 'rollouts' AND schemaname = current_schema AND indexname <> 'rollouts_pkey'"
            indexes = await link.fetch(f"SELECT indexname, indexdef FROM pg_indexes WHERE {made}")
            for name, _ in indexes:
                await link.execute(f"DROP INDEX {name}")
            columns = many.columns | {
                "attempt_id": f"CASE WHEN seq <= {many.n_ended} THEN 'at-' || to_hex(seq) || '-1-00000000' END",
                "failure": f"CASE WHEN seq <= {many.n_ended} AND seq % 50 = 7 THEN $1::bytea END",
                "config": "$2::bytea",
                "input": "$3::bytea",
                "metadata": "$4::bytea",
                "lease_seconds": "30.0",
            }
            names, values = ", ".join(columns), ", ".join(columns.values())
            await link.execute(
                f"INSERT INTO rollouts (seq, {names}) OVERRIDING SYSTEM VALUE "
                f"SELECT seq, {values} FROM generate_series(1::bigint, {many.n}) AS places (seq)",
                *(FAILURE, CONFIG, INPUT, METADATA),
            )
            await link.execute(f"SELECT setval(pg_get_serial_sequence('rollouts', 'seq'), {many.n})")
            await link.execute(f"UPDATE feed SET last = {many.n_ended}")
            for _, sql in indexes:
                await link.execute(sql)
            if await link.fetchval("SELECT to_regclass('arrivals') IS NOT NULL"):
                await link.execute("INSERT INTO arrivals SELECT tag, mode, count(*) FROM rollouts GROUP BY tag, mode")
        await link.execute("ANALYZE rollouts")
    finally:
        await link.close()
