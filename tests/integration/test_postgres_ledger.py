"""The ledger of groups in a real PostgreSQL: many connections, rings between processes, backends that die."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import pytest

from ledger_moves import ask, claim_all, group, opened, took
from outrider.core.account import Fate
from outrider.core.errors import LedgerLost
from outrider.core.ledger import Ask, Grant, GroupMove, GroupState, Ledger, LedgerWrite, NewGroup
from outrider.store import Store, open_store
from outrider.store.postgres.address import READ_PLANS, STEP_PLANS
from outrider.store.postgres.queries import SQL
from outrider.testing import eventually
from postgres_load import PATIENT, ids_of, no_connections_left, note, schema_of, terminate_backends
from postgres_server import PostgresServer
from processes import line, program, tell
from store_invariants import check_invariants

TOKENS = 10


def groups(n: int, *, n_members: int = 1) -> list[NewGroup]:
    return [group(number, n_members=n_members, config=PATIENT) for number in range(n)]


def granted(asked: Ask, version: int) -> Grant:
    return Grant(group_id=asked.group_id, attempt_id=asked.attempt_id, version=version)


@asynccontextmanager
async def raw(server: PostgresServer, url: str) -> AsyncIterator["asyncpg.Connection[asyncpg.Record]"]:
    """A connection of the test's own, in the schema of the store at `url`."""
    link = await asyncpg.connect(server.url, server_settings={"search_path": schema_of(url)})
    try:
        yield link
    finally:
        await link.close()


async def waiting_for_lock(link: "asyncpg.Connection[asyncpg.Record]", url: str) -> None:
    """Return once a statement of the store at `url` waits for what somebody else holds."""

    async def waits() -> bool:
        query = "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1 AND wait_event_type = 'Lock'"
        return bool(await link.fetchval(query, f"outrider.{schema_of(url)}"))

    await eventually(waits)


WORKER = """
import asyncio, sys
from outrider.store import open_store

async def main(url):
    async with open_store(url) as store:
        store._bell.net_seconds = 60.0
        rollout = await store.dequeue_rollout(worker_id="there", wait=30)
        ids = rollout.rollout_id, rollout.attempt.attempt_id
        granted = asyncio.create_task(store.grants([ids[1]], wait=30))
        published = asyncio.create_task(store.get_latest_resources(wait=30))
        while not all(store._bell._listeners[topic] for topic in ("granted", "published")):
            await asyncio.sleep(0)
        print("ready", flush=True)
        sys.stdin.readline()
        await store.ask_to_begin([ids])
        print((await granted)[ids[1]], flush=True)
        print((await published).resources["policy"], flush=True)

asyncio.run(main(*sys.argv[1:]))
"""
"""Claims, asks to begin and waits for leave, woken by rings alone; prints the version, then what is published."""


async def test_asks_grants_and_publications_wake_those_who_wait_in_another_process(postgres_url: str):
    async with open_store(postgres_url) as store:
        store._bell.net_seconds = 60.0
        ledger = await opened(store, *groups(1))
        with program(WORKER, postgres_url) as worker:
            asks = asyncio.create_task(store.asks_after("train", wait=30))
            assert await asyncio.to_thread(line, worker) == "ready"
            tell(worker)
            async with asyncio.timeout(20):
                (asked,) = (await asks).items
                await store.write_ledger(ledger, LedgerWrite(granted=(granted(asked, 7),)))
                assert await asyncio.to_thread(line, worker) == "7"
                await store.put_resources({"policy": "new"})
                assert await asyncio.to_thread(line, worker) == "new"


async def test_no_write_of_an_old_epoch_comes_after_the_ledger_was_taken_over(postgres_url: str):
    async with open_store(postgres_url) as old, open_store(postgres_url) as new:
        first = await old.open_ledger("train")
        n_written = 0

        async def write_on() -> None:
            nonlocal n_written
            while True:
                await old.write_ledger(first, LedgerWrite(opened=(group(n_written, n_members=1),)))
                n_written += 1

        writing = asyncio.create_task(write_on())

        async def some_written() -> bool:
            return n_written > 5

        await eventually(some_written)
        second = await new.open_ledger("train")
        with pytest.raises(LedgerLost) as caught:
            await writing
        assert (caught.value.epoch, caught.value.current) == (1, 2)
        assert second.n_opened == n_written
        assert (await new.query_groups("train", limit=0)).total == n_written
        assert (await new.query_rollouts(limit=0)).total == n_written
        await new.write_ledger(second, LedgerWrite(opened=(group(n_written, n_members=1),)))


async def test_two_ledgers_that_open_a_group_of_one_name_at_once_do_not_share_it(postgres_url: str):
    async with open_store(postgres_url) as one, open_store(postgres_url) as two:
        ledgers = [await one.open_ledger("train"), await two.open_ledger("other")]
        for number in range(20):
            outcomes = await asyncio.gather(
                *(
                    store.write_ledger(ledger, LedgerWrite(opened=(group(number, n_members=1),)))
                    for store, ledger in zip((one, two), ledgers, strict=True)
                ),
                return_exceptions=True,
            )
            assert sorted(type(outcome).__name__ for outcome in outcomes) == ["InvalidInput", "NoneType"], outcomes
        totals = [(await one.query_groups(ledger.name, limit=0)).total for ledger in ledgers]
        assert sum(totals) == 20


async def test_a_reader_who_follows_the_asks_of_many_connections_misses_none(postgres_url: str):
    n = 400
    async with (
        open_store(postgres_url) as one,
        open_store(postgres_url) as two,
        open_store(postgres_url) as three,
        open_store(postgres_url) as reader,
    ):
        await opened(reader, *groups(n))
        rollouts = list(await claim_all(reader, n))
        assert len(rollouts) == n

        async def ask_on(store: Store) -> None:
            while rollouts:
                await ask(store, rollouts.pop())

        asking = asyncio.gather(*(ask_on(store) for store in (one, two, three) for _ in range(4)))
        shown: list[str] = []
        cursor = 0
        while len(shown) < n:
            asks = await reader.asks_after("train", cursor, limit=7, wait=10)
            assert asks.items, "an ask was skipped"
            shown += [ask.rollout_id for ask in asks.items]
            cursor = asks.cursor
        await asking
        assert sorted(shown) == sorted(f"g{number}/0" for number in range(n))


async def test_an_ask_gets_no_number_while_one_before_it_cannot_be_seen(
    postgres_server: PostgresServer, postgres_url: str
):
    async with open_store(postgres_url) as store, raw(postgres_server, postgres_url) as other:
        await opened(store, *groups(2))
        first, second = await claim_all(store)
        async with other.transaction():
            ids = ([rollout_id] for rollout_id in ids_of(first))
            await other.fetch(SQL["ask"], *ids, 1.0, "nobody listens", "")
            asking = asyncio.create_task(ask(store, second))
            await waiting_for_lock(other, postgres_url)
            assert (await store.asks_after("train")).items == ()
        await asking
        asks = await store.asks_after("train")
        assert [ask.rollout_id for ask in asks.items] == [first.rollout_id, second.rollout_id]


async def test_an_ask_that_waited_while_its_group_was_closed_is_passed_over(
    postgres_server: PostgresServer, postgres_url: str
):
    async with open_store(postgres_url) as store, raw(postgres_server, postgres_url) as other:
        await opened(store, *groups(2))
        rollouts = await claim_all(store)
        async with other.transaction():
            await other.execute("SELECT FROM ledgers FOR UPDATE")
            asking = asyncio.create_task(ask(store, *rollouts))
            await waiting_for_lock(other, postgres_url)
            await other.execute("UPDATE groups SET state = 'dropped' WHERE group_id = 'g0'")
        await asking
        assert await other.fetchval("SELECT string_agg(group_id, ' ') FROM asks") == "g1"


async def run_members(store: Store, name: str) -> int:
    """Work on members until none is left: ask, wait for leave, and report with an account. How many it finished."""
    n = 0
    while (rollout := await store.dequeue_rollout(worker_id=name)) is not None:
        ids = ids_of(rollout)
        await ask(store, rollout)
        versions = await store.grants([ids[1]], wait=60)
        account = took(TOKENS, first_version=versions[ids[1]])
        await store.update_attempt(*ids, status="succeeded", reward=1.0, events=[note("done")], account=account)
        n += 1
    return n


async def schedule(store: Store, ledger: Ledger, n: int, *, size: int, progress: list[str]) -> None:
    """Grant what is asked and deliver what is complete, each group in a batch of its own, until all are."""
    asked = cursor = 0
    ended: dict[str, list[str]] = {}
    while len(progress) < n:
        asks = await store.asks_after("train", asked, wait=0.02)
        asked = asks.cursor
        grants = tuple(granted(one, 3) for one in asks.items)
        finished = await store.finished_after(cursor)
        cursor = finished.cursor
        for rollout in finished.items:
            ended.setdefault(rollout.group_id, []).append(rollout.rollout_id)
        moves: list[GroupMove] = []
        delivered = [group_id for group_id, members in ended.items() if len(members) == size]
        for batch, group_id in enumerate(delivered, len(progress)):
            members = tuple(ended.pop(group_id))
            moves.append(GroupMove(group_id=group_id, state=GroupState.COMPLETE, members=members))
            moves.append(GroupMove(group_id=group_id, state=GroupState.DELIVERED, batch=batch))
        accounts = await store.query_accounts([id for move in moves for id in move.members])
        fates = {account.attempt_id: Fate.TRAINED for account in accounts}
        await store.write_ledger(ledger, LedgerWrite(granted=grants, moved=tuple(moves), fates=fates))
        progress += delivered


async def test_killing_all_connections_again_and_again_loses_and_doubles_nothing_of_a_ledger(
    postgres_server: PostgresServer, postgres_url: str
):
    n, size = 60, 4
    async with (
        no_connections_left(postgres_server, postgres_url),
        open_store(postgres_url) as scheduler,
        open_store(postgres_url) as one,
        open_store(postgres_url) as two,
    ):
        ledger = await opened(scheduler, *groups(n, n_members=size))
        progress: list[str] = []
        workers = [run_members(store, f"w{k}") for store in (one, two) for k in range(8)]
        working = asyncio.gather(schedule(scheduler, ledger, n, size=size, progress=progress), *workers)
        killed_at: list[int] = []
        while not working.done():
            if not killed_at or len(progress) >= killed_at[-1] + 5:
                killed_at.append(len(progress))
                await terminate_backends(postgres_server, postgres_url)
            await asyncio.wait([working], timeout=0.002)
        assert len(killed_at) > 3
        _, *n_finished = await working
        assert sum(n_finished) == n * size
        await check_all_delivered(scheduler, n, size=size)


async def check_all_delivered(store: Store, n: int, *, size: int) -> None:
    entries = (await store.query_groups("train")).items
    assert [(entry.number, entry.state, entry.clock) for entry in entries] == [(k, "delivered", 3) for k in range(n)]
    assert sorted(entry.batch for entry in entries if entry.batch is not None) == list(range(n))
    assert all(sorted(entry.members) == [f"{entry.group_id}/{seat}" for seat in range(size)] for entry in entries)
    (ledger,) = await store.query_ledgers()
    assert (ledger.epoch, ledger.n_opened, ledger.n_batches) == (1, n, n)
    tally = await store.tally("train")
    assert {fate: count for fate, count in tally.n_attempts.items() if count} == {Fate.TRAINED: n * size}
    assert tally.generated == n * size * TOKENS
    assert (await store.asks_after("train")).items == ()
    rollouts = await store.query_rollouts()
    assert {(rollout.status, rollout.n_attempts) for rollout in rollouts} == {("succeeded", 1)}
    await check_invariants(store)


async def test_an_account_that_comes_with_a_repeated_report_is_kept_once(postgres_url: str):
    account = took(TOKENS)
    async with open_store(postgres_url) as holder, open_store(postgres_url) as other:
        await opened(holder, *groups(1))
        (rollout,) = await claim_all(holder)
        await other.cancel_rollouts([rollout.rollout_id])
        for _ in range(2):
            await holder.update_attempt(*ids_of(rollout), status="cancelled", account=account)
        (kept,) = await other.query_accounts([rollout.rollout_id])
        assert (kept.attempt_id, kept.account) == (rollout.attempt.attempt_id, account)


LOAD = """
INSERT INTO ledgers (name, epoch, settings, opened_at) VALUES ('train', 1, '\\x80', 0);
INSERT INTO groups (group_id, ledger, number, state, tag, seed, size, opened_at, moved_at)
SELECT 'g' || k, 'train', k, CASE WHEN k < 4900 THEN 'acknowledged' ELSE 'opened' END, 't', k, 4, 0, 0
FROM generate_series(0, 4999) AS k;
INSERT INTO rollouts (rollout_id, status, mode, priority, config, lease_seconds, enqueued_at, n_attempts, input,
    metadata, group_id, attempt_id, worker_id, started_at, finish_seq, expires_at)
SELECT 'r' || k, CASE WHEN k < 19600 THEN 'succeeded' ELSE 'running' END, 'train', 0, '\\x', 30, 0, 1, '\\x', '\\x',
    'g' || k / 4, 'at-' || k, 'w', 0, CASE WHEN k < 19600 THEN k + 1 END, CASE WHEN k >= 19600 THEN 1e12 END
FROM generate_series(0, 19999) AS k;
INSERT INTO events (seq, sequence_id, place, kind, name, at, data)
SELECT r.seq, 1, place, 'log', '', 0, '\\x' FROM rollouts r CROSS JOIN generate_series(0, 9) AS place;
INSERT INTO asks (attempt_id, rollout_id, group_id, ledger, asked_at)
SELECT attempt_id, rollout_id, group_id, 'train', 0 FROM rollouts WHERE finish_seq IS NULL;
INSERT INTO accounts (attempt_id, rollout_id, sequence_id, group_id, ledger, fate, completion_tokens, data)
SELECT attempt_id, rollout_id, 1, group_id, 'train', 'trained', 1, '\\x' FROM rollouts WHERE finish_seq IS NOT NULL;
"""
"""A ledger most of whose groups are long closed."""


STEPS = (
    *("ask", "grant", "move_groups", "forget_asks", "set_fates", "leave_accounts", "groups_by_id", "hold_ledger"),
    *("set_ended_with_accounts", "set_requeued_with_accounts"),
    *("asks", "grants", "accounts", "late_accounts", "progress"),
)


async def test_steps_and_reads_of_a_ledger_go_by_index(postgres_server: PostgresServer, postgres_url: str):
    async with open_store(postgres_url):
        pass
    schema = schema_of(postgres_url)

    def plan_of(name: str, plans: dict[str, str]) -> str:
        settings = "".join(f"SET {key} = {value};" for key, value in plans.items())
        return postgres_server.sql(f"SET search_path = {schema};{settings}EXPLAIN (GENERIC_PLAN) {SQL[name]}")

    for prepare in (f"SET search_path = {schema};{LOAD}", "VACUUM ANALYZE"):
        await asyncio.to_thread(postgres_server.sql, prepare)
        for name in STEPS:
            plan = await asyncio.to_thread(plan_of, name, STEP_PLANS)
            for table in ("rollouts", "attempts", "events", "groups", "asks", "accounts"):
                assert f"Seq Scan on {table}" not in plan, plan
            for index, only in (("asks_waiting", "asks"), ("accounts_without_fate", "late_accounts")):
                assert (index in plan) == (name == only), plan
    assert "Index Only Scan using accounts_by_fate" in await asyncio.to_thread(plan_of, "tally", READ_PLANS)
