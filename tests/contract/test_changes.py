"""Changing a rollout while it waits: whole or not at all, whatever claims it meanwhile."""

import asyncio

import pytest

from outrider.core.errors import InvalidInput, RolloutTaken, StoreError, UnknownId
from outrider.core.rollout import RolloutConfig
from outrider.store import Store, open_store


async def test_all_of_a_waiting_rollout_can_be_changed_but_its_id_group_and_place(store: Store) -> None:
    before = await store.enqueue_rollout("a", rollout_id="a", tag="x", seed=1, group_id="g", metadata={"k": 1})
    config = RolloutConfig(max_attempts=1, unresponsive_seconds=5.0)
    changed = await store.update_rollout(
        "a", input={"q": 2}, mode="val", tag="y", seed=3, priority=4, config=config, metadata={"k": 2}
    )
    assert changed == await store.get_rollout_by_id("a")
    assert (changed.input, changed.mode, changed.tag, changed.seed) == ({"q": 2}, "val", "y", 3)
    assert (changed.priority, changed.config, changed.metadata) == (4, config, {"k": 2})
    assert (changed.group_id, changed.enqueued_at, changed.status) == ("g", before.enqueued_at, "queuing")
    assert await store.dequeue_rollout(worker_id="w", tags=["x"]) is None
    assert await store.dequeue_rollout(worker_id="w", tags=["y"], mode="train") is None
    claimed = await store.dequeue_rollout(worker_id="w", tags=["y"], mode="val")
    assert claimed is not None
    assert (claimed.input, claimed.config, claimed.metadata) == ({"q": 2}, config, {"k": 2})
    assert claimed.attempt.lease_expires_at is not None
    lease = claimed.attempt.lease_expires_at - claimed.attempt.started_at
    assert lease.total_seconds() == pytest.approx(5.0)


async def test_what_is_not_given_stays_and_none_takes_a_tag_or_seed_away(store: Store) -> None:
    before = await store.enqueue_rollout("a", rollout_id="a", tag="x", seed=1)
    assert await store.update_rollout("a") == before
    changed = await store.update_rollout("a", tag=None, seed=None)
    assert (changed.tag, changed.seed, changed.input) == (None, None, "a")
    assert (await store.query_rollouts(tag="x")).total == 0


async def test_a_change_of_priority_takes_effect_and_the_place_stays(store: Store) -> None:
    for name in "abcd":
        await store.enqueue_rollout(name, rollout_id=name)
    await store.update_rollout("c", priority=1)
    await store.update_rollout("d", priority=2)
    await store.update_rollout("d", priority=0)
    await store.update_rollout("a", tag="t")
    await store.update_rollout("a", tag=None)
    claimed = await store.dequeue_many_rollouts(4, worker_id="w")
    assert [one.rollout_id for one in claimed] == ["c", "a", "b", "d"]
    assert await store.dequeue_rollout(worker_id="w") is None


async def test_a_rollout_that_was_claimed_or_has_ended_is_not_changed(store: Store) -> None:
    await store.enqueue_rollout("a", rollout_id="a")
    claimed = await store.dequeue_rollout(worker_id="w")
    assert claimed is not None
    for status in ("preparing", "running"):
        if status == "running":
            await store.update_attempt("a", claimed.attempt.attempt_id, status=status)
        with pytest.raises(RolloutTaken, match=f"rollout 'a' is {status}.*cancel it") as refused:
            await store.update_rollout("a", priority=1)
        assert (refused.value.rollout_id, refused.value.status) == ("a", status)
    await store.update_attempt("a", claimed.attempt.attempt_id, status="succeeded")
    with pytest.raises(RolloutTaken, match="is succeeded"):
        await store.update_rollout("a", priority=1)
    rollout = await store.get_rollout_by_id("a")
    assert rollout is not None
    assert (rollout.input, rollout.priority) == ("a", 0)
    with pytest.raises(UnknownId):
        await store.update_rollout("nobody", priority=1)


async def test_a_rollout_that_waits_to_be_tried_again_can_be_changed(store: Store) -> None:
    await store.enqueue_rollout("a", rollout_id="a")
    claimed = await store.dequeue_rollout(worker_id="w")
    assert claimed is not None
    await store.update_attempt("a", claimed.attempt.attempt_id, status="failed")
    changed = await store.update_rollout("a", input="b", config=RolloutConfig(max_attempts=2))
    assert (changed.status, changed.n_failures) == ("requeuing", 1)
    again = await store.dequeue_rollout(worker_id="w")
    assert again is not None
    assert again.input == "b"
    await store.update_attempt("a", again.attempt.attempt_id, status="failed")
    rollout = await store.get_rollout_by_id("a")
    assert rollout is not None
    assert rollout.status == "failed"


async def test_a_rollout_that_is_set_aside_stays_so_when_it_is_changed(store: Store) -> None:
    for name in "ab":
        await store.enqueue_rollout(name, rollout_id=name)
    await store.dequeue_many_rollouts(2, worker_id="w")
    await store.revoke_leases("w", reason="it died", how="isolated")  # type: ignore[arg-type]
    assert (await store.update_rollout("a", tag="t", priority=1)).is_set_aside
    assert (await store.statistics()).n_set_aside == 2
    assert await store.dequeue_many_rollouts(2, worker_id="v") == ()
    claimed = await store.dequeue_many_rollouts(2, worker_id="v", isolated=True)
    assert [one.rollout_id for one in claimed] == ["a", "b"]


async def test_what_cannot_be_stored_is_refused_and_changes_nothing(store: Store) -> None:
    before = await store.enqueue_rollout("a", rollout_id="a")
    for wrong in (
        {"input": object()},
        {"mode": "later"},
        {"tag": ""},
        {"seed": 2**64},
        {"priority": 2**40},
        {"priority": None},
        {"config": None},
        {"metadata": [1]},
    ):
        with pytest.raises(InvalidInput):
            await store.update_rollout("a", **wrong)  # type: ignore[arg-type]
    assert await store.get_rollout_by_id("a") == before


async def test_a_claim_that_waits_for_a_tag_is_woken_by_a_change_to_it(store: Store, parked):
    await store.enqueue_rollout("a", rollout_id="a", tag="x")
    waiting = await parked(store.dequeue_rollout(worker_id="w", tags=["y"], wait=60.0))
    await store.update_rollout("a", tag="y")
    async with asyncio.timeout(30):
        claimed = await waiting
    assert claimed is not None
    assert claimed.rollout_id == "a"


async def test_a_change_beside_a_claim_comes_before_it_or_is_refused(durable_url: str) -> None:
    """Two processes' worth of stores: whoever claims sees the change whole, or the change is refused."""
    n_rollouts = 40
    async with open_store(durable_url) as store, open_store(durable_url) as other:
        for number in range(n_rollouts):
            await store.enqueue_rollout(0, rollout_id=f"r{number}", metadata={"n": 0})

        async def change(number: int) -> bool:
            try:
                await other.update_rollout(f"r{number}", input=1, metadata={"n": 1})
            except RolloutTaken:
                return False
            return True

        async def claim() -> dict[str, tuple[int, int]]:
            claimed: dict[str, tuple[int, int]] = {}
            while len(claimed) < n_rollouts:
                taken = await store.dequeue_many_rollouts(3, worker_id="w", wait=5.0)
                claimed |= {one.rollout_id: (one.input, one.metadata["n"]) for one in taken}
            return claimed

        async with asyncio.timeout(60):
            claimed, *changed = await asyncio.gather(claim(), *map(change, range(n_rollouts)))
    assert claimed == {f"r{number}": (1, 1) if changed[number] else (0, 0) for number in range(n_rollouts)}


async def test_a_store_that_is_only_read_is_not_changed(durable_url: str) -> None:
    async with open_store(durable_url) as store:
        await store.enqueue_rollout("a", rollout_id="a")
    async with open_store(durable_url, read_only=True) as store:
        with pytest.raises(StoreError, match="reading only"):
            await store.update_rollout("a", priority=1)
