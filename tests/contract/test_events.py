"""Events: appended in order, once, by the attempt that holds the lease."""

from datetime import timedelta

import pytest

from outrider.core.errors import InvalidInput, LeaseLost, UnknownId
from outrider.core.event import Event, EventKind
from outrider.core.rollout import RolloutConfig
from outrider.store import Store
from outrider.testing import FakeClock
from store_moves import AT, claim, enqueue_and_claim, everything, finish, log, the, until


async def test_events_are_read_back_in_the_order_they_were_appended(store: Store):
    claimed = await enqueue_and_claim(store)
    id = claimed.attempt.attempt_id
    data = {"tokens": b"\x01\x00\x00\x00", "logprobs": [-0.5, None], "nested": {"ü": True}}
    kinds = list(EventKind)
    events = [
        Event(kind=kind, at=AT + timedelta(microseconds=n), name=f"n{n}", data=data) for n, kind in enumerate(kinds)
    ]
    assert await store.append_events(claimed.rollout_id, id, events[:2]) == 2
    assert await store.append_events(claimed.rollout_id, id, []) == 2
    assert await store.append_events(claimed.rollout_id, id, events[2:]) == len(events)
    found = (await store.query_events(claimed.rollout_id)).items
    assert [event.index for event in found] == list(range(len(events)))
    assert [(event.rollout_id, event.attempt_id) for event in found] == [(claimed.rollout_id, id)] * len(events)
    assert [(e.kind, e.at, e.name, e.data) for e in found] == [(e.kind, e.at, e.name, e.data) for e in events]


async def test_appending_again_at_the_same_index_changes_nothing(store: Store):
    claimed = await enqueue_and_claim(store)
    id = claimed.attempt.attempt_id
    assert await store.append_events(claimed.rollout_id, id, [log("a"), log("b")], first_index=0) == 2
    before = await everything(store)
    assert await store.append_events(claimed.rollout_id, id, [log("a"), log("b")], first_index=0) == 2
    assert await store.append_events(claimed.rollout_id, id, [log("a")], first_index=0) == 2
    assert await everything(store) == before
    assert await store.append_events(claimed.rollout_id, id, [log("b"), log("c")], first_index=1) == 3
    assert [event.name for event in await store.query_events(claimed.rollout_id)] == ["a", "b", "c"]


async def test_events_are_filtered_by_kind_and_paged(store: Store):
    claimed = await enqueue_and_claim(store)
    events = [Event(kind="turn" if n % 2 else "step", at=AT, name=str(n)) for n in range(10)]
    await store.append_events(claimed.rollout_id, claimed.attempt.attempt_id, events)
    turns = await store.query_events(claimed.rollout_id, kind="turn", limit=2, offset=1)
    assert ([event.name for event in turns], turns.total, turns.limit, turns.offset) == (["3", "5"], 5, 2, 1)
    assert len(await store.query_events(claimed.rollout_id, kind=EventKind.REWARD)) == 0
    assert (await store.query_events(claimed.rollout_id, limit=0)).total == 10
    assert (await store.query_events(claimed.rollout_id, offset=20)).items == ()


async def test_events_are_those_of_the_latest_attempt_or_of_a_named_one(store: Store):
    first = await enqueue_and_claim(store)
    await finish(store, first, "failed", events=[log("first")])
    second = await claim(store)
    assert len(await store.query_events(first.rollout_id)) == 0
    await store.append_events(second.rollout_id, second.attempt.attempt_id, [log("second")])
    assert [event.name for event in await store.query_events(first.rollout_id)] == ["second"]
    named = await store.query_events(first.rollout_id, attempt_id=first.attempt.attempt_id)
    assert [event.name for event in named] == ["first"]


async def test_a_rollout_that_was_never_claimed_has_no_events(store: Store):
    rollout = await store.enqueue_rollout("x")
    assert (await store.query_events(rollout.rollout_id)).total == 0
    with pytest.raises(UnknownId):
        await store.query_events(rollout.rollout_id, attempt_id="at-nobody")
    with pytest.raises(UnknownId):
        await store.query_events("ro-nobody")


async def test_the_events_of_another_rollouts_attempt_are_not_found(store: Store):
    a, b = await enqueue_and_claim(store, "a"), await enqueue_and_claim(store, "b")
    with pytest.raises(UnknownId):
        await store.query_events(a.rollout_id, attempt_id=b.attempt.attempt_id)


async def test_the_last_events_are_appended_in_the_same_step_as_the_finish(store: Store):
    claimed = await enqueue_and_claim(store)
    id = claimed.attempt.attempt_id
    await store.append_events(claimed.rollout_id, id, [log("a")])
    await store.update_attempt(
        claimed.rollout_id, id, status="succeeded", reward=1.0, events=[log("a"), log("b")], first_index=0
    )
    assert [event.name for event in await store.query_events(claimed.rollout_id)] == ["a", "b"]


async def test_a_finish_with_an_event_that_cannot_be_stored_does_not_finish(store: Store):
    claimed = await enqueue_and_claim(store)
    before = await everything(store)
    with pytest.raises(InvalidInput):
        await finish(store, claimed, events=[log("good"), log("bad", value=object())])
    with pytest.raises(InvalidInput):
        await store.append_events(claimed.rollout_id, claimed.attempt.attempt_id, [log("good"), log("bad", x={1})])
    assert await everything(store) == before
    assert (await finish(store, claimed, reward=1.0)).reward == 1.0


async def test_a_late_writer_appends_nothing(store: Store, clock: FakeClock):
    claimed = await enqueue_and_claim(store, config=RolloutConfig(unresponsive_seconds=5))
    await store.append_events(claimed.rollout_id, claimed.attempt.attempt_id, [log("in time")])
    await clock.advance(5)
    await until(store, claimed.rollout_id, lambda rollout: rollout.status.is_queued)
    with pytest.raises(LeaseLost):
        await store.append_events(claimed.rollout_id, claimed.attempt.attempt_id, [log("late")])
    assert [event.name for event in await store.query_events(claimed.rollout_id)] == ["in time"]
    assert (await the(store, claimed.rollout_id)).n_attempts == 1


async def test_events_may_come_while_the_attempt_runs_and_with_an_update(store: Store):
    claimed = await enqueue_and_claim(store)
    id = claimed.attempt.attempt_id
    await store.update_attempt(claimed.rollout_id, id, status="running", events=[log("began")])
    await store.update_attempt(claimed.rollout_id, id, events=[log("went on")])
    assert [event.name for event in await store.query_events(claimed.rollout_id)] == ["began", "went on"]
