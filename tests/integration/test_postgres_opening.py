"""Opening a PostgreSQL store: schemas, refusals, passwords, clocks, and plans that stay good."""

import asyncio
import time
import traceback

import pytest

from leaks import no_leaks
from machine_journal import owner_of
from outrider.core import wire
from outrider.core.clock import SystemClock
from outrider.core.errors import InvalidInput, LeaseLost, SchemaMismatch, StoreUnavailable
from outrider.core.ledger import LedgerWrite, NewGroup
from outrider.core.rollout import RolloutConfig, RolloutRequest
from outrider.store import StoreUrl, open_store
from outrider.store.postgres.address import STEP_PLANS, address_of
from outrider.store.postgres.queries import SQL
from outrider.store.sql import migrations
from postgres_load import requests, schema_of, waiting_claim
from postgres_server import LOCKED_PASSWORD, PostgresServer, started_server
from processes import output_of
from promptly import within

COUNTS_ARRIVALS = 6
"""From this schema on, whoever enqueues says how many."""


async def test_a_newer_schema_is_refused_and_left_as_it_is(postgres_server: PostgresServer, postgres_url: str):
    async with open_store(postgres_url) as store:
        await store.enqueue_rollout("x")
    schema = schema_of(postgres_url)
    postgres_server.sql(f"UPDATE {schema}.schema_version SET version = 99")
    async with no_leaks():
        with pytest.raises(SchemaMismatch, match="schema 99") as caught:
            await open_store(postgres_url)
    assert caught.value.found == 99
    assert postgres_server.sql(f"SELECT version FROM {schema}.schema_version") == "99"
    assert postgres_server.sql(f"SELECT count(*) FROM {schema}.rollouts") == "1"


async def test_a_store_opened_again_has_what_it_had(postgres_url: str):
    async with open_store(postgres_url) as store:
        rollout = await store.enqueue_rollout({"a": 1}, tag="t")
    async with open_store(postgres_url) as store:
        assert store.url.reveal() == postgres_url
        assert (await store.query_rollouts()).items == (rollout,)


@pytest.mark.parametrize("how", [{"create": False}, {"read_only": True}])
async def test_where_there_is_no_store_none_is_made_unasked(
    postgres_server: PostgresServer, postgres_url: str, how: dict[str, bool]
):
    with pytest.raises(InvalidInput, match=r"there is no store in .*make one with `outrider enqueue"):
        await open_store(postgres_url, **how)
    schema = schema_of(postgres_url)
    assert postgres_server.sql(f"SELECT count(*) FROM pg_tables WHERE schemaname = '{schema}'").strip() == "0"
    async with open_store(postgres_url) as store:
        await store.enqueue_rollout("x")
    async with open_store(postgres_url, **how) as store:
        assert (await store.query_rollouts()).total == 1


@pytest.mark.parametrize("version", range(1, len(migrations("postgres"))))
async def test_a_store_of_an_older_version_is_upgraded_with_all_that_is_in_it(
    postgres_server: PostgresServer, postgres_url: str, version: int
):
    schema = schema_of(postgres_url)
    row = "status, mode, priority, config, lease_seconds, enqueued_at, n_attempts, input, metadata"
    given = rf"'train', 0, '\x{wire.to_record(RolloutConfig()).hex()}', 30, 1, 1, '\xa178', '\x80'"
    postgres_server.sql(
        f"CREATE SCHEMA {schema}; SET search_path TO {schema}; CREATE TABLE schema_version (version integer NOT NULL); "
        f"INSERT INTO schema_version VALUES ({version}); {''.join(migrations('postgres')[:version])} "
        f"INSERT INTO rollouts (rollout_id, {row}, attempt_id, worker_id, started_at, heartbeat_at, ended_at, reward, "
        f"finish_seq) VALUES ('done', 'succeeded', {given}, 'at-old1', 'w', 2, 2, 3, 0.5, 1); "
        "UPDATE feed SET last = 1; "
        "INSERT INTO attempts VALUES (1, 1, 'at-old1', 'w', 'succeeded', 2, 2, 3, 0.5, NULL); "
        f"INSERT INTO rollouts (rollout_id, {row}, attempt_id, worker_id, started_at, heartbeat_at, expires_at) "
        f"VALUES ('live', 'running', {given}, 'at-old2', 'w', 2, 2, extract(epoch FROM now()) + 3600); "
        + ("INSERT INTO arrivals VALUES (NULL, 'train', 2)" if version >= COUNTS_ARRIVALS else "")
    )
    async with open_store(postgres_url) as store:
        counts = (await store.statistics()).rollouts
        assert {status: n for status, n in counts.items() if n} == {"running": 1, "succeeded": 1}
        (attempt,) = await store.query_attempts("done")
        assert (attempt.attempt_id, attempt.status, attempt.reward) == ("at-old1", "succeeded", 0.5)
        ended = await store.update_attempt("live", "at-old2", status="succeeded", reward=1.0)
        assert await store.update_attempt("live", "at-old2", status="succeeded", reward=1.0) == ended
        for rollout_id, attempt_id in (("done", "at-old1"), ("live", "at-old2")):
            with pytest.raises(LeaseLost, match="succeeded"):
                await store.update_attempt(rollout_id, attempt_id, status="failed")
        assert [rollout.rollout_id for rollout in (await store.finished_after()).items] == ["done", "live"]
        ledger = await store.open_ledger("train", {"a": 1})
        member = RolloutRequest(input="x", rollout_id="new", group_id="g")
        group = NewGroup(group_id="g", number=0, tag="t", seed=1, size=1, members=(member,))
        await store.write_ledger(ledger, LedgerWrite(opened=(group,)))
        await (await owner_of(store)).go("m1", "creating")
    async with open_store(postgres_url) as store:
        assert [attempt.attempt_id for attempt in await store.query_attempts("live")] == ["at-old2"]
        assert [(ledger.settings, ledger.n_opened) for ledger in await store.query_ledgers()] == [({"a": 1}, 1)]
        assert [machine.machine_id for machine in await store.query_machines("p")] == ["m1"]
    known = len(migrations("postgres"))
    assert postgres_server.sql(f"SELECT version FROM {schema}.schema_version") == str(known)


async def test_a_schema_of_another_program_is_refused(postgres_server: PostgresServer, postgres_url: str):
    schema = schema_of(postgres_url)
    postgres_server.sql(f"CREATE SCHEMA {schema}; CREATE TABLE {schema}.rollouts (mine integer)")
    with pytest.raises(InvalidInput, match="another program"):
        await open_store(postgres_url)
    assert postgres_server.sql(f"SELECT count(*) FROM pg_tables WHERE schemaname = '{schema}'") == "1"


@pytest.mark.parametrize("schema", ["", "a b", "x;drop", "Über", "pg_catalog", "a" * 51])
async def test_a_schema_name_that_is_not_plain_is_refused(postgres_server: PostgresServer, schema: str):
    with pytest.raises(InvalidInput, match="plain name"):
        open_store(f"{postgres_server.url}&schema={schema}")


async def test_a_wrong_password_is_refused_and_never_shown(postgres_server: PostgresServer):
    wrong = "wr0ng-p@ss:word"
    for url in (
        f"postgresql://locked:{wrong.replace('@', '%40')}@/postgres?host={postgres_server.folder}",
        f"postgresql://locked@/postgres?password={wrong}&host={postgres_server.folder}",
        f"postgresql://locked:{wrong}@/postgres?host={postgres_server.folder}",
    ):
        with pytest.raises((InvalidInput, StoreUnavailable)) as caught:
            await open_store(url)
        assert "p@ss" not in "".join(traceback.format_exception(caught.value))
        assert "p%40ss" not in "".join(traceback.format_exception(caught.value))


async def test_a_user_without_rights_is_told_what_is_missing(postgres_server: PostgresServer):
    url = f"postgresql://locked:{LOCKED_PASSWORD}@/postgres?host={postgres_server.folder}&schema=t_forbidden"
    with pytest.raises(InvalidInput, match="right to create") as caught:
        await open_store(url)
    assert LOCKED_PASSWORD not in "".join(traceback.format_exception(caught.value))


async def test_the_password_stands_in_the_url_but_in_no_name_of_a_task(
    postgres_server: PostgresServer, postgres_url: str
):
    schema = schema_of(postgres_url)
    postgres_server.sql(f"CREATE SCHEMA {schema} AUTHORIZATION locked")
    url = f"postgresql://locked:{LOCKED_PASSWORD}@/postgres?host={postgres_server.folder}&schema={schema}"
    async with open_store(url) as store, waiting_claim(store):
        assert store.url.reveal() == url
        assert not [task for task in asyncio.all_tasks() if LOCKED_PASSWORD in repr(task)]
        assert LOCKED_PASSWORD not in repr(store)


@pytest.mark.parametrize(
    ("url", "error", "words"),
    [
        ("postgresql://me@127.0.0.1:9/db", StoreUnavailable, "check host and port"),
        ("postgresql://me@/db?host=/nowhere", StoreUnavailable, "check host and port"),
        ("postgresql://postgres@/nothing?host={folder}", InvalidInput, "createdb"),
        ("postgresql://me@host:port/db", InvalidInput, "USER:PASSWORD@HOST:PORT"),
    ],
)
async def test_what_cannot_be_opened_is_refused_at_once(
    postgres_server: PostgresServer, url: str, error: type[Exception], words: str
):
    async with no_leaks():
        with within(3), pytest.raises(error, match=words):
            await open_store(url.format(folder=postgres_server.folder))


async def test_without_the_client_library_the_extra_is_named():
    source = """
import sys
sys.modules["asyncpg"] = None
from outrider.core.errors import InvalidInput
from outrider.store import open_store
try:
    open_store("postgresql://me@host/db")
except InvalidInput as exc:
    print(exc)
"""
    assert "[postgres]'" in output_of(source)


async def test_a_store_used_after_a_fork_says_what_to_do(postgres_url: str):
    source = """
import asyncio, os, sys
from outrider.core.errors import StoreError
from outrider.store import open_store

async def main(url):
    async with open_store(url) as store:
        child = os.fork()
        if child == 0:
            for call in (store.dequeue_rollout(worker_id=1), store.query_rollouts()):
                try:
                    call.send(None)
                except StoreError as exc:
                    print(exc, flush=True)
            os._exit(0)
        await asyncio.to_thread(os.waitpid, child, 0)
        await store.enqueue_rollout("the parent goes on")

asyncio.run(main(*sys.argv[1:]))
"""
    said = output_of(source, postgres_url).splitlines()
    assert len(said) == 2
    assert all("open it there again with open_store(store.url)" in words for words in said)


async def test_machines_whose_clocks_differ_agree_on_the_end_of_a_lease(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(SystemClock, "time", lambda _: time.time() + 3600)
    async with open_store(postgres_url) as ahead:
        await ahead.enqueue_many_rollouts(requests(1))
        claimed = await ahead.dequeue_rollout(worker_id=1)
        assert claimed is not None
        assert claimed.attempt.lease_expires_at is not None
        assert abs(claimed.attempt.lease_expires_at.timestamp() - time.time() - 120) < 60
        monkeypatch.undo()
        async with open_store(postgres_url) as right:
            assert await right.heartbeat(1, [claimed.attempt.attempt_id]) == ()
            await asyncio.sleep(0.6)
            assert (await ahead.query_rollouts(status="preparing")).total == 1
            with pytest.raises(LeaseLost):
                await right.update_attempt("r0", "another attempt", status="succeeded")


async def test_claims_and_ends_go_by_index_also_right_after_a_large_enqueue(
    postgres_server: PostgresServer, postgres_url: str
):
    async with open_store(postgres_url) as store:
        for k in range(10):
            await store.enqueue_many_rollouts(
                [RolloutRequest(input=i, tag=f"t{i % 7}") for i in range(2000 * k, 2000 * (k + 1))]
            )
    settings = "".join(f"SET {name} = {value};" for name, value in STEP_PLANS.items())
    for statistics in ("", "ANALYZE"):
        await asyncio.to_thread(postgres_server.sql, statistics)
        for name, index in {
            "claim_of_all": "rollouts_queue",
            "claim_of_mode": "rollouts_next",
            "claim_of_tags": "rollouts_queue",
            "claim_of_lane": "rollouts_lanes",
            "claim_of_lanes": "rollouts_lanes",
            "lanes": "rollouts_lanes",
            "n_ahead": "rollouts_queue",
            "n_waiting": "rollouts_lanes",
            "tally_ended": "rollouts_feed",
            "set_live": "rollouts_pkey",
            "set_ended": "rollouts_pkey",
            "renew": "rollouts_pkey",
            "current": "rollouts_by_id",
            "next_expiry": "rollouts_leases",
            "look": "rollouts_leases",
            "shorten_leases": "rollouts_leases",
            "move_live": "rollouts_leases",
        }.items():
            plan = await asyncio.to_thread(
                postgres_server.sql,
                f"SET search_path = {schema_of(postgres_url)};{settings}EXPLAIN (GENERIC_PLAN) {SQL[name]}",
            )
            assert f"using {index} on rollouts" in plan, plan
            assert "Seq Scan on rollouts" not in plan, plan
            scans = {
                scan.split(" on rollouts")[0].split("using ")[1]
                for scan in plan.splitlines()
                if "on rollouts" in scan and "using" in scan
            }
            assert scans <= {index, "rollouts_pkey"}, plan


async def test_a_rollout_that_waits_may_get_another_mode_or_tag(postgres_server: PostgresServer, postgres_url: str):
    schema = schema_of(postgres_url)
    async with open_store(postgres_url) as store:
        await store.enqueue_many_rollouts([RolloutRequest(input=i, tag=f"t{i % 2}") for i in range(10)])
        for changed in ("tag = 't1', lane = 'train/t1'", "tag = NULL, mode = 'val', lane = 'val/'"):
            await asyncio.to_thread(
                postgres_server.sql, f"UPDATE {schema}.rollouts SET {changed} WHERE tag = 't0' AND seq % 3 = 0"
            )
            for chosen in ({"tag": "t0"}, {"tag": "t1"}, {"mode": "val"}, {"mode": "train"}, {}):
                found = await store.query_rollouts(**chosen)
                assert (await store.query_rollouts(**chosen, limit=0)).total == len(found)


async def test_full_durability_has_the_server_flush_each_commit(postgres_server: PostgresServer, postgres_url: str):
    postgres_server.sql("ALTER DATABASE postgres SET synchronous_commit = off")
    try:
        for options, found in (("", "off"), ("&durability=normal", "off"), ("&durability=full", "on")):
            async with open_store(f"{postgres_url}{options}") as store:
                show = getattr(store, "_links").run  # noqa: B009 no part of a store's protocol
                assert await show(lambda link, _: link.fetchval("SHOW synchronous_commit")) == found
    finally:
        postgres_server.sql("ALTER DATABASE postgres RESET synchronous_commit")


async def test_full_durability_is_refused_by_a_server_that_cannot_give_it(
    postgres_server: PostgresServer, postgres_url: str
):
    def set_and_seen(value: str) -> None:
        postgres_server.sql(f"ALTER SYSTEM SET full_page_writes = {value}")
        postgres_server.sql("SELECT pg_reload_conf()")
        while postgres_server.sql("SHOW full_page_writes") != value:
            time.sleep(0.01)

    set_and_seen("off")
    try:
        async with no_leaks():
            with pytest.raises(InvalidInput, match="durability=full needs a server with full_page_writes=on"):
                await open_store(f"{postgres_url}&durability=full")
    finally:
        set_and_seen("on")


async def test_full_durability_is_refused_by_a_server_that_trusts_a_second_flush():
    with started_server(data_sync_retry="on") as server:
        async with no_leaks():
            with pytest.raises(InvalidInput, match="data_sync_retry=off: a flush that succeeds after one that failed"):
                await open_store(f"{server.new_url()}&durability=full")
        async with open_store(server.new_url()) as store:
            await store.enqueue_rollout("x")


@pytest.mark.parametrize("options", ["", "&durability=full"])
async def test_an_opening_that_is_given_up_leaves_no_connection(postgres_url: str, options: str):
    address = address_of(StoreUrl(f"{postgres_url}{options}"))
    async with no_leaks():
        for n_moments in range(60):
            opening = asyncio.create_task(address.connect())
            for _ in range(n_moments):
                await asyncio.sleep(0.0002)
            opening.cancel()
            await asyncio.wait([opening])
            if not opening.cancelled():
                opening.result().terminate()
