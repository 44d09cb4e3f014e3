"""Queries: filters, pages, workers, statistics and resources."""

import pytest

from outrider.core.errors import UnknownId
from outrider.core.page import Page
from outrider.core.rollout import RolloutConfig
from outrider.core.status import RolloutStatus, WorkerStatus
from outrider.store import Store
from outrider.testing import FakeClock
from store_moves import claim, enqueue_and_claim, finish, the, until


def inputs(page: Page) -> list[object]:
    return [rollout.input for rollout in page]


@pytest.fixture
async def mixed(store: Store) -> Store:
    """Eight rollouts: 0 succeeded, 1 failed, 2 cancelled, 3 running, 4 preparing, 5 requeued, 6 and 7 wait."""
    for n in range(8):
        await store.enqueue_rollout(
            n,
            rollout_id=f"r{n}",
            mode="val" if n % 2 else "train",
            tag="even" if n % 2 == 0 else None,
            group_id=f"g{n // 4}",
            config=RolloutConfig(max_attempts=1 if n == 1 else 3),
        )
    claimed = await store.dequeue_many_rollouts(6, worker_id="w")
    await finish(store, claimed[1], "failed")
    await store.cancel_rollouts(["r2"])
    await finish(store, claimed[0], reward=1.0)
    await store.update_attempt("r3", claimed[3].attempt.attempt_id, status="running")
    await finish(store, claimed[5], "failed")
    return store


async def test_rollouts_are_listed_oldest_first(mixed: Store):
    page = await mixed.query_rollouts()
    assert (inputs(page), page.total, page.limit, page.offset) == (list(range(8)), 8, -1, 0)
    assert inputs(await mixed.query_rollouts(descending=True)) == list(reversed(range(8)))


async def test_rollouts_are_filtered_by_each_field_and_by_all_together(mixed: Store):
    assert inputs(await mixed.query_rollouts(status="running")) == [3]
    assert inputs(await mixed.query_rollouts(status=RolloutStatus.QUEUING)) == [6, 7]
    assert inputs(await mixed.query_rollouts(status_in=["failed", RolloutStatus.REQUEUING])) == [1, 5]
    assert inputs(await mixed.query_rollouts(status_in=[])) == []
    assert inputs(await mixed.query_rollouts(mode="val")) == [1, 3, 5, 7]
    assert inputs(await mixed.query_rollouts(tag="even")) == [0, 2, 4, 6]
    assert inputs(await mixed.query_rollouts(group_id="g1")) == [4, 5, 6, 7]
    assert inputs(await mixed.query_rollouts(rollout_ids=["r7", "r1", "nobody", "r1"])) == [1, 7]
    assert inputs(await mixed.query_rollouts(rollout_ids=[])) == []
    assert inputs(await mixed.query_rollouts(status="queuing", mode="train", tag="even", group_id="g1")) == [6]


async def test_rollouts_sorted_by_their_end_are_those_that_have_ended(mixed: Store):
    page = await mixed.query_rollouts(sort_by="ended_at")
    assert (inputs(page), page.total) == ([1, 2, 0], 3)
    page = await mixed.query_rollouts(sort_by="ended_at", descending=True, limit=1)
    assert (inputs(page), page.total) == ([0], 3)


async def test_pages_show_each_rollout_once_and_tell_the_total(mixed: Store):
    pages = [await mixed.query_rollouts(limit=3, offset=offset) for offset in (0, 3, 6, 9)]
    assert [inputs(page) for page in pages] == [[0, 1, 2], [3, 4, 5], [6, 7], []]
    assert [page.total for page in pages] == [8] * 4
    assert inputs(await mixed.query_rollouts(offset=6)) == [6, 7]
    assert (await mixed.query_rollouts(offset=6)).total == 8
    page = await mixed.query_rollouts(limit=0, tag="even")
    assert (inputs(page), page.total) == ([], 4)


async def test_a_rollout_is_found_by_its_id_or_not_at_all(mixed: Store):
    assert (await the(mixed, "r3")).input == 3
    assert await mixed.get_rollout_by_id("nobody") is None


async def test_the_attempts_of_a_rollout_are_listed_in_order(mixed: Store):
    claimed = await claim(mixed)
    assert claimed.rollout_id == "r5"
    page = await mixed.query_attempts("r5")
    assert [(a.sequence_id, a.status) for a in page] == [(1, "failed"), (2, "preparing")]
    page = await mixed.query_attempts("r5", limit=1, offset=1)
    assert ([a.sequence_id for a in page], page.total) == ([2], 2)
    assert await mixed.get_latest_attempt("r5") == page[0]


async def test_a_rollout_that_was_never_claimed_has_no_attempts(mixed: Store):
    assert len(await mixed.query_attempts("r7")) == 0
    assert await mixed.get_latest_attempt("r7") is None
    with pytest.raises(UnknownId):
        await mixed.query_attempts("nobody")


async def test_statistics_count_rollouts_and_workers(mixed: Store, clock: FakeClock):
    await mixed.heartbeat("idle")
    statistics = await mixed.statistics()
    assert statistics.rollouts == {
        "queuing": 2,
        "requeuing": 1,
        "preparing": 1,
        "running": 1,
        "succeeded": 1,
        "failed": 1,
        "cancelled": 1,
    }
    assert (statistics.workers[WorkerStatus.BUSY], statistics.workers[WorkerStatus.IDLE]) == (1, 1)
    assert statistics.oldest_queued_at is not None
    assert statistics.oldest_queued_at.timestamp() == clock.time()
    assert statistics.next_expiry_at is not None
    assert statistics.next_expiry_at.timestamp() == clock.time() + 30
    assert (await mixed.finished_after(statistics.cursor)).items == ()
    assert [rollout.input for rollout in (await mixed.finished_after(statistics.cursor - 1)).items] == [0]


async def test_statistics_of_an_empty_store_are_zero(store: Store):
    statistics = await store.statistics()
    assert dict(statistics.rollouts) == dict.fromkeys(RolloutStatus, 0)
    assert not any(statistics.workers.values())
    assert (statistics.oldest_queued_at, statistics.next_expiry_at, statistics.cursor) == (None, None, 0)


async def test_a_worker_is_idle_busy_and_unknown_in_turn(store: Store, clock: FakeClock):
    async def status() -> WorkerStatus:
        (worker,) = await store.query_workers()
        return worker.status

    await store.heartbeat("w")
    assert await status() is WorkerStatus.IDLE
    claimed = await enqueue_and_claim(store, config=RolloutConfig(unresponsive_seconds=1000))
    assert await status() is WorkerStatus.BUSY
    await clock.advance(100)
    assert await status() is WorkerStatus.BUSY
    await finish(store, claimed)
    assert await status() is WorkerStatus.UNKNOWN
    await store.dequeue_rollout(worker_id="w")
    assert await status() is WorkerStatus.IDLE
    await clock.advance(30)
    assert await status() is WorkerStatus.IDLE
    await clock.advance(1)
    assert await status() is WorkerStatus.UNKNOWN
    await store.heartbeat("w")
    assert await status() is WorkerStatus.IDLE


async def test_a_worker_that_falls_silent_with_a_lease_becomes_unknown(store: Store, clock: FakeClock):
    claimed = await enqueue_and_claim(store, config=RolloutConfig(unresponsive_seconds=60))
    await clock.advance(60)
    await until(store, claimed.rollout_id, lambda rollout: rollout.status.is_queued)
    (worker,) = await store.query_workers(status="unknown")
    assert (worker.attempt_ids, worker.last_seen_at) == ((), worker.first_seen_at)


async def test_workers_are_listed_in_the_order_they_came_with_their_leases(store: Store, clock: FakeClock):
    for n in range(3):
        await store.enqueue_rollout(n)
        await clock.advance(1)
        await claim(store, n)
    await store.heartbeat(7)
    workers = await store.query_workers()
    assert [worker.worker_id for worker in workers] == ["0", "1", "2", "7"]
    assert [len(worker.attempt_ids) for worker in workers] == [1, 1, 1, 0]
    assert workers[0].first_seen_at < workers[1].first_seen_at
    assert [w.worker_id for w in await store.query_workers(status=WorkerStatus.IDLE)] == ["7"]
    page = await store.query_workers(status="busy", limit=1, offset=1)
    assert ([worker.worker_id for worker in page], page.total) == (["1"], 3)


async def test_a_worker_given_as_a_number_or_as_text_is_the_same(store: Store):
    claimed = await enqueue_and_claim(store, worker_id=5)
    assert claimed.worker_id == "5"
    assert await store.heartbeat("5", [claimed.attempt.attempt_id]) == ()
    assert len(await store.query_workers()) == 1


async def test_a_worker_that_is_given_an_attempt_is_known(store: Store):
    claimed = await enqueue_and_claim(store)
    await store.update_attempt(claimed.rollout_id, claimed.attempt.attempt_id, worker_id="new")
    (worker,) = await store.query_workers(status="busy")
    assert worker.worker_id == "new"


async def test_resources_have_growing_versions_and_the_latest_is_found(store: Store, clock: FakeClock):
    assert await store.get_latest_resources() is None
    prompts = {"prompt": ["a"]}
    first = await store.put_resources(prompts)
    prompts["prompt"].append("b")
    assert (first.version, first.created_at.timestamp()) == (1, clock.time())
    assert await store.get_latest_resources() == first
    await clock.advance(1)
    second = await store.put_resources({"policy": {"url": "http://x", "version": 3}})
    assert second.version == 2
    assert await store.get_latest_resources() == second
    assert first.resources == {"prompt": ["a"]}


async def test_a_store_tells_its_url(store: Store, url: str):
    assert store.url.reveal() == url
