"""Waiting: calls wake on events, end at their deadline, and lose nothing when they are cancelled."""

import asyncio
import random

import pytest

from outrider.core.errors import StoreError, UnknownId
from outrider.core.rollout import RolloutConfig, RolloutRequest
from outrider.core.status import RolloutStatus
from outrider.store import Store, open_store
from outrider.testing import eventually
from store_moves import claim, enqueue_and_claim, finish


async def soon(waiting):
    """The result of something that must not take long in real time: the clock stands still, so only a ring wakes."""
    return await asyncio.wait_for(waiting, 10)


async def test_a_waiting_claim_wakes_on_enqueue(store: Store, parked):
    task = await parked(store.dequeue_rollout(worker_id="w", wait=60))
    await store.enqueue_rollout("x")
    claimed = await soon(task)
    assert claimed is not None
    assert claimed.input == "x"


async def test_a_waiting_claim_wakes_on_requeue(store: Store, parked):
    claimed = await enqueue_and_claim(store, "x")
    task = await parked(store.dequeue_rollout(worker_id="v", wait=60))
    await finish(store, claimed, "failed")
    again = await soon(task)
    assert (again.rollout_id, again.attempt.sequence_id) == (claimed.rollout_id, 2)


async def test_a_waiting_claim_wakes_when_a_silent_worker_loses_its_lease(store: Store, parked, clock):
    claimed = await enqueue_and_claim(store, "x", config=RolloutConfig(unresponsive_seconds=5))
    task = await parked(store.dequeue_rollout(worker_id="v", wait=60))
    await clock.advance(6)
    assert (await soon(task)).rollout_id == claimed.rollout_id


async def test_a_waiting_claim_leaves_what_its_tags_do_not_take(store: Store, parked):
    task = await parked(store.dequeue_rollout(worker_id="w", wait=60, tags=["b"]))
    await store.enqueue_rollout("for others", tag="a")
    await store.enqueue_rollout("for us", tag="b")
    assert (await soon(task)).input == "for us"


async def test_a_waiting_claim_ends_empty_handed_at_its_deadline(store: Store, parked, clock):
    task = await parked(store.dequeue_rollout(worker_id="w", wait=60))
    await clock.advance(59)
    assert not task.done()
    await clock.advance(1.5)
    assert await soon(task) is None


async def test_one_rollout_goes_to_one_of_many_waiting_claims(store: Store, parked):
    tasks = [await parked(store.dequeue_rollout(worker_id=n, wait=60)) for n in range(5)]
    await store.enqueue_rollout("x")
    done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED, timeout=10)
    assert (len(done), len(pending)) == (1, 4)
    await store.enqueue_many_rollouts([RolloutRequest(input=n) for n in range(4)])
    assert {task.result().input for task in (await asyncio.wait(pending, timeout=10))[0]} == {0, 1, 2, 3}


async def test_a_claim_of_many_waits_only_while_there_is_none(store: Store, parked):
    task = await parked(store.dequeue_many_rollouts(10, worker_id="w", wait=60))
    await store.enqueue_many_rollouts([RolloutRequest(input=n) for n in range(3)])
    assert len(await soon(task)) == 3


async def test_a_cancelled_claim_loses_no_rollout(store: Store):
    rng = random.Random(7)
    n_rollouts = 40
    await store.enqueue_many_rollouts([RolloutRequest(input=n) for n in range(n_rollouts)])
    for _ in range(30):
        tasks = [asyncio.create_task(store.dequeue_many_rollouts(3, worker_id=n, wait=60)) for n in range(8)]
        for task in tasks:
            for _ in range(rng.randrange(4)):
                await asyncio.sleep(rng.choice([0, 0, 0.0005]))
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if not isinstance(result, BaseException):
                await asyncio.gather(*(finish(store, claimed, "cancelled") for claimed in result))
    taken: set[int] = set()

    async def all_are_claimable() -> bool:
        taken.update(claimed.input for claimed in await store.dequeue_many_rollouts(n_rollouts, worker_id="last"))
        return len(taken) == n_rollouts

    await eventually(all_are_claimable)
    assert all(rollout.n_failures == 0 for rollout in await store.query_rollouts())


async def test_a_claim_cancelled_just_before_the_store_closes_is_handed_back(durable_url, clock):
    for _ in range(10):
        async with open_store(durable_url, clock=clock) as store:
            await store.enqueue_rollout("x")
            task = asyncio.create_task(store.dequeue_many_rollouts(100, worker_id="w"))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
    async with open_store(durable_url, clock=clock) as store:
        assert len(await store.dequeue_many_rollouts(100, worker_id="w")) == 10


async def test_waiting_for_rollouts_returns_when_all_have_ended_in_the_order_asked(store: Store, parked):
    a, b = [await enqueue_and_claim(store, name, rollout_id=name) for name in "ab"]
    c = await store.enqueue_rollout("c", rollout_id="c")
    task = await parked(store.wait_for_rollouts(["c", "a", "b", "a"], timeout=60))
    await finish(store, b, reward=1.0)
    await finish(store, a, "failed")
    await store.cancel_rollouts([c.rollout_id])
    await finish(store, await claim(store), reward=2.0)
    ended = await soon(task)
    assert [(rollout.rollout_id, rollout.reward) for rollout in ended] == [("c", None), ("a", 2.0), ("b", 1.0)]


async def test_waiting_for_rollouts_returns_those_that_ended_by_the_deadline(store: Store, parked, clock):
    a, b = [await enqueue_and_claim(store, name, rollout_id=name) for name in "ab"]
    task = await parked(store.wait_for_rollouts(["b", "a"], timeout=5))
    await finish(store, a)
    await clock.advance(4)
    assert not task.done()
    await clock.advance(2)
    assert [rollout.rollout_id for rollout in await soon(task)] == ["a"]
    await finish(store, b)
    assert [r.rollout_id for r in await store.wait_for_rollouts(["b", "a"], timeout=0)] == ["b", "a"]


async def test_waiting_without_a_deadline_goes_on_until_the_end(store: Store, parked, clock):
    a = await enqueue_and_claim(store, "a", config=RolloutConfig(unresponsive_seconds=1e6))
    task = await parked(store.wait_for_rollouts([a.rollout_id]))
    await clock.advance(7200)
    assert not task.done()
    await finish(store, a)
    assert [rollout.status for rollout in await soon(task)] == [RolloutStatus.SUCCEEDED]


async def test_waiting_for_a_rollout_that_does_not_exist_is_an_error(store: Store):
    await store.enqueue_rollout("a", rollout_id="a")
    with pytest.raises(UnknownId) as caught:
        await store.wait_for_rollouts(["a", "nobody"], timeout=60)
    assert caught.value.id == "nobody"
    assert await store.wait_for_rollouts([], timeout=60) == ()


async def test_the_feed_shows_rollouts_in_the_order_they_ended(store: Store):
    claimed = [await enqueue_and_claim(store, n) for n in range(5)]
    order = [3, 0, 4, 1, 2]
    for n in order:
        await finish(store, claimed[n], reward=n)
    feed = await store.finished_after()
    assert [rollout.input for rollout in feed.items] == order
    assert (await store.finished_after(feed.cursor)).items == ()
    assert (await store.finished_after(feed.cursor)).cursor == feed.cursor


async def test_paging_through_the_feed_skips_nothing_and_shows_nothing_twice(store: Store):
    n_rollouts, seen = 120, []
    await store.enqueue_many_rollouts([RolloutRequest(input=n) for n in range(n_rollouts)])

    async def worker(worker_id: int) -> None:
        while claimed := await store.dequeue_many_rollouts(2, worker_id=worker_id):
            for rollout in claimed:
                await finish(store, rollout)

    async def reader() -> None:
        cursor = 0
        while len(seen) < n_rollouts:
            page = await store.finished_after(cursor, limit=7, wait=60)
            assert 1 <= len(page.items) <= 7
            cursor = page.cursor
            seen.extend(rollout.input for rollout in page.items)

    await soon(asyncio.gather(reader(), *(worker(n) for n in range(6))))
    assert sorted(seen) == list(range(n_rollouts))


async def test_a_waiting_reader_of_the_feed_wakes_when_a_rollout_ends(store: Store, parked):
    claimed = await enqueue_and_claim(store)
    cursor = (await store.finished_after()).cursor
    task = await parked(store.finished_after(cursor, wait=60))
    await finish(store, claimed)
    assert [rollout.rollout_id for rollout in (await soon(task)).items] == [claimed.rollout_id]


async def test_a_requeued_rollout_does_not_stand_in_the_feed(store: Store):
    await finish(store, await enqueue_and_claim(store), "failed")
    assert (await store.finished_after()).items == ()


async def test_closing_the_store_ends_those_who_wait_with_an_error(store: Store, parked):
    tasks = [
        await parked(store.dequeue_rollout(worker_id="w", wait=600)),
        await parked(store.finished_after(wait=600)),
        await parked(store.heartbeat("w", wait=600)),
    ]
    await store.close()
    for task in tasks:
        with pytest.raises(StoreError, match="closed"):
            await soon(task)
    with pytest.raises(StoreError, match="closed"):
        await store.enqueue_rollout("x")
    await store.close()


async def test_what_was_acknowledged_is_there_after_opening_again(durable_url, clock):
    async with open_store(durable_url, clock=clock) as store:
        claimed = await enqueue_and_claim(store, {"x": 1}, metadata={"m": 2})
        await finish(store, claimed, reward=0.25)
        waiting = await store.enqueue_rollout("waiting")
        before = (await store.query_rollouts()).items
    async with open_store(durable_url, clock=clock) as store:
        assert (await store.query_rollouts()).items == before
        assert (await claim(store)).rollout_id == waiting.rollout_id
