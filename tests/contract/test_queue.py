"""Enqueueing and claiming: what is in the queue, who gets it, and in which order."""

import asyncio

import pytest

from outrider.core.errors import InvalidInput, RolloutConflict
from outrider.core.rollout import RolloutConfig, RolloutRequest
from outrider.core.status import AttemptStatus, Mode, RolloutStatus
from outrider.store import Store, open_store
from store_moves import claim, enqueue_and_claim, everything, finish


async def test_an_enqueued_rollout_is_read_back_as_it_was_given(store: Store):
    config = RolloutConfig(timeout_seconds=5, unresponsive_seconds=7.5, max_attempts=2, retry_condition={"timeout"})
    task = {"question": "2+2?", "ü": [1, 2.5, None, True, b"\x00\xff"], "nested": {"deep": [{}]}}
    enqueued = await store.enqueue_rollout(
        task,
        rollout_id="r1",
        mode="val",
        tag="math",
        seed=2**63 - 1,
        group_id="g",
        priority=-3,
        config=config,
        metadata={"source": "test"},
    )
    assert enqueued == await store.get_rollout_by_id("r1")
    assert (enqueued.status, enqueued.mode, enqueued.tag) == (RolloutStatus.QUEUING, Mode.VAL, "math")
    assert (enqueued.input, enqueued.metadata, enqueued.config) == (task, {"source": "test"}, config)
    assert (enqueued.seed, enqueued.group_id, enqueued.priority) == (2**63 - 1, "g", -3)
    assert (enqueued.n_attempts, enqueued.attempt_id, enqueued.worker_id, enqueued.ended_at) == (0, None, None, None)


async def test_a_value_in_the_store_is_not_shared_with_the_caller(store: Store):
    task = {"steps": [1]}
    rollout = await store.enqueue_rollout(task)
    task["steps"].append(2)
    rollout.input["steps"].append(3)
    claimed = await claim(store)
    assert claimed.input == {"steps": [1]}
    claimed.input["steps"].clear()
    found = await store.get_rollout_by_id(rollout.rollout_id)
    assert found is not None
    assert found.input == {"steps": [1]}


async def test_ids_given_by_the_store_differ_and_sort_by_age(store: Store):
    ids = [(await store.enqueue_rollout(n)).rollout_id for n in range(50)]
    assert len(set(ids)) == 50
    assert [id[:11] for id in ids] == sorted(id[:11] for id in ids)


async def test_a_claim_takes_the_highest_priority_first_and_then_the_oldest(store: Store):
    for name, priority in [("old", 0), ("urgent", 5), ("new", 0), ("late", -1), ("also urgent", 5)]:
        await store.enqueue_rollout(name, rollout_id=name, priority=priority)
    order = [(await claim(store)).rollout_id for _ in range(5)]
    assert order == ["urgent", "also urgent", "old", "new", "late"]
    assert await store.dequeue_rollout(worker_id="w") is None


async def test_the_order_holds_across_tags_and_modes(store: Store):
    places = [("a", "train", 1), ("b", "train", 1), (None, "val", 2), ("a", "test", 0), ("c", "val", 1)]
    for n, (tag, mode, priority) in enumerate(places):
        await store.enqueue_rollout(n, tag=tag, mode=mode, priority=priority)
    claimed = await store.dequeue_many_rollouts(10, worker_id="w")
    assert [rollout.input for rollout in claimed] == [2, 0, 1, 4, 3]


async def test_a_claim_of_many_takes_no_more_than_its_limit(store: Store):
    for n in range(5):
        await store.enqueue_rollout(n)
    assert [r.input for r in await store.dequeue_many_rollouts(3, worker_id="w")] == [0, 1, 2]
    assert [r.input for r in await store.dequeue_many_rollouts(3, worker_id="w")] == [3, 4]
    assert await store.dequeue_many_rollouts(3, worker_id="w") == ()


async def test_tags_and_mode_choose_what_is_claimed(store: Store):
    for n, (tag, mode) in enumerate([("a", "train"), ("b", "val"), (None, "train"), ("a", "val"), ("b/c", "train")]):
        await store.enqueue_rollout(n, tag=tag, mode=mode)
    assert await store.dequeue_rollout(worker_id="w", tags=[]) is None
    assert await store.dequeue_rollout(worker_id="w", tags=["c"]) is None
    assert await store.dequeue_rollout(worker_id="w", mode="test") is None
    assert (await claim(store, tags=["a", "x"], mode=Mode.VAL)).input == 3
    assert (await claim(store, tags={"b/c"})).input == 4
    assert (await claim(store, mode="train", tags=("a", "b"))).input == 0
    assert (await claim(store, mode="train")).input == 2
    assert (await claim(store)).input == 1


async def test_a_claimed_rollout_carries_its_attempt_and_lease(store: Store, clock):
    claimed = await enqueue_and_claim(store, "task", config=RolloutConfig(unresponsive_seconds=30))
    attempt = claimed.attempt
    assert (claimed.status, attempt.status) == (RolloutStatus.PREPARING, AttemptStatus.PREPARING)
    assert (claimed.attempt_id, claimed.worker_id, claimed.n_attempts) == (attempt.attempt_id, "w", 1)
    assert (attempt.sequence_id, attempt.rollout_id, attempt.worker_id) == (1, claimed.rollout_id, "w")
    assert attempt.lease_expires_at is not None
    assert attempt.lease_expires_at.timestamp() == clock.time() + 30
    assert attempt == await store.get_latest_attempt(claimed.rollout_id)


async def test_sixteen_concurrent_claimers_get_each_rollout_once(store: Store):
    await store.enqueue_many_rollouts([RolloutRequest(input=n) for n in range(400)])

    async def claimer(worker_id: int) -> list[int]:
        taken = []
        while claimed := await store.dequeue_many_rollouts(1 + worker_id % 3, worker_id=worker_id):
            taken += [rollout.input for rollout in claimed]
        return taken

    taken = await asyncio.gather(*(claimer(n) for n in range(16)))
    assert sorted(n for several in taken for n in several) == list(range(400))


async def test_a_requeued_rollout_keeps_its_old_place(store: Store):
    first = await enqueue_and_claim(store, "first")
    await store.enqueue_rollout("second")
    await store.enqueue_rollout("urgent", priority=1)
    await finish(store, first, "failed")
    assert [(await claim(store)).input for _ in range(3)] == ["urgent", "first", "second"]


async def test_a_claim_repeated_with_its_request_id_returns_what_it_claimed(store: Store):
    for n in range(4):
        await store.enqueue_rollout(n, priority=n)
    first = await store.dequeue_many_rollouts(2, worker_id="w", request_id="q1")
    again = await store.dequeue_many_rollouts(2, worker_id="w", request_id="q1")
    assert again == first
    other = await store.dequeue_many_rollouts(2, worker_id="w", request_id="q2")
    assert [rollout.input for rollout in (*first, *other)] == [3, 2, 1, 0]


async def test_a_claim_repeated_while_the_first_is_still_under_way_returns_the_same(store: Store):
    for n in range(12):
        await store.enqueue_rollout(n)
    claims = [store.dequeue_many_rollouts(2, worker_id="w", request_id=f"q{n % 3}") for n in range(9)]
    plain = [store.dequeue_many_rollouts(1, worker_id="w") for _ in range(8)]
    results = await asyncio.gather(*claims, *plain)
    assert results[0:3] == results[3:6] == results[6:9]
    inputs = [rollout.input for claimed in (*results[:3], *results[9:]) for rollout in claimed]
    assert sorted(inputs) == list(range(12))


async def test_a_claim_repeated_through_another_connection_returns_the_same(durable_url, clock):
    async with open_store(durable_url, clock=clock) as one, open_store(durable_url, clock=clock) as two:
        for n in range(40):
            await one.enqueue_rollout(n)
        for n in range(10):
            claims = [store.dequeue_many_rollouts(2, worker_id="w", request_id=f"q{n}") for store in (one, two)]
            first, second = await asyncio.gather(*claims)
            assert len(first) == 2
            assert first == second
        assert (await one.statistics()).rollouts[RolloutStatus.QUEUING] == 20


async def test_a_repeated_claim_returns_only_what_is_still_held(store: Store):
    for n in range(3):
        await store.enqueue_rollout(n)
    first, second = await store.dequeue_many_rollouts(2, worker_id="w", request_id="q")
    await finish(store, first)
    assert [r.input for r in await store.dequeue_many_rollouts(2, worker_id="w", request_id="q")] == [1]
    await finish(store, second, "cancelled")
    assert [r.input for r in await store.dequeue_many_rollouts(2, worker_id="w", request_id="q")] == [1, 2]


async def test_enqueueing_the_same_rollout_again_changes_nothing(store: Store):
    request = {"rollout_id": "r", "mode": "test", "tag": "t", "seed": 1, "priority": 2, "metadata": {"a": [1, 2]}}
    first = await store.enqueue_rollout({"x": (1, 2)}, **request)
    assert await store.enqueue_rollout({"x": [1, 2]}, **request) == first
    claimed = await claim(store)
    again = await store.enqueue_rollout({"x": [1, 2]}, **request)
    assert (again.status, again.attempt_id) == (RolloutStatus.PREPARING, claimed.attempt_id)
    await finish(store, claimed, reward=1.0)
    assert (await store.enqueue_rollout({"x": [1, 2]}, **request)).reward == 1.0
    assert await store.dequeue_rollout(worker_id="w") is None


@pytest.mark.parametrize(
    "change",
    [
        {"input": 2},
        {"mode": "val"},
        {"tag": "u"},
        {"seed": 0},
        {"group_id": "g"},
        {"priority": 1},
        {"config": RolloutConfig(max_attempts=9)},
        {"metadata": {"k": 1}},
    ],
    ids=lambda change: next(iter(change)),
)
async def test_an_id_that_stands_for_other_content_is_refused(store: Store, change):
    await store.enqueue_rollout(1, rollout_id="r", tag="t")
    before = await everything(store)
    with pytest.raises(RolloutConflict) as caught:
        await store.enqueue_rollout(**{"input": 1, "rollout_id": "r", "tag": "t", **change})
    assert caught.value.rollout_id == "r"
    assert await everything(store) == before


async def test_many_are_enqueued_in_the_order_given(store: Store):
    requests = [RolloutRequest(input=n, mode=Mode.VAL, metadata={"n": n}) for n in range(100)]
    enqueued = await store.enqueue_many_rollouts(requests)
    assert [rollout.input for rollout in enqueued] == list(range(100))
    assert (await store.query_rollouts()).items == enqueued
    assert await store.enqueue_many_rollouts([]) == ()


async def test_one_conflict_among_many_enqueues_none(store: Store):
    await store.enqueue_rollout("taken", rollout_id="taken")
    requests = [RolloutRequest(input=n, rollout_id=f"r{n}") for n in range(50)]
    requests.insert(25, RolloutRequest(input="other", rollout_id="taken"))
    with pytest.raises(RolloutConflict):
        await store.enqueue_many_rollouts(requests)
    assert [rollout.rollout_id for rollout in await store.query_rollouts()] == ["taken"]


async def test_one_bad_request_among_many_enqueues_none(store: Store):
    requests = [RolloutRequest(input=0), RolloutRequest(input=object()), RolloutRequest(input=1)]
    with pytest.raises(InvalidInput):
        await store.enqueue_many_rollouts(requests)
    with pytest.raises(InvalidInput, match="twice"):
        await store.enqueue_many_rollouts([RolloutRequest(input=n, rollout_id="same") for n in range(2)])
    assert (await store.query_rollouts()).total == 0


async def test_a_partly_repeated_batch_enqueues_the_rest(store: Store):
    requests = [RolloutRequest(input=n, rollout_id=f"r{n}") for n in range(4)]
    await store.enqueue_many_rollouts(requests[:2])
    enqueued = await store.enqueue_many_rollouts(requests)
    assert [rollout.input for rollout in enqueued] == [0, 1, 2, 3]
    assert (await store.query_rollouts()).total == 4


async def test_a_conflict_harms_no_neighbour_that_writes_at_the_same_time(store: Store):
    await store.enqueue_rollout(0, rollout_id="r")

    async def conflict() -> None:
        requests = [RolloutRequest(input="new"), RolloutRequest(input="other", rollout_id="r")]
        with pytest.raises(RolloutConflict):
            await store.enqueue_many_rollouts(requests)

    good = [store.enqueue_rollout(n, rollout_id=f"n{n}") for n in range(1, 40)]
    claims = [store.dequeue_rollout(worker_id=f"w{n}") for n in range(10)]
    await asyncio.gather(*(task for pair in zip(good, [conflict() for _ in good], strict=True) for task in pair))
    await asyncio.gather(*claims, *(conflict() for _ in range(10)))
    assert (await store.query_rollouts()).total == 40
    assert len(await store.query_workers()) == 10


async def test_a_started_rollout_is_claimed_past_the_queue(store: Store):
    waiting = await store.enqueue_rollout("waiting", priority=9)
    started = await store.start_rollout("now", worker_id="me", tag="t", mode="val", seed=4, metadata={"k": "v"})
    assert (started.input, started.worker_id, started.status) == ("now", "me", RolloutStatus.PREPARING)
    assert (started.tag, started.mode, started.seed, started.metadata) == ("t", Mode.VAL, 4, {"k": "v"})
    assert (await claim(store)).rollout_id == waiting.rollout_id
    assert await store.dequeue_rollout(worker_id="w") is None
    assert (await finish(store, started, reward=0.5)).reward == 0.5


async def test_starting_a_rollout_again_returns_the_same_attempt(store: Store):
    started = await store.start_rollout("x", worker_id="me", rollout_id="r")
    assert await store.start_rollout("x", worker_id="me", rollout_id="r") == started
    with pytest.raises(RolloutConflict):
        await store.start_rollout("x", worker_id="somebody else", rollout_id="r")
    with pytest.raises(RolloutConflict):
        await store.start_rollout("y", worker_id="me", rollout_id="r")
    await finish(store, started)
    with pytest.raises(RolloutConflict):
        await store.start_rollout("x", worker_id="me", rollout_id="r")


async def test_a_worker_whose_start_was_refused_can_still_claim_and_is_known(store: Store):
    await store.enqueue_rollout("x", rollout_id="r")
    with pytest.raises(RolloutConflict):
        await store.start_rollout("other", worker_id="me", rollout_id="r")
    claimed = await claim(store, "me")
    (worker,) = await store.query_workers()
    assert (worker.worker_id, worker.attempt_ids) == ("me", (claimed.attempt.attempt_id,))


async def test_a_started_rollout_that_fails_goes_to_the_queue(store: Store):
    started = await store.start_rollout("x", worker_id="me", config=RolloutConfig(max_attempts=2))
    assert (await finish(store, started, "failed")).status is RolloutStatus.REQUEUING
    assert (await claim(store)).rollout_id == started.rollout_id
