"""Leases: heartbeats, expiry without traffic, revoking and cancelling."""

import asyncio

import pytest

from outrider.core.attempt import LostLease
from outrider.core.errors import Boundary, LeaseLost, UnknownId
from outrider.core.rollout import AttemptedRollout, RolloutConfig
from outrider.core.status import AttemptStatus, RolloutStatus
from outrider.store import Revoked, Store
from outrider.testing import FakeClock
from store_moves import claim, enqueue_and_claim, everything, finish, lease, log, swept, the, until


async def end_of(store: Store, claimed: AttemptedRollout) -> tuple[AttemptStatus, Boundary, str]:
    await until(store, claimed.rollout_id, lambda rollout: not rollout.status.is_live)
    attempt = await store.get_latest_attempt(claimed.rollout_id)
    assert attempt is not None
    assert attempt.failure is not None
    return attempt.status, attempt.failure.boundary, attempt.failure.message


async def test_a_silent_worker_loses_its_lease_without_any_traffic(store: Store, clock: FakeClock):
    claimed = await enqueue_and_claim(store, config=lease(30))
    await swept(store, clock, 29.5)
    assert (await the(store, claimed.rollout_id)).status is RolloutStatus.PREPARING
    await clock.advance(0.5)
    status, boundary, message = await end_of(store, claimed)
    assert (status, boundary) == (AttemptStatus.UNRESPONSIVE, Boundary.WORKER)
    assert "worker w" in message
    rollout = await the(store, claimed.rollout_id)
    assert (rollout.status, rollout.n_failures) == (RolloutStatus.REQUEUING, 1)


async def test_an_attempt_that_takes_too_long_is_stopped_however_often_it_reports(store: Store, clock: FakeClock):
    claimed = await enqueue_and_claim(store, config=lease(30, timeout=60))
    id = claimed.attempt.attempt_id
    await store.update_attempt(claimed.rollout_id, id, status="running")
    for _ in range(4):
        await clock.advance(14)
        assert await store.heartbeat("w", [id]) == ()
    attempt = await store.get_latest_attempt(claimed.rollout_id)
    assert attempt is not None
    assert attempt.lease_expires_at is not None
    assert (attempt.lease_expires_at - attempt.started_at).total_seconds() == 60
    await clock.advance(4)
    status, boundary, message = await end_of(store, claimed)
    assert (status, boundary) == (AttemptStatus.TIMEOUT, Boundary.LIMIT)
    assert "60" in message
    assert await store.heartbeat("w", [id]) == (LostLease(attempt_id=id, reason="timeout"),)


async def test_a_thousand_leases_expire_together(store: Store, clock: FakeClock):
    for n in range(1000):
        await store.start_rollout(n, worker_id="w", config=RolloutConfig(unresponsive_seconds=5, max_attempts=1))
    await clock.advance(5)
    for rollout in (await store.query_rollouts(limit=3)).items:
        await until(store, rollout.rollout_id, lambda rollout: rollout.status is RolloutStatus.FAILED)
    await store.wait_for_rollouts([rollout.rollout_id for rollout in await store.query_rollouts()])
    assert (await store.statistics()).rollouts[RolloutStatus.FAILED] == 1000


async def test_leases_that_have_ended_are_taken_in_the_order_they_were_due(store: Store, clock: FakeClock):
    seconds = [7, 3, 9, 5]
    for n in seconds:
        await store.start_rollout(n, worker_id="w", config=RolloutConfig(unresponsive_seconds=n, max_attempts=1))
    await clock.advance(10)
    ended = await store.wait_for_rollouts([rollout.rollout_id for rollout in await store.query_rollouts()])
    assert [rollout.input for rollout in ended] == seconds
    assert [rollout.input for rollout in (await store.finished_after()).items] == sorted(seconds)


async def test_a_lease_granted_while_others_are_long_expires_in_time(store: Store, clock: FakeClock):
    await enqueue_and_claim(store, "long", config=lease(3600))
    short = await enqueue_and_claim(store, "short", config=lease(2))
    await clock.advance(2)
    assert (await end_of(store, short))[0] is AttemptStatus.UNRESPONSIVE


async def test_a_heartbeat_renews_only_the_attempts_it_names(store: Store, clock: FakeClock):
    named, unnamed = [await enqueue_and_claim(store, name, config=lease(30)) for name in ("named", "unnamed")]
    await clock.advance(20)
    assert await store.heartbeat("w", [named.attempt.attempt_id]) == ()
    renewed = await store.get_latest_attempt(named.rollout_id)
    assert renewed is not None
    assert renewed.lease_expires_at is not None
    assert renewed.lease_expires_at.timestamp() == clock.time() + 30
    assert renewed.last_heartbeat_at.timestamp() == clock.time()
    await clock.advance(10)
    assert (await end_of(store, unnamed))[0] is AttemptStatus.UNRESPONSIVE
    assert (await the(store, named.rollout_id)).status is RolloutStatus.PREPARING


async def test_a_heartbeat_tells_which_leases_are_lost_and_why(store: Store, clock: FakeClock):
    kept, cancelled, silent, done = [
        await enqueue_and_claim(store, n, config=lease(5 if n == 2 else 300)) for n in range(4)
    ]
    await store.cancel_rollouts([cancelled.rollout_id])
    await clock.advance(5)
    await end_of(store, silent)
    await finish(store, done)
    ids = [claimed.attempt.attempt_id for claimed in (kept, cancelled, silent, done)]
    lost = {one.attempt_id: one.reason for one in await store.heartbeat("w", [*ids, "at-nobody"])}
    assert lost == {ids[1]: "cancelled", ids[2]: "unresponsive", ids[3]: "succeeded", "at-nobody": "no such attempt"}


@pytest.mark.parametrize(
    "id", ["x", "at-", f"at-{'f' * 30}-1-00", "at--1-1-00", "at-1_0-1", "at-0-1-00", "at-1-9-00000000"]
)
async def test_a_made_up_attempt_is_lost_and_harms_nothing(store: Store, id: str):
    claimed = await enqueue_and_claim(store)
    lost = await asyncio.wait_for(store.heartbeat("w", [id, claimed.attempt.attempt_id]), 10)
    assert lost == (LostLease(attempt_id=id, reason="no such attempt"),)
    with pytest.raises(LeaseLost, match="no such attempt"):
        await asyncio.wait_for(store.update_attempt(claimed.rollout_id, id, status="succeeded"), 10)
    await finish(store, claimed)


async def test_a_heartbeat_cannot_renew_the_lease_of_another_worker(store: Store, clock: FakeClock):
    claimed = await enqueue_and_claim(store, config=lease(30))
    await clock.advance(20)
    lost = await store.heartbeat("thief", [claimed.attempt.attempt_id])
    assert [one.attempt_id for one in lost] == [claimed.attempt.attempt_id]
    attempt = await store.get_latest_attempt(claimed.rollout_id)
    assert attempt is not None
    assert attempt.lease_expires_at == claimed.attempt.lease_expires_at


async def test_a_waiting_heartbeat_wakes_at_once_on_cancel(store: Store, parked):
    claimed = await enqueue_and_claim(store)
    task = await parked(store.heartbeat("w", [claimed.attempt.attempt_id], wait=60))
    await store.cancel_rollouts([claimed.rollout_id])
    lost = await asyncio.wait_for(task, 10)
    assert lost == (LostLease(attempt_id=claimed.attempt.attempt_id, reason="cancelled"),)


async def test_a_waiting_heartbeat_wakes_when_a_lease_times_out(store: Store, parked, clock: FakeClock):
    claimed = await enqueue_and_claim(store, config=lease(300, timeout=10))
    task = await parked(store.heartbeat("w", [claimed.attempt.attempt_id], wait=60))
    await clock.advance(10)
    assert [lost.reason for lost in await asyncio.wait_for(task, 10)] == ["timeout"]


async def test_a_cancel_at_the_very_moment_of_a_heartbeat_is_not_missed(store: Store):
    for _ in range(30):
        claimed = await enqueue_and_claim(store)
        beat = asyncio.ensure_future(store.heartbeat("w", [claimed.attempt.attempt_id], wait=3000))
        await asyncio.sleep(0)
        await store.cancel_rollouts([claimed.rollout_id])
        assert len(await asyncio.wait_for(beat, 10)) == 1


async def test_a_waiting_heartbeat_renews_when_it_begins_and_ends_at_its_deadline(
    store: Store, parked, clock: FakeClock
):
    claimed = await enqueue_and_claim(store, config=lease(30))
    await clock.advance(20)
    task = await parked(store.heartbeat("w", [claimed.attempt.attempt_id], wait=20))
    await clock.advance(20)
    assert await asyncio.wait_for(task, 10) == ()
    await swept(store, clock, 5)
    assert (await the(store, claimed.rollout_id)).status is RolloutStatus.PREPARING


async def test_a_waiting_heartbeat_watches_attempts_that_are_claimed_meanwhile(store: Store, parked):
    first = await enqueue_and_claim(store, "first")
    running = {first.attempt.attempt_id: "first"}
    task = await parked(store.heartbeat("w", running.keys(), wait=60))
    second = await enqueue_and_claim(store, "second")
    running[second.attempt.attempt_id] = "second"
    del running[first.attempt.attempt_id]
    await finish(store, first)
    await store.cancel_rollouts([second.rollout_id])
    assert [lost.attempt_id for lost in await asyncio.wait_for(task, 10)] == [second.attempt.attempt_id]


async def test_cancelling_what_waits_ends_it(store: Store):
    await store.enqueue_rollout("x", rollout_id="r")
    assert await store.cancel_rollouts(["r"]) == ("r",)
    rollout = await the(store, "r")
    assert (rollout.status, rollout.n_attempts, rollout.attempt_id) == (RolloutStatus.CANCELLED, 0, None)
    assert await store.dequeue_rollout(worker_id="w") is None
    assert [ended.rollout_id for ended in (await store.finished_after()).items] == ["r"]


async def test_cancelling_what_runs_ends_its_attempt_too(store: Store):
    claimed = await enqueue_and_claim(store)
    id = claimed.attempt.attempt_id
    await store.update_attempt(claimed.rollout_id, id, status="running")
    assert await store.cancel_rollouts([claimed.rollout_id]) == (claimed.rollout_id,)
    attempt = await store.get_latest_attempt(claimed.rollout_id)
    assert attempt is not None
    assert attempt.status is AttemptStatus.CANCELLED
    assert (await the(store, claimed.rollout_id)).n_failures == 0
    for write in (store.append_events(claimed.rollout_id, id, [log()]), finish(store, claimed, reward=1.0)):
        with pytest.raises(LeaseLost, match="cancelled"):
            await write


async def test_cancelling_what_is_queued_again_ends_it(store: Store):
    await finish(store, await enqueue_and_claim(store, rollout_id="r"), "failed")
    assert await store.cancel_rollouts(["r"]) == ("r",)
    assert await store.dequeue_rollout(worker_id="w") is None
    assert (await the(store, "r")).n_attempts == 1


async def test_cancelling_returns_what_this_call_cancelled(store: Store):
    await finish(store, await enqueue_and_claim(store, rollout_id="done"))
    for id in ("a", "b"):
        await store.enqueue_rollout(id, rollout_id=id)
    assert await store.cancel_rollouts(["b", "done", "a", "b"]) == ("b", "a")
    assert await store.cancel_rollouts(["a", "b", "done"]) == ()
    assert await store.cancel_rollouts([]) == ()


async def test_cancelling_an_unknown_rollout_cancels_none(store: Store):
    await store.enqueue_rollout("a", rollout_id="a")
    before = await everything(store)
    with pytest.raises(UnknownId):
        await store.cancel_rollouts(["a", "nobody"])
    assert await everything(store) == before


async def test_the_leases_of_a_dead_worker_can_be_taken_at_once(store: Store, parked):
    dead = [await enqueue_and_claim(store, n, worker_id="dead") for n in range(2)]
    alive = await enqueue_and_claim(store, "alive", worker_id="alive")
    task = await parked(store.heartbeat("dead", [dead[0].attempt.attempt_id], wait=60))
    taken = await store.revoke_leases("dead", reason="worker dead was killed (SIGKILL)")
    assert sorted(taken) == sorted(claimed.attempt.attempt_id for claimed in dead)
    assert [lost.reason for lost in await asyncio.wait_for(task, 10)] == ["unresponsive"]
    for claimed in dead:
        assert await end_of(store, claimed) == (
            AttemptStatus.UNRESPONSIVE,
            Boundary.WORKER,
            "worker dead was killed (SIGKILL)",
        )
        with pytest.raises(LeaseLost):
            await finish(store, claimed)
    assert (await the(store, alive.rollout_id)).status is RolloutStatus.PREPARING
    assert [(await claim(store)).input for _ in range(2)] == [0, 1]
    assert await store.revoke_leases("dead", reason="again") == ()
    assert await store.revoke_leases("nobody", reason="never seen") == ()


async def test_rollouts_that_were_in_a_dead_worker_together_are_set_aside_and_do_not_count(store: Store):
    together = [await enqueue_and_claim(store, n, worker_id="dead", tag="a") for n in range(2)]
    other = await store.enqueue_rollout("other")
    assert (await store.statistics()).n_set_aside == 0
    await store.revoke_leases("dead", reason="worker dead was killed (SIGSEGV)", how=Revoked.ISOLATED)

    for claimed in together:
        assert await end_of(store, claimed) == (
            AttemptStatus.CANCELLED,
            Boundary.WORKER,
            "worker dead was killed (SIGSEGV)",
        )
        assert (await the(store, claimed.rollout_id)).n_failures == 0
        assert (await the(store, claimed.rollout_id)).is_set_aside
    assert (await store.statistics()).n_set_aside == 2
    assert [one.is_set_aside for one in await store.query_rollouts()] == [True, True, False]
    assert [found.rollout_id for found in await store.dequeue_many_rollouts(9, worker_id="w")] == [other.rollout_id]
    assert await store.dequeue_many_rollouts(9, worker_id="w", tags=["a"]) == ()
    assert await store.dequeue_many_rollouts(9, worker_id="w", mode="train") == ()
    assert await store.dequeue_many_rollouts(9, worker_id="w", tags=["b"], isolated=True) == ()
    assert await store.dequeue_many_rollouts(9, worker_id="w", mode="val", isolated=True) == ()
    (first,) = await store.dequeue_many_rollouts(1, worker_id="alone", isolated=True)
    (second,) = await store.dequeue_many_rollouts(1, worker_id="as well", tags=["a"], mode="train", isolated=True)
    assert [first.input, second.input] == [0, 1]
    assert not (await the(store, first.rollout_id)).is_set_aside
    assert (await store.statistics()).n_set_aside == 0

    await store.revoke_leases("alone", reason="it died again", how=Revoked.ISOLATED)
    assert await end_of(store, first) == (AttemptStatus.UNRESPONSIVE, Boundary.WORKER, "it died again")
    assert (await the(store, first.rollout_id)).n_failures == 1
    assert (await the(store, first.rollout_id)).is_set_aside
    assert (await store.statistics()).n_set_aside == 1
    assert await store.dequeue_many_rollouts(9, worker_id="w") == ()
    (again,) = await store.dequeue_many_rollouts(9, worker_id="w", mode="train", isolated=True)
    assert again.rollout_id == first.rollout_id


async def test_rollouts_that_had_no_part_in_the_end_of_their_worker_are_handed_back(store: Store):
    claimed = await enqueue_and_claim(store, 0, worker_id="dead")
    await store.revoke_leases("dead", reason="another one blocked it", how=Revoked.HANDED_BACK)
    assert await end_of(store, claimed) == (AttemptStatus.CANCELLED, Boundary.WORKER, "another one blocked it")
    assert (await the(store, claimed.rollout_id)).n_failures == 0
    assert (await claim(store)).rollout_id == claimed.rollout_id
