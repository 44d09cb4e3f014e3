"""Resources by id and version, and which of them a rollout ran with: the same on every engine."""

import pytest

from outrider.core.errors import InvalidInput, StoreError
from outrider.core.rollout import RolloutConfig
from outrider.store import Store
from outrider.testing import FakeClock


async def test_every_version_of_the_resources_stays_and_can_be_read_by_its_number(store: Store) -> None:
    first = await store.put_resources({"prompt": "one"})
    judge = await store.put_resources({"prompt": "judge"}, resources_id="judge")
    second = await store.put_resources({"prompt": "two"})
    assert [first.version, judge.version, second.version] == [1, 2, 3]
    assert await store.get_resources(1) == first
    assert await store.get_resources(2) == judge
    assert judge.resources_id == "judge"
    assert await store.get_resources(4) is None
    assert await store.get_latest_resources() == second
    assert await store.get_latest_resources(resources_id="judge") == judge
    assert await store.get_latest_resources(resources_id="nobody") is None
    assert (await store.query_resources()).items == (first, judge, second)
    mine = await store.query_resources(resources_id="default", descending=True)
    assert (mine.items, mine.total) == ((second, first), 2)
    page = await store.query_resources(limit=1, offset=1)
    assert (page.items, page.total) == ((judge,), 3)


async def test_an_attempt_says_with_which_resources_it_was_claimed(store: Store) -> None:
    await store.enqueue_rollout("a", rollout_id="before")
    before = await store.dequeue_rollout(worker_id="w")
    assert before is not None
    assert (before.resources_version, before.attempt.resources_version) == (None, None)
    await store.put_resources({"prompt": "one"})
    await store.put_resources({"prompt": "aside"}, resources_id="aside")
    await store.enqueue_rollout("b", rollout_id="b")
    claimed = await store.dequeue_rollout(worker_id="w")
    assert claimed is not None
    assert (claimed.resources_version, claimed.attempt.resources_version) == (1, 1)
    started = await store.start_rollout("c", rollout_id="c", worker_id="w")
    assert started.attempt.resources_version == 1
    await store.put_resources({"prompt": "two"})
    attempt = claimed.attempt
    again = await store.update_attempt("b", attempt.attempt_id, status="failed")
    assert again.resources_version == 1
    retried = await store.dequeue_rollout(worker_id="w")
    assert retried is not None
    assert retried.rollout_id == "b"
    assert retried.resources_version == 3
    ended = await store.update_attempt("b", retried.attempt.attempt_id, status="succeeded")
    assert ended.resources_version == 3
    assert [each.resources_version for each in await store.query_attempts("b")] == [1, 3]
    rollout = await store.get_rollout_by_id("b")
    assert rollout is not None
    assert rollout.resources_version == 3
    assert [each.resources_version for each in (await store.finished_after(0)).items] == [3]


async def test_a_rollout_runs_with_the_version_it_is_pinned_to_at_every_attempt(store: Store) -> None:
    await store.put_resources({"prompt": "one"})
    await store.put_resources({"prompt": "two"})
    pinned = RolloutConfig(resources_version=1)
    rollout = await store.enqueue_rollout("a", rollout_id="a", config=pinned)
    assert rollout.config.resources_version == 1
    for number in (1, 2):
        claimed = await store.dequeue_rollout(worker_id="w", request_id=f"request {number}")
        assert claimed is not None
        assert claimed.config == pinned
        assert claimed.attempt.resources_version == 1
        assert await store.dequeue_rollout(worker_id="w", request_id=f"request {number}") == claimed
        await store.update_attempt("a", claimed.attempt.attempt_id, status="failed")
    assert [each.resources_version for each in await store.query_attempts("a")] == [1, 1]
    assert await store.enqueue_rollout("a", rollout_id="a", config=pinned) == await store.get_rollout_by_id("a")


async def test_a_version_that_was_not_published_is_refused(store: Store) -> None:
    config = RolloutConfig(resources_version=7)
    with pytest.raises(InvalidInput, match="resources_version is 7, which was not published"):
        await store.enqueue_rollout("a", config=config)
    with pytest.raises(InvalidInput):
        await store.start_rollout("a", worker_id="w", config=config)
    await store.enqueue_rollout("a", rollout_id="a")
    with pytest.raises(InvalidInput):
        await store.update_rollout("a", config=config)
    assert (await store.query_rollouts()).total == 1


@pytest.mark.parametrize("version", [0, -1, 2**31, 1.0, "1", True])
def test_a_number_that_cannot_be_a_version_is_refused(version: int) -> None:
    with pytest.raises(InvalidInput, match="resources_version"):
        RolloutConfig(resources_version=version)


async def test_resources_that_are_too_large_or_badly_named_are_refused(store: Store) -> None:
    with pytest.raises(InvalidInput, match="16777216"):
        await store.put_resources({"weights": b"\0" * (16 << 20)})
    for name in ("", "x" * 513, "a\0b"):
        with pytest.raises(InvalidInput, match="resources_id"):
            await store.put_resources({}, resources_id=name)
    with pytest.raises(InvalidInput, match="version"):
        await store.get_resources(0)
    assert (await store.query_resources()).total == 0


async def test_a_worker_says_what_it_has_done_and_what_it_runs(store: Store, clock: FakeClock) -> None:
    for number in range(4):
        await store.enqueue_rollout(number, rollout_id=f"r{number}", config=RolloutConfig(max_attempts=1))
    claimed = await store.dequeue_many_rollouts(4, worker_id="w")
    first = clock.time()
    (worker,) = await store.query_workers()
    assert (worker.n_succeeded, worker.n_failed, worker.stats) == (0, 0, {})
    assert worker.busy_since is not None
    assert abs(worker.busy_since.timestamp() - first) < 60
    assert sorted(worker.rollout_ids) == ["r0", "r1", "r2", "r3"]
    assert dict(zip(worker.attempt_ids, worker.rollout_ids, strict=True)) == {
        one.attempt.attempt_id: one.rollout_id for one in claimed
    }
    for one, status in zip(claimed, ("succeeded", "failed", "timeout", "cancelled"), strict=True):
        await store.update_attempt(one.rollout_id, one.attempt.attempt_id, status=status)
        await store.query_workers()  # counts what was reported up to now
    await store.update_attempt("r0", claimed[0].attempt.attempt_id, status="succeeded")  # once more
    (worker,) = await store.query_workers()
    assert (worker.n_succeeded, worker.n_failed) == (1, 2)
    ends = [(await store.query_attempts(one.rollout_id))[-1].ended_at for one in claimed[:3]]
    assert worker.last_ended_at == max(filter(None, ends))
    assert (worker.busy_since, worker.rollout_ids) == (None, ())
    await store.update_attempt("r0", claimed[0].attempt.attempt_id, status="succeeded")  # after it was counted
    (worker,) = await store.query_workers()
    assert (worker.n_succeeded, worker.n_failed) == (1, 2)


async def test_what_a_worker_says_of_itself_is_shown(store: Store) -> None:
    await store.heartbeat("w", stats={"gpu": 0.5, "tags": ["a"]})
    await store.heartbeat("w")
    (worker,) = await store.query_workers()
    assert worker.stats == {"gpu": 0.5, "tags": ["a"]}
    await store.heartbeat("w", stats={})
    assert (await store.query_workers())[0].stats == {}
    with pytest.raises(InvalidInput, match="stats of a worker"):
        await store.heartbeat("w", stats={"big": "x" * (1 << 16)})
    with pytest.raises(InvalidInput, match="stats of a worker"):
        await store.heartbeat("w", stats=["no", "mapping"])  # type: ignore[arg-type]


async def test_what_is_noted_on_an_attempt_stays_with_it(store: Store) -> None:
    await store.enqueue_rollout("a", rollout_id="a")
    claimed = await store.dequeue_rollout(worker_id="w")
    assert claimed is not None
    assert claimed.attempt.metadata == {}
    first = claimed.attempt.attempt_id
    noted = await store.update_attempt("a", first, metadata={"step": 1, "host": "x"})
    assert noted.metadata == {"step": 1, "host": "x"}
    assert (await store.update_attempt("a", first, status="running")).metadata == {"step": 1, "host": "x"}
    assert (await store.query_attempts("a"))[0].metadata == {"step": 1, "host": "x"}
    assert (await store.update_attempt("a", first, status="failed")).metadata == {"step": 1, "host": "x"}
    again = await store.dequeue_rollout(worker_id="w")
    assert again is not None
    assert again.attempt.metadata == {}
    second = again.attempt.attempt_id
    await store.update_attempt("a", second, metadata={"step": 2})
    ended = await store.update_attempt("a", second, status="succeeded", reward=1.0, metadata={"step": 3})
    assert ended.metadata == {"step": 3}
    assert [each.metadata for each in await store.query_attempts("a")] == [{"step": 1, "host": "x"}, {"step": 3}]


async def test_metadata_of_an_attempt_that_lost_its_lease_is_refused(store: Store) -> None:
    await store.enqueue_rollout("a", rollout_id="a")
    claimed = await store.dequeue_rollout(worker_id="w")
    assert claimed is not None
    first = claimed.attempt.attempt_id
    await store.update_attempt("a", first, metadata={"by": "first"})
    await store.revoke_leases("w", reason="it died")
    again = await store.dequeue_rollout(worker_id="v")
    assert again is not None
    with pytest.raises(StoreError, match="lost its lease"):
        await store.update_attempt("a", first, metadata={"by": "late"})
    assert [each.metadata for each in await store.query_attempts("a")] == [{"by": "first"}, {}]
    with pytest.raises(InvalidInput, match="metadata of an attempt"):
        await store.update_attempt("a", again.attempt.attempt_id, metadata={"big": b"x" * (1 << 16)})
    with pytest.raises(InvalidInput, match="metadata of an attempt"):
        await store.update_attempt("a", again.attempt.attempt_id, metadata="text")  # type: ignore[arg-type]
