"""Connections that die, replies that are lost, servers that restart: nothing is lost and nothing is done twice."""

import asyncio
import random
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from disks import fill, small_disk
from leaks import no_leaks
from outrider.core.account import Account
from outrider.core.errors import StoreUnavailable
from outrider.core.ledger import Grant, LedgerWrite, NewGroup
from outrider.runner import Runner
from outrider.store import Store, open_store
from outrider.testing import eventually
from postgres_load import check_done_once, finish_all, ids_of, no_connections_left, note, requests, terminate_backends
from postgres_server import PostgresServer
from store_invariants import check_invariants


async def test_killing_all_connections_again_and_again_loses_and_doubles_nothing(
    postgres_server: PostgresServer, postgres_url: str
):
    n, n_events = 600, 2
    async with (
        no_connections_left(postgres_server, postgres_url),
        open_store(postgres_url) as one,
        open_store(postgres_url) as two,
    ):
        await one.enqueue_many_rollouts(requests(n))
        progress: list[int] = []
        workers = [(store, f"w{k}") for store in (one, two) for k in range(8)]
        working = asyncio.gather(
            *(finish_all(store, name, n_events=n_events, progress=progress) for store, name in workers)
        )
        killed_at = []
        while not working.done():
            if not killed_at or len(progress) >= killed_at[-1] + 50:
                killed_at.append(len(progress))
                await terminate_backends(postgres_server, postgres_url)
            await asyncio.wait([working], timeout=0.002)
        assert len(killed_at) > 3
        await check_done_once(one, await working, n, n_events=n_events)


@pytest.mark.parametrize("mode", ["fast", "immediate"])
async def test_calls_survive_a_restart_of_the_server(
    postgres_server: PostgresServer, postgres_url: str, mode: str, monkeypatch: pytest.MonkeyPatch
):
    n, n_events = 300, 1
    monkeypatch.setattr("outrider.store.postgres.links.RETRY_SECONDS", 60.0)  # how long a restart takes is not ours
    # Else the server would be away for as long as it takes to write out what all tests before this one have left.
    await asyncio.to_thread(postgres_server.sql, "CHECKPOINT")
    async with (
        no_connections_left(postgres_server, postgres_url),
        open_store(postgres_url) as one,
        open_store(postgres_url) as two,
    ):
        await one.enqueue_many_rollouts(requests(n))
        working = asyncio.gather(
            *(finish_all(store, f"w{k}", n_events=n_events) for store in (one, two) for k in range(4))
        )

        async def has_begun() -> bool:
            return (await one.statistics()).rollouts["queuing"] < n

        await eventually(has_begun)
        await asyncio.to_thread(postgres_server.restart, mode)
        await check_done_once(one, await working, n, n_events=n_events)


class TornReplies:
    """Stands between client and server; when armed, passes one message on and lets the reply be lost."""

    def __init__(self, server: Path, folder: Path) -> None:
        self._server = str(server / ".s.PGSQL.5432")
        self._own = str(folder / ".s.PGSQL.5432")
        self._marker: bytes | None = None
        self.n_torn = 0

    def arm(self, marker: bytes) -> None:
        """Tear the connection on which the next message with `marker` passes, once the server has answered."""
        self._marker = marker

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["TornReplies"]:
        async with await asyncio.start_unix_server(self._serve, self._own):
            yield self

    async def _serve(self, client_in: asyncio.StreamReader, client_out: asyncio.StreamWriter) -> None:
        server_in, server_out = await asyncio.open_unix_connection(self._server)
        torn = asyncio.Event()

        async def ask() -> None:
            while data := await client_in.read(65536):
                if self._marker is not None and self._marker in data:
                    self._marker = None
                    torn.set()
                server_out.write(data)

        async def answer() -> None:
            while data := await server_in.read(65536):
                if torn.is_set():
                    self.n_torn += 1
                    return
                client_out.write(data)

        tasks = [asyncio.create_task(ask()), asyncio.create_task(answer())]
        with suppress(OSError):
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for writer in (client_out, server_out):
            writer.transport.abort()


@pytest.fixture
async def torn(postgres_server: PostgresServer, tmp_path: Path) -> AsyncIterator[TornReplies]:
    async with TornReplies(postgres_server.folder, tmp_path).serving() as proxy:
        yield proxy


@pytest.fixture
async def torn_store(
    torn: TornReplies,
    postgres_server: PostgresServer,
    postgres_url: str,
    tmp_path: Path,
) -> AsyncIterator[Store]:
    async with open_store(postgres_url.replace(str(postgres_server.folder), str(tmp_path))) as store:
        yield store


async def test_a_claim_whose_reply_is_lost_claims_once(torn: TornReplies, torn_store: Store):
    await torn_store.enqueue_many_rollouts(requests(20))
    torn.arm(b"rq-")
    first = await asyncio.gather(*(torn_store.dequeue_many_rollouts(2, worker_id=k) for k in range(3)))
    assert torn.n_torn == 1
    assert [rollout.input for several in first for rollout in several] == list(range(6))
    assert {rollout.worker_id for rollout in first[2]} == {"2"}
    assert (await torn_store.statistics()).rollouts["preparing"] == 6
    await check_invariants(torn_store)


async def test_an_enqueue_whose_reply_is_lost_enqueues_once(torn: TornReplies, torn_store: Store):
    torn.arm(b"queuing")
    new = await asyncio.gather(*(torn_store.enqueue_rollout(k) for k in range(5)))
    assert torn.n_torn == 1
    found = await torn_store.query_rollouts()
    assert {rollout.rollout_id for rollout in found} == {rollout.rollout_id for rollout in new}
    assert found.total == 5


async def test_reports_whose_reply_is_lost_are_carried_out_once(torn: TornReplies, torn_store: Store):
    await torn_store.enqueue_many_rollouts(requests(2))
    one, two = await torn_store.dequeue_many_rollouts(2, worker_id=1)
    torn.arm(b"COMMIT")
    assert await torn_store.append_events(*ids_of(one), [note("a"), note("b")]) == 2
    torn.arm(b"succeeded")
    attempt = await torn_store.update_attempt(*ids_of(one), status="succeeded", reward=0.5)
    assert attempt.reward == 0.5
    torn.arm(b"COMMIT")
    await torn_store.update_attempt(*ids_of(two), status="failed", events=[note("c")])
    assert torn.n_torn == 3
    assert [event.data["text"] for event in await torn_store.query_events("r0")] == ["a", "b"]
    assert [event.data["text"] for event in await torn_store.query_events("r1")] == ["c"]
    await check_invariants(torn_store)


async def test_cancels_starts_and_versions_whose_reply_is_lost_happen_once(torn: TornReplies, torn_store: Store):
    await torn_store.enqueue_many_rollouts(requests(3))
    torn.arm(b"COMMIT")
    assert await torn_store.cancel_rollouts(["r2", "r0"]) == ("r2", "r0")
    torn.arm(b"COMMIT")
    started = await torn_store.start_rollout("now", worker_id=1)
    torn.arm(b"COMMIT")
    assert (await torn_store.put_resources({"a": 1})).version == 1
    assert torn.n_torn == 3
    assert (await torn_store.put_resources({"a": 2})).version == 2
    assert (await torn_store.query_attempts(started.rollout_id)).items == (started.attempt,)
    await check_invariants(torn_store)


async def test_steps_of_a_ledger_whose_reply_is_lost_happen_once(torn: TornReplies, torn_store: Store):
    torn.arm(b"COMMIT")
    ledger = await torn_store.open_ledger("train")
    members = tuple(requests(2, group_id="g"))
    torn.arm(b"COMMIT")
    group = NewGroup(group_id="g", number=0, tag="t", seed=1, size=2, members=members)
    await torn_store.write_ledger(ledger, LedgerWrite(opened=(group,), version=1))
    one, two = await torn_store.dequeue_many_rollouts(2, worker_id=1)
    torn.arm(two.attempt.attempt_id.encode())
    await torn_store.ask_to_begin([ids_of(one), ids_of(two)])
    asks = (await torn_store.asks_after("train")).items
    grants = tuple(Grant(group_id="g", attempt_id=ask.attempt_id, version=1) for ask in asks)
    torn.arm(b"COMMIT")
    await torn_store.write_ledger(ledger, LedgerWrite(granted=grants))
    torn.arm(b"succeeded")
    account = Account(completion_tokens=5)
    await torn_store.update_attempt(*ids_of(one), status="succeeded", account=account)
    await torn_store.cancel_rollouts(["r1"])
    torn.arm(two.attempt.attempt_id.encode())
    await torn_store.leave_account(*ids_of(two), account)
    assert torn.n_torn == 6
    assert [ask.rollout_id for ask in asks] == ["r0", "r1"]
    assert await torn_store.grants([one.attempt.attempt_id]) == {one.attempt.attempt_id: 1}
    assert (await torn_store.tally("train")).n_attempts[None] == 2
    (stands,) = await torn_store.query_ledgers()
    assert (stands.epoch, stands.n_opened, stands.version) == (1, 1, 1)
    await check_invariants(torn_store)


async def test_a_server_that_stays_away_makes_calls_fail_in_the_end(
    postgres_server: PostgresServer, postgres_url: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("outrider.store.postgres.links.RETRY_SECONDS", 0.5)
    async with no_leaks(), open_store(postgres_url) as store:
        await store.enqueue_rollout("before", rollout_id="before")
        postgres_server.stop()
        try:
            with pytest.raises(StoreUnavailable, match="check host and port"):
                await store.dequeue_rollout(worker_id=1)
            with pytest.raises(StoreUnavailable):
                await store.query_rollouts()
        finally:
            postgres_server._start()
        claimed = await store.dequeue_rollout(worker_id=1)
        assert claimed is not None
        assert claimed.rollout_id == "before"


@contextmanager
def on_a_small_disk(server: PostgresServer, url: str, table: str, place: Path) -> Iterator[Path]:
    """Keeps one table of a store on a disk of its own; the store is gone after the block."""
    schema = url.rpartition("=")[2]
    with small_disk(place, 16 << 20) as disk:
        folder = disk / "tablespace"
        folder.mkdir()
        shutil.chown(folder, server.data.owner())
        server.sql(f"CREATE TABLESPACE small LOCATION '{folder}'")
        try:
            server.sql(f"ALTER TABLE {schema}.{table} SET TABLESPACE small")
            yield disk
        finally:
            server.sql(f"SET client_min_messages = error; DROP SCHEMA {schema} CASCADE")
            server.sql("DROP TABLESPACE small")


async def test_a_full_disk_of_the_server_is_reported_and_the_store_goes_on_when_there_is_room(
    postgres_server: PostgresServer, postgres_url: str
):
    async with open_store(postgres_url) as store:
        await store.enqueue_many_rollouts(requests(1))
    # A place that the server may enter: root's own folders are closed to it.
    with on_a_small_disk(postgres_server, postgres_url, "events", postgres_server.folder / "small") as disk:
        async with open_store(postgres_url) as store:
            one = await store.dequeue_rollout(worker_id=1)
            assert one is not None
            filler = fill(disk)
            noise = random.Random(1).randbytes(400_000).hex()
            for _ in range(2):
                with pytest.raises(StoreUnavailable, match=r"No space left on device.* its disk is full: make room"):
                    await store.update_attempt(*ids_of(one), status="succeeded", events=[note(noise)])
            assert await store.heartbeat(1, [one.attempt.attempt_id]) == ()
            filler.unlink()
            await store.update_attempt(*ids_of(one), status="succeeded", events=[note(noise)])
            assert (await store.query_events("r0")).total == 1
            await check_invariants(store)


@pytest.mark.parametrize(
    ("state", "advice"), [("53200", "out of memory"), ("53300", "max_connections"), ("58030", "check its disk")]
)
async def test_what_the_server_lacks_is_named_and_workers_try_again_until_it_is_there(
    postgres_server: PostgresServer, postgres_url: str, monkeypatch: pytest.MonkeyPatch, state: str, advice: str
):
    monkeypatch.setattr("outrider.store.postgres.links.RETRY_SECONDS", 0.1)
    schema = postgres_url.rpartition("=")[2]
    async with asyncio.timeout(60), open_store(postgres_url) as store:
        await store.enqueue_many_rollouts(requests(1))
        sql = partial(asyncio.to_thread, postgres_server.sql)  # the store may be in a step that locks the table
        await sql(f"""
            CREATE FUNCTION {schema}.refuse() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN RAISE EXCEPTION 'the server lacks something' USING ERRCODE = '{state}'; END $$;
            CREATE TRIGGER refuse BEFORE UPDATE ON {schema}.rollouts EXECUTE FUNCTION {schema}.refuse()""")
        with pytest.raises(StoreUnavailable, match=f"the server lacks something.*{advice}"):
            await store.dequeue_rollout(worker_id=1)
        runner = Runner(store, lambda _task, _context: 1.0, max_rollouts=1)
        working = asyncio.create_task(runner.iter())
        await asyncio.wait([working], timeout=0.5)
        assert not working.done()
        await sql(f"DROP TRIGGER refuse ON {schema}.rollouts")
        assert await working == 1
        assert (await store.statistics()).rollouts["succeeded"] == 1
