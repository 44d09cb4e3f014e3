"""What only a real PostgreSQL shows: many processes share one database, and many calls one round trip."""

import asyncio
import json
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial

import pytest

from leaks import no_leaks
from outrider.core.errors import RolloutConflict
from outrider.core.event import Event, EventKind
from outrider.core.rollout import RolloutConfig, RolloutRequest
from outrider.core.status import AttemptStatus
from outrider.store import Store, open_store
from outrider.store.postgres.batcher import Batcher
from outrider.store.postgres.claims import SPARE_CANDIDATES
from outrider.testing import FakeClock, eventually
from postgres_load import (
    PATIENT,
    check_done_once,
    finish_all,
    ids_of,
    n_listeners,
    no_connections_left,
    note,
    requests,
    schema_of,
    terminate_backends,
    waiting_claim,
)
from postgres_server import PostgresServer
from processes import CLAIMER, line, program, tell
from store_invariants import check_invariants


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


async def test_a_lease_that_ends_while_its_row_is_locked_is_taken_away_as_soon_as_it_is_free(postgres_url: str):
    import asyncpg

    clock = FakeClock()
    async with open_store(postgres_url, clock=clock) as store:
        await store.enqueue_rollout("x", config=RolloutConfig(timeout_seconds=10, max_attempts=1))
        claimed = await store.dequeue_rollout(worker_id="w")
        assert claimed is not None
        other = await asyncpg.connect(postgres_url.rpartition("&")[0])
        try:
            schema = schema_of(postgres_url)

            async def n_steps() -> int:
                return int(await other.fetchval(f"SELECT coalesce(max(number), 0) FROM {schema}.receipts"))

            async with other.transaction():
                await other.execute(f"SELECT FROM {schema}.rollouts FOR UPDATE")
                before = await n_steps()
                await clock.advance(10)

                async def has_looked() -> bool:
                    return await n_steps() > before

                await eventually(has_looked)
                assert (await store.statistics()).rollouts["preparing"] == 1
            (ended,) = await asyncio.wait_for(store.wait_for_rollouts([claimed.rollout_id]), 10)
            assert ended.status == "failed"
        finally:
            await other.close()


async def test_a_client_that_stood_still_leaves_the_leases_of_others_as_they_are(
    postgres_url: str, caplog: pytest.LogCaptureFixture
):
    awake, asleep = FakeClock(), FakeClock()
    async with open_store(postgres_url, clock=awake) as store, open_store(postgres_url, clock=asleep):
        await store.enqueue_rollout("x", config=RolloutConfig(unresponsive_seconds=30))
        claimed = await store.dequeue_rollout(worker_id="w")
        assert claimed is not None
        for _ in range(10):
            await awake.advance(10)
            assert await store.heartbeat("w", [claimed.attempt.attempt_id]) == ()
        await awake.advance(5)
        before = await store.get_latest_attempt(claimed.rollout_id)

        async def has_looked() -> bool:
            return asleep.n_timers > 0

        await eventually(has_looked)
        asleep.jump(104)  # the server's time has passed, its own has not: as if the server's clock had jumped

        async def is_taken() -> bool:
            if await has_looked():  # no time passes during a look, or it could not tell when the server answered
                await asleep.advance(1)
            return (await store.query_rollouts(status="requeuing")).total == 1

        await eventually(is_taken)
        after = await store.get_latest_attempt(claimed.rollout_id)
        assert before is not None
        assert after is not None
        assert (after.status, after.started_at) == (AttemptStatus.UNRESPONSIVE, before.started_at)
    assert "jumped" not in caplog.text


async def test_a_client_that_slept_through_a_jump_knows_the_next_for_one(
    postgres_url: str, caplog: pytest.LogCaptureFixture
):
    awake, asleep = FakeClock(), FakeClock()
    async with open_store(postgres_url, clock=awake) as store, open_store(postgres_url, clock=asleep):
        await store.enqueue_rollout("x", config=RolloutConfig(unresponsive_seconds=30, timeout_seconds=600))
        claimed = await store.dequeue_rollout(worker_id="w")
        assert claimed is not None

        async def both_wait() -> bool:
            return awake.n_timers > 0 and asleep.n_timers > 0

        def n_followed() -> int:
            return caplog.text.count("jumped forward")

        async def is_followed_by(clock: FakeClock, n: int) -> bool:
            """Advance no more than needed: else one client is heard of at times that the other takes for skipped."""
            if n_followed() < n and clock.n_timers > 0:  # no time passes during a look
                await clock.advance(1)
            return n_followed() == n

        await eventually(both_wait)
        awake.jump(3600)
        await eventually(partial(is_followed_by, awake, 1))
        assert await store.heartbeat("w", [claimed.attempt.attempt_id]) == ()
        await eventually(both_wait)
        awake.jump(3600)
        asleep.jump(awake.time() - asleep.time())
        await eventually(partial(is_followed_by, asleep, 2))
        asleep.jump(awake.time() - asleep.time())
        assert await store.heartbeat("w", [claimed.attempt.attempt_id]) == ()


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
                async with asyncio.timeout(10):
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
        async with asyncio.timeout(10):
            assert await claim is not None


async def test_what_is_enqueued_while_nobody_listens_is_found(postgres_server: PostgresServer, postgres_url: str):
    async with open_store(postgres_url) as store, open_store(postgres_url) as other, waiting_claim(store) as claim:
        await asyncio.gather(other.enqueue_rollout("at once"), terminate_backends(postgres_server, postgres_url))
        async with asyncio.timeout(10):
            assert await claim is not None


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
    await batcher.drain(5.0)
