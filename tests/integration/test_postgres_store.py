"""What only a real PostgreSQL shows: connections that die, servers that restart, processes that share one database."""

import asyncio
import json
import time
import traceback
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest

from leaks import no_leaks
from outrider.core.clock import SystemClock
from outrider.core.errors import InvalidInput, LeaseLost, RolloutConflict, SchemaMismatch, StoreUnavailable
from outrider.core.event import Event, EventKind
from outrider.core.rollout import AttemptedRollout, RolloutConfig, RolloutRequest
from outrider.store import Store, open_store
from outrider.store.postgres_address import STEP_PLANS, masked
from outrider.store.postgres_batcher import Batcher
from outrider.store.postgres_claims import SPARE_CANDIDATES
from outrider.store.postgres_queries import SQL
from outrider.testing import eventually
from postgres_server import LOCKED_PASSWORD, PostgresServer
from processes import line, output_of, program, tell
from store_invariants import check_invariants

PATIENT = RolloutConfig(unresponsive_seconds=120.0)


def requests(n: int, **fields: object) -> list[RolloutRequest]:
    return [RolloutRequest(input=i, rollout_id=f"r{i}", config=PATIENT, **fields) for i in range(n)]


def schema_of(url: str) -> str:
    return url.rpartition("schema=")[2]


def note(text: str) -> Event:
    return Event(kind=EventKind.LOG, at=datetime.now(UTC), data={"text": text})


def ids_of(rollout: AttemptedRollout) -> tuple[str, str]:
    return rollout.rollout_id, rollout.attempt.attempt_id


async def finish_all(store: Store, name: str, *, n_events: int = 0) -> list[int]:
    """Claim and finish one by one until nothing is left; what was claimed."""
    taken = []
    while (rollout := await store.dequeue_rollout(worker_id=name)) is not None:
        taken.append(rollout.input)
        for k in range(n_events):
            await store.append_events(*ids_of(rollout), [note(str(k))])
        await store.update_attempt(*ids_of(rollout), status="succeeded", reward=1.0)
    return taken


async def check_done_once(store: Store, taken: Sequence[Sequence[int]], n: int, *, n_events: int) -> None:
    assert sorted(i for several in taken for i in several) == list(range(n))
    rollouts = await store.query_rollouts()
    assert {(rollout.status, rollout.n_attempts) for rollout in rollouts} == {("succeeded", 1)}
    for rollout in rollouts:
        events = await store.query_events(rollout.rollout_id)
        assert [event.data["text"] for event in events] == [str(k) for k in range(n_events)]
    await check_invariants(store)


# Sharing one database


async def test_two_stores_claim_disjoint_rollouts_highest_priority_first(postgres_url: str):
    async with no_leaks(), open_store(postgres_url) as one, open_store(postgres_url) as two:
        await one.enqueue_many_rollouts([RolloutRequest(input=i, priority=i % 5) for i in range(400)])
        first, second = await asyncio.gather(
            *(store.dequeue_many_rollouts(150, worker_id=n) for n, store in enumerate((one, two)))
        )
        assert not {r.rollout_id for r in first} & {r.rollout_id for r in second}
        assert len(first) == len(second) == 150
        for claimed in (first, second):
            assert [(-r.priority, r.input) for r in claimed] == sorted((-r.priority, r.input) for r in claimed)
        left = await one.query_rollouts(status="queuing")
        assert min(r.priority for r in (*first, *second)) >= max(r.priority for r in left)
        await check_invariants(one)


async def test_more_rollouts_than_one_statement_takes_are_claimed_in_order(postgres_url: str):
    async with open_store(postgres_url) as store:
        await store.enqueue_many_rollouts(requests(700))
        claimed = await store.dequeue_many_rollouts(10_000, worker_id=1, request_id="all of them")
        assert [rollout.input for rollout in claimed] == list(range(700))
        again = await store.dequeue_many_rollouts(10_000, worker_id=1, request_id="all of them")
        assert again == claimed


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


async def test_four_processes_that_open_a_new_store_at_once_claim_a_thousand_rollouts_once_each(postgres_url: str):
    with ExitStack() as stack:
        claimers = [stack.enter_context(program(CLAIMER, postgres_url, f"w{n}")) for n in range(4)]
        for claimer in claimers:
            assert await asyncio.to_thread(line, claimer) == "ready"
        async with open_store(postgres_url) as store:
            await store.enqueue_many_rollouts(requests(1000))
            for claimer in claimers:
                tell(claimer)
            taken = [json.loads(await asyncio.to_thread(line, claimer)) for claimer in claimers]
            await check_done_once(store, taken, 1000, n_events=0)


async def test_the_feed_shows_each_end_once_and_in_order_while_three_stores_finish(postgres_url: str):
    n = 900
    async with (
        open_store(postgres_url) as one,
        open_store(postgres_url) as two,
        open_store(postgres_url) as three,
        open_store(postgres_url) as reader,
    ):
        await one.enqueue_many_rollouts(requests(n))
        finishing = [asyncio.create_task(finish_all(store, "w")) for store in (one, two, three) for _ in range(4)]
        shown: list[str] = []
        while len(shown) < n:
            finished = await reader.finished_after(len(shown), limit=50, wait=10)
            assert finished.items, "the feed has stopped"
            assert finished.cursor == len(shown) + len(finished.items), "a place was given and not yet to be seen"
            shown += [rollout.rollout_id for rollout in finished.items]
        taken = await asyncio.gather(*finishing)
        assert sorted(shown) == sorted(f"r{i}" for i in range(n))
        await check_done_once(reader, taken, n, n_events=0)


async def test_filtered_claims_take_the_best_of_many_lanes(postgres_url: str):
    async with open_store(postgres_url) as one, open_store(postgres_url) as two:
        new = [
            RolloutRequest(input=i, tag=f"t{i % 40}", priority=i % 3, mode=("train", "val")[i % 2], config=PATIENT)
            for i in range(800)
        ]
        await one.enqueue_many_rollouts(new)

        def waiting(tags: range, mode: str) -> list[int]:
            fitting = [i for i in range(800) if i % 40 in tags and ("train", "val")[i % 2] == mode]
            return sorted(fitting, key=lambda i: (-(i % 3), i))

        claimed = await one.dequeue_many_rollouts(30, worker_id=1, tags=[f"t{k}" for k in range(20)], mode="val")
        assert [rollout.input for rollout in claimed] == waiting(range(20), "val")[:30]
        claimed = await one.dequeue_many_rollouts(30, worker_id=1, mode="train")
        assert [rollout.input for rollout in claimed] == waiting(range(40), "train")[:30]
        claimed = await one.dequeue_many_rollouts(5, worker_id=1, tags=["t21"])
        assert [rollout.input for rollout in claimed] == [i for i in waiting(range(40), "val") if i % 40 == 21][:5]

        async def drain(store: Store, tags: Sequence[str]) -> list[int]:
            taken = []
            while (rollout := await store.dequeue_rollout(worker_id=2, tags=tags)) is not None:
                taken.append(rollout.input)
            return taken

        names = [f"t{k}" for k in range(40)]
        taken = await asyncio.gather(*(drain(store, names) for store in (one, two) for _ in range(3)))
        assert sum(map(len, taken)) == 800 - 65, "no claim found the queue empty while something waited in it"


async def test_a_filtered_claim_looks_past_what_others_are_taking(postgres_url: str):
    import asyncpg

    n_locked = 5 * SPARE_CANDIDATES
    async with open_store(postgres_url) as store:
        await store.enqueue_many_rollouts([RolloutRequest(input=i, tag=f"t{i % 3}") for i in range(n_locked + 4)])
        other = await asyncpg.connect(postgres_url.rpartition("&")[0])
        try:
            async with other.transaction():
                table = f"{schema_of(postgres_url)}.rollouts"
                await other.execute(f"SELECT FROM {table} ORDER BY seq LIMIT {n_locked} FOR UPDATE")
                claims = [store.dequeue_rollout(worker_id=1, tags=["t0", "t1", "t2"]) for _ in range(6)]
                claimed = await asyncio.gather(*claims)
            assert [r and r.input for r in claimed] == [*range(n_locked, n_locked + 4), None, None]
        finally:
            await other.close()


# Waking


@asynccontextmanager
async def waiting_claim(store: Store) -> AsyncIterator["asyncio.Task[AttemptedRollout | None]"]:
    """A claim that waits and is woken by rings alone."""
    bell = store._bell
    bell.net_seconds = 60.0
    claim = asyncio.create_task(store.dequeue_rollout(worker_id="waiter", wait=30))
    try:
        yield claim
    finally:
        claim.cancel()
        await asyncio.gather(claim, return_exceptions=True)


async def n_connections(server: PostgresServer, url: str, query: str = "%") -> int:
    where = f"application_name = 'outrider.{schema_of(url)}' AND query LIKE '{query}'"
    return int(await asyncio.to_thread(server.sql, f"SELECT count(*) FROM pg_stat_activity WHERE {where}"))


async def n_listeners(server: PostgresServer, url: str) -> int:
    return await n_connections(server, url, "LISTEN%")


@asynccontextmanager
async def no_connections_left(server: PostgresServer, url: str) -> AsyncIterator[None]:
    yield

    async def none_left() -> bool:
        return await n_connections(server, url) == 0

    await eventually(none_left, within_seconds=2.0)


async def test_a_waiting_claim_hears_of_a_rollout_from_another_process(
    postgres_server: PostgresServer, postgres_url: str
):
    source = """
import asyncio, sys
from outrider.store import open_store

async def main(url):
    async with open_store(url) as store:
        print("ready", flush=True)
        sys.stdin.readline()
        await store.enqueue_rollout("from afar")
        print("done", flush=True)

asyncio.run(main(*sys.argv[1:]))
"""
    async with no_connections_left(postgres_server, postgres_url), open_store(postgres_url) as store:
        with program(source, postgres_url) as other:
            assert await asyncio.to_thread(line, other) == "ready"
            async with waiting_claim(store) as claim:
                await eventually(lambda: n_listeners(postgres_server, postgres_url))
                tell(other)
                assert await asyncio.to_thread(line, other) == "done"
                async with asyncio.timeout(1):
                    rollout = await claim
                assert rollout is not None
                assert rollout.input == "from afar"


async def test_a_waiting_claim_is_woken_after_the_listening_connection_was_lost(
    postgres_server: PostgresServer, postgres_url: str
):
    async with open_store(postgres_url) as store, open_store(postgres_url) as other, waiting_claim(store) as claim:
        await eventually(lambda: n_listeners(postgres_server, postgres_url))
        await terminate_backends(postgres_server, postgres_url)
        await eventually(lambda: n_listeners(postgres_server, postgres_url))
        await other.enqueue_rollout("later")
        async with asyncio.timeout(2):
            assert await claim is not None


async def test_what_is_enqueued_while_nobody_listens_is_found(postgres_server: PostgresServer, postgres_url: str):
    async with open_store(postgres_url) as store, open_store(postgres_url) as other, waiting_claim(store) as claim:
        await asyncio.gather(other.enqueue_rollout("at once"), terminate_backends(postgres_server, postgres_url))
        async with asyncio.timeout(5):
            assert await claim is not None


# Losing connections and servers


async def terminate_backends(server: PostgresServer, url: str) -> None:
    where = f"application_name = 'outrider.{schema_of(url)}'"
    await asyncio.to_thread(server.sql, f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {where}")


async def test_killing_all_connections_again_and_again_loses_and_doubles_nothing(
    postgres_server: PostgresServer, postgres_url: str
):
    n, n_events = 400, 2
    async with (
        no_connections_left(postgres_server, postgres_url),
        open_store(postgres_url) as one,
        open_store(postgres_url) as two,
    ):
        await one.enqueue_many_rollouts(requests(n))
        working = asyncio.gather(
            *(finish_all(store, f"w{k}", n_events=n_events) for store in (one, two) for k in range(8))
        )
        n_kills = 0
        while not working.done():
            await terminate_backends(postgres_server, postgres_url)
            n_kills += 1
            await asyncio.wait([working], timeout=0.05)
        assert n_kills > 3
        await check_done_once(one, await working, n, n_events=n_events)


@pytest.mark.parametrize("mode", ["fast", "immediate"])
async def test_calls_survive_a_restart_of_the_server(postgres_server: PostgresServer, postgres_url: str, mode: str):
    n, n_events = 300, 1
    async with (
        no_connections_left(postgres_server, postgres_url),
        open_store(postgres_url) as one,
        open_store(postgres_url) as two,
    ):
        await one.enqueue_many_rollouts(requests(n))
        working = asyncio.gather(
            *(finish_all(store, f"w{k}", n_events=n_events) for store in (one, two) for k in range(4))
        )
        await asyncio.sleep(0.05)
        await asyncio.to_thread(postgres_server.restart, mode)
        assert (await one.statistics()).rollouts["queuing"] < n
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
    torn: TornReplies,  # noqa: ARG001 it must serve already
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


async def test_a_server_that_stays_away_makes_calls_fail_in_the_end(
    postgres_server: PostgresServer, postgres_url: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("outrider.store.postgres_links.RETRY_SECONDS", 0.5)
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


# Batches


async def test_a_refused_report_does_not_harm_its_neighbours(postgres_url: str):
    async with open_store(postgres_url) as store:
        await store.enqueue_many_rollouts(requests(4))
        claimed = await store.dequeue_many_rollouts(4, worker_id=1)
        await store.cancel_rollouts(["r2"])
        outcomes = await asyncio.gather(
            *(store.update_attempt(*ids_of(rollout), status="succeeded") for rollout in claimed),
            store.update_attempt("unknown", "attempt", status="succeeded"),
            store.append_events(
                *ids_of(claimed[0]), [Event(kind=EventKind.LOG, at=datetime.now(UTC), data={"x": {1}})]
            ),
            return_exceptions=True,
        )
        assert [type(outcome).__name__ for outcome in outcomes] == [
            *("Attempt", "Attempt", "LeaseLost", "Attempt"),
            *("UnknownId", "LeaseLost"),
        ]
        await check_invariants(store)


async def test_reports_of_one_attempt_made_at_once_are_carried_out_in_their_order(postgres_url: str):
    async with open_store(postgres_url) as store:
        await store.enqueue_rollout("x", rollout_id="r", config=PATIENT)
        claimed = await store.dequeue_rollout(worker_id=1)
        assert claimed is not None
        counts = await asyncio.gather(*(store.append_events(*ids_of(claimed), [note(str(k))]) for k in range(5)))
        assert counts == [1, 2, 3, 4, 5]
        _, attempt = await asyncio.gather(
            store.append_events(*ids_of(claimed), [note("5")]),
            store.update_attempt(*ids_of(claimed), status="succeeded", events=[note("6")]),
        )
        assert attempt.status == "succeeded"
        assert [event.data["text"] for event in await store.query_events("r")] == [str(k) for k in range(7)]


async def test_a_refused_enqueue_leaves_nothing_and_does_not_harm_its_neighbours(postgres_url: str):
    async with open_store(postgres_url) as store:
        await store.enqueue_rollout("old", rollout_id="taken")
        outcomes = await asyncio.gather(
            store.enqueue_many_rollouts(requests(2)),
            store.enqueue_many_rollouts(
                [RolloutRequest(input="a", rollout_id="a"), RolloutRequest(input="b", rollout_id="taken")]
            ),
            store.enqueue_rollout("old", rollout_id="taken"),
            return_exceptions=True,
        )
        assert isinstance(outcomes[1], RolloutConflict)
        assert [type(outcome).__name__ for outcome in outcomes] == ["tuple", "RolloutConflict", "Rollout"]
        assert {rollout.rollout_id for rollout in await store.query_rollouts()} == {"taken", "r0", "r1"}


async def test_a_call_too_large_for_one_statement_is_enqueued_whole_or_not_at_all(postgres_url: str):
    async with open_store(postgres_url) as store:
        await store.enqueue_rollout("old", rollout_id="r4500")
        with pytest.raises(RolloutConflict):
            await store.enqueue_many_rollouts(requests(5000))
        assert (await store.query_rollouts(limit=0)).total == 1
        await store.cancel_rollouts(["r4500"])
        await store.enqueue_many_rollouts(requests(4500))
        claimed = await store.dequeue_rollout(worker_id=1)
        assert claimed is not None
        assert claimed.input == 0


async def test_claims_of_cancelled_callers_are_handed_back(postgres_url: str):
    async with no_leaks(), open_store(postgres_url) as store:
        await store.enqueue_many_rollouts(requests(8))
        claims = [asyncio.create_task(store.dequeue_rollout(worker_id=k)) for k in range(8)]
        for _ in range(4):
            await asyncio.sleep(0)
        for claim in claims[:4]:
            claim.cancel()
        outcomes = await asyncio.gather(*claims, return_exceptions=True)
        kept = {rollout.rollout_id for rollout in outcomes[4:]}

        async def handed_back() -> bool:
            held = await store.query_rollouts(status_in=["preparing", "running"])
            return {rollout.rollout_id for rollout in held} == kept

        await eventually(handed_back)
        assert {rollout.n_failures for rollout in await store.query_rollouts()} == {0}
        await check_invariants(store)


async def test_calls_that_come_while_one_is_under_way_share_the_next_round_trip():
    batches: list[list[int]] = []
    gate = asyncio.Event()

    async def carry_out(calls: Sequence[int]) -> list[int | Exception]:
        batches.append(list(calls))
        await gate.wait()
        if 13 in calls:
            raise ValueError(f"{calls}")
        return [call * 10 for call in calls]

    batcher = Batcher[int, int](carry_out, limit=4, subject=lambda call: call)
    first = batcher.submit(1)
    await asyncio.sleep(0)
    later = [batcher.submit(call) for call in (2, 3, 2, 13, 4, 5, 6)]
    gate.set()
    outcomes = await asyncio.gather(first, *later, return_exceptions=True)
    assert [str(outcome) for outcome in outcomes] == ["10", "20", "30", "20", "[13]", "40", "50", "60"]
    assert batches == [[1], [2, 3], [2, 13, 4, 5], [2], [13], [4], [5], [6]]
    await batcher.drain()


# Opening


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
        assert store.url == postgres_url
        assert (await store.query_rollouts()).items == (rollout,)


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
        assert store.url == url
        assert not [task for task in asyncio.all_tasks() if LOCKED_PASSWORD in repr(task)]
        assert LOCKED_PASSWORD not in repr(store)


def test_masked_urls_keep_all_but_the_password():
    assert masked("postgresql://me:a:b@c@host:5/db?x=1") == "postgresql://me:***@host:5/db?x=1"
    assert masked("postgresql://me@host/db?password=abc&x=1") == "postgresql://me@host/db?password=***&x=1"
    assert masked("postgresql://me@host/db") == "postgresql://me@host/db"


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
    before = time.monotonic()
    async with no_leaks():
        with pytest.raises(error, match=words):
            await open_store(url.format(folder=postgres_server.folder))
    assert time.monotonic() - before < 3


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
    assert "pip install 'outrider[postgres]'" in output_of(source)


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


# Time and speed


async def test_machines_whose_clocks_differ_agree_on_the_end_of_a_lease(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(SystemClock, "time", lambda _: time.time() + 3600)
    async with open_store(postgres_url) as ahead:
        await ahead.enqueue_many_rollouts(requests(1))
        claimed = await ahead.dequeue_rollout(worker_id=1)
        assert claimed is not None
        assert claimed.attempt.lease_expires_at is not None
        assert abs(claimed.attempt.lease_expires_at.timestamp() - time.time() - 120) < 5
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
    for statistics in ("", "ANALYZE;"):
        for name, index in {
            "claim_of_all": "rollouts_queue",
            "claim_of_lane": "rollouts_lanes",
            "claim_of_lanes": "rollouts_lanes",
            "lanes": "rollouts_lanes",
            "set_live": "rollouts_pkey",
            "set_ended": "rollouts_pkey",
            "renew": "rollouts_pkey",
            "current": "rollouts_by_id",
            "next_expiry": "rollouts_leases",
        }.items():
            plan = await asyncio.to_thread(
                postgres_server.sql,
                f"SET search_path = {schema_of(postgres_url)};{settings}{statistics}EXPLAIN (GENERIC_PLAN) {SQL[name]}",
            )
            assert f"using {index} on rollouts" in plan, plan
            assert "Seq Scan on rollouts" not in plan, plan
            scans = {
                scan.split(" on rollouts")[0].split("using ")[1]
                for scan in plan.splitlines()
                if "on rollouts" in scan and "using" in scan
            }
            assert scans <= {index, "rollouts_pkey"}, plan
