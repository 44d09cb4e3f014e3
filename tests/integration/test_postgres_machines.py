"""The journal of machines in PostgreSQL: connections that are lost, and plans that stay good."""

import asyncio

import asyncpg
import pytest

from machine_journal import Owner, owner_of
from outrider.core.errors import PoolLost
from outrider.store import Store, open_store
from outrider.store.postgres.address import READ_PLANS, STEP_PLANS
from outrider.store.postgres.queries import SQL
from outrider.testing import eventually
from postgres_load import no_connections_left, schema_of, terminate_backends
from postgres_server import PostgresServer

N_LEASES = 60


async def _use(owner: Owner, machine_id: str) -> None:
    await owner.go(machine_id, "creating", "resetting", "ready")
    for _ in range(N_LEASES):
        await owner.go(machine_id, "leased")
        await owner.go(machine_id, "resetting", "ready")


async def _check_used(store: Store, pool: str, machine_id: str) -> None:
    (found,) = await store.query_machines(pool)
    assert (found.machine_id, found.state, found.epoch) == (machine_id, "ready", N_LEASES)
    moves = (await store.query_machine_moves(machine_id)).items[::-1]
    assert [move.state for move in moves] == [
        *("creating", "resetting", "ready"),
        *(("leased", "resetting", "ready") * N_LEASES),
    ]


async def test_killing_all_connections_again_and_again_loses_and_doubles_no_move(
    postgres_server: PostgresServer, postgres_url: str
):
    async with (
        no_connections_left(postgres_server, postgres_url),
        open_store(postgres_url) as one,
        open_store(postgres_url) as two,
    ):
        owners = [await owner_of(one, "a"), await owner_of(two, "b")]
        using = asyncio.gather(*(_use(owner, f"m-{owner.pool}") for owner in owners))
        killed_at: list[int] = []
        while not using.done():
            n_writes = sum(owner.n_writes for owner in owners)
            if not killed_at or n_writes >= killed_at[-1] + 20:
                killed_at.append(n_writes)
                await terminate_backends(postgres_server, postgres_url)
            await asyncio.wait([using], timeout=0.002)
        assert len(killed_at) > 3
        await using
        for owner in owners:
            await _check_used(one, owner.pool, f"m-{owner.pool}")


async def test_a_write_waits_for_whoever_is_just_taking_the_pool_over_and_is_refused(
    postgres_server: PostgresServer, postgres_url: str
):
    schema = schema_of(postgres_url)
    waiting = "SELECT count(*) > 0 FROM pg_stat_activity WHERE application_name = $1 AND wait_event_type = 'Lock'"
    async with open_store(postgres_url) as store:
        owner = await owner_of(store)
        await owner.go("m1", "creating")
        link = await asyncpg.connect(postgres_server.url, server_settings={"search_path": schema})
        try:
            async with link.transaction():
                assert await link.fetchval(SQL["open_pool"], "p", 1.0) == 2
                writing = asyncio.create_task(owner.go("m1", "resetting"))
                await eventually(lambda: link.fetchval(waiting, f"outrider.{schema}"))
            with pytest.raises(PoolLost) as caught:
                await writing
        finally:
            await link.close()
        assert caught.value.current == 2
        assert [move.state for move in await store.query_machine_moves()] == ["creating"]


LOAD = """
INSERT INTO pools (name, epoch, opened_at, n_writes) SELECT 'p' || k, 1, 0, 0 FROM generate_series(0, 99) AS k;
INSERT INTO machines (machine_id, pool, provider, state, epoch, n_uses, address, reason, created_at, moved_at)
SELECT 'm' || k, 'p' || k % 100, 'fake', CASE WHEN k < 9900 THEN 'gone' ELSE 'ready' END, 1, 1, '\\x80', '', 0, 0
FROM generate_series(0, 9999) AS k;
INSERT INTO machine_moves (machine_id, pool, state, epoch, reason, seconds, at)
SELECT 'm' || k, 'p' || k % 100, 'ready', 1, '', 0, 0 FROM generate_series(0, 9999) AS k, generate_series(0, 9);
"""
"""Pools most of whose machines are long gone."""

READS = {
    "SELECT * FROM machines WHERE state = ANY('{ready,leased}'::text[]) AND pool = 'p1'": "machines_by_state",
    "SELECT * FROM machine_moves WHERE machine_id = 'm1' ORDER BY move_seq DESC LIMIT 5": "machine_moves_by_machine",
    "SELECT * FROM machine_moves WHERE pool = 'p1' ORDER BY move_seq DESC LIMIT 5": "machine_moves_by_pool",
    "SELECT * FROM machine_moves WHERE true ORDER BY move_seq DESC LIMIT 5": "machine_moves_pkey",
}


async def test_steps_and_reads_of_machines_go_by_index(postgres_server: PostgresServer, postgres_url: str):
    async with open_store(postgres_url):
        pass
    here = f"SET search_path = {schema_of(postgres_url)};"

    def plan_of(query: str, plans: dict[str, str]) -> str:
        settings = "".join(f"SET {key} = {value};" for key, value in plans.items())
        return postgres_server.sql(f"{here}{settings}EXPLAIN (GENERIC_PLAN) {query}")

    for prepare in (here + LOAD, "VACUUM ANALYZE"):
        await asyncio.to_thread(postgres_server.sql, prepare)
        for name in ("hold_pool", "set_written", "machines_by_id", "put_machines", "insert_machine_moves"):
            plan = await asyncio.to_thread(plan_of, SQL[name], STEP_PLANS)
            assert "Seq Scan" not in plan, plan
    for query, index in READS.items():
        plan = await asyncio.to_thread(plan_of, query, READ_PLANS)
        assert index in plan, plan
        assert "Seq Scan" not in plan, plan
