"""Attempts: fenced reports, final states, and what is tried again."""

import asyncio

import msgspec
import pytest

from outrider.core.attempt import Failure
from outrider.core.errors import Boundary, LeaseLost, UnknownId
from outrider.core.rollout import RolloutConfig
from outrider.core.status import AttemptStatus, RolloutStatus
from outrider.store import Store, open_store
from outrider.testing import FakeClock
from store_moves import claim, enqueue_and_claim, everything, finish, log, the, until

BOOM = Failure(boundary=Boundary.ENV, kind="ValueError", message="boom", stage="env.step", traceback="…")


async def test_an_attempt_runs_and_succeeds(store: Store, clock: FakeClock):
    claimed = await enqueue_and_claim(store, config=RolloutConfig(unresponsive_seconds=1e6))
    id = claimed.attempt.attempt_id
    running = await store.update_attempt(claimed.rollout_id, id, status="running")
    assert (running.status, running.ended_at) == (AttemptStatus.RUNNING, None)
    assert (await the(store, claimed.rollout_id)).status is RolloutStatus.RUNNING
    await clock.advance(3)
    ended = await store.update_attempt(claimed.rollout_id, id, status=AttemptStatus.SUCCEEDED, reward=0.5)
    assert (ended.status, ended.reward, ended.lease_expires_at) == (AttemptStatus.SUCCEEDED, 0.5, None)
    assert ended.ended_at is not None
    assert (ended.ended_at - ended.started_at).total_seconds() == 3
    rollout = await the(store, claimed.rollout_id)
    assert (rollout.status, rollout.reward, rollout.ended_at) == (RolloutStatus.SUCCEEDED, 0.5, ended.ended_at)
    assert await store.get_latest_attempt(claimed.rollout_id) == ended


async def test_a_report_goes_by_what_another_store_has_done_meanwhile(durable_url: str, clock: FakeClock):
    async with open_store(durable_url, clock=clock) as one, open_store(durable_url, clock=clock) as two:
        cancelled, revoked, renewed = [await enqueue_and_claim(one, n, worker_id=f"w{n}") for n in range(3)]
        await two.cancel_rollouts([cancelled.rollout_id])
        await two.revoke_leases("w1", reason="gone")
        await clock.advance(5)
        await two.update_attempt(renewed.rollout_id, renewed.attempt.attempt_id, status="running", worker_id="other")
        assert await two.heartbeat("other", [renewed.attempt.attempt_id]) == ()
        for claimed, why in ((cancelled, "cancelled"), (revoked, "unresponsive")):
            with pytest.raises(LeaseLost, match=why):
                await finish(one, claimed)
        ended = await one.update_attempt(renewed.rollout_id, renewed.attempt.attempt_id, status="succeeded")
        assert (ended.worker_id, ended.last_heartbeat_at.timestamp()) == ("other", clock.time())
        again = await claim(two)
        assert again.rollout_id == revoked.rollout_id
        assert (await finish(two, again)).status is RolloutStatus.SUCCEEDED
        assert [rollout.input for rollout in (await one.finished_after()).items] == [0, 2, 1]


async def test_an_attempt_may_succeed_without_ever_running_and_without_a_reward(store: Store):
    rollout = await finish(store, await enqueue_and_claim(store))
    assert (rollout.status, rollout.reward) == (RolloutStatus.SUCCEEDED, None)


async def test_a_reward_may_be_any_finite_number(store: Store):
    for reward in [0, -1, 1e308, 5e-324, True, -0.0]:
        assert (await finish(store, await enqueue_and_claim(store), reward=reward)).reward == float(reward)


async def test_running_may_be_reported_again(store: Store):
    claimed = await enqueue_and_claim(store)
    id = claimed.attempt.attempt_id
    first = await store.update_attempt(claimed.rollout_id, id, status="running")
    assert await store.update_attempt(claimed.rollout_id, id, status="running") == first
    assert await store.update_attempt(claimed.rollout_id, id) == first


async def test_an_attempt_can_be_passed_to_another_worker(store: Store):
    claimed = await enqueue_and_claim(store)
    id = claimed.attempt.attempt_id
    await store.heartbeat("v")
    passed = await store.update_attempt(claimed.rollout_id, id, worker_id="v")
    assert (passed.worker_id, (await the(store, claimed.rollout_id)).worker_id) == ("v", "v")
    assert await store.heartbeat("v", [id]) == ()
    assert [lost.attempt_id for lost in await store.heartbeat("w", [id])] == [id]


async def test_a_failure_is_recorded_with_its_boundary(store: Store):
    claimed = await enqueue_and_claim(store, config=RolloutConfig(max_attempts=1))
    rollout = await finish(store, claimed, "failed", error=BOOM)
    assert (rollout.status, rollout.failure, rollout.n_failures) == (RolloutStatus.FAILED, BOOM, 1)
    attempt = await store.get_latest_attempt(claimed.rollout_id)
    assert attempt is not None
    assert (attempt.status, attempt.failure) == (AttemptStatus.FAILED, BOOM)


async def test_a_failed_rollout_shows_its_last_failure_until_it_is_claimed_again(store: Store):
    rollout = await finish(store, await enqueue_and_claim(store), "failed", error=BOOM)
    assert (rollout.status, rollout.failure) == (RolloutStatus.REQUEUING, BOOM)
    again = await claim(store)
    assert again.failure is None
    assert (await the(store, again.rollout_id)).failure is None
    assert (await finish(store, again)).failure is None
    assert [attempt.failure for attempt in await store.query_attempts(again.rollout_id)] == [BOOM, None]


async def test_attempts_end_when_max_attempts_are_used_up(store: Store):
    await store.enqueue_rollout("x", rollout_id="r", config=RolloutConfig(max_attempts=3))
    for n, status in enumerate(["requeuing", "requeuing", "failed"], 1):
        claimed = await claim(store)
        assert claimed.attempt.sequence_id == n
        assert (await finish(store, claimed, "failed", error=BOOM)).status == status
    assert await store.dequeue_rollout(worker_id="w") is None
    rollout = await the(store, "r")
    assert (rollout.n_attempts, rollout.n_failures, rollout.failure) == (3, 3, BOOM)


@pytest.mark.parametrize("status", ["failed", "timeout"])
@pytest.mark.parametrize("retried", [True, False])
async def test_a_reported_failure_is_retried_if_the_condition_names_it(store: Store, status: str, *, retried: bool):
    condition = {status} if retried else {"failed", "timeout", "unresponsive"} - {status}
    claimed = await enqueue_and_claim(store, config=RolloutConfig(retry_condition=condition))
    rollout = await finish(store, claimed, status)
    assert rollout.status is (RolloutStatus.REQUEUING if retried else RolloutStatus.FAILED)
    attempt = await store.get_latest_attempt(claimed.rollout_id)
    assert attempt is not None
    assert attempt.status == status


@pytest.mark.parametrize("retried", [True, False])
async def test_silence_is_retried_if_the_condition_names_it(store: Store, clock: FakeClock, *, retried: bool):
    condition = {"unresponsive"} if retried else {"failed", "timeout"}
    claimed = await enqueue_and_claim(store, config=RolloutConfig(unresponsive_seconds=5, retry_condition=condition))
    await clock.advance(6)
    rollout = await until(store, claimed.rollout_id, lambda rollout: not rollout.status.is_live)
    assert rollout.status is (RolloutStatus.REQUEUING if retried else RolloutStatus.FAILED)


async def test_handing_back_does_not_count_against_max_attempts(store: Store):
    await store.enqueue_rollout("x", rollout_id="r", config=RolloutConfig(max_attempts=1))
    for n in range(1, 6):
        rollout = await finish(store, await claim(store), "cancelled")
        assert (rollout.status, rollout.n_attempts, rollout.n_failures) == (RolloutStatus.REQUEUING, n, 0)
    assert (await finish(store, await claim(store), "failed")).status is RolloutStatus.FAILED


async def test_a_late_writer_of_a_lost_lease_is_refused_and_changes_nothing(store: Store, clock: FakeClock):
    lost = await enqueue_and_claim(store, worker_id="slow", config=RolloutConfig(unresponsive_seconds=5))
    id = lost.attempt.attempt_id
    await clock.advance(6)
    await until(store, lost.rollout_id, lambda rollout: rollout.status.is_queued)
    await _assert_refused(store, lost.rollout_id, id, "unresponsive")
    holder = await claim(store, "fast")
    await _assert_refused(store, lost.rollout_id, id, "unresponsive")
    assert (await finish(store, holder, reward=1.0)).reward == 1.0
    await _assert_refused(store, lost.rollout_id, id, "unresponsive")


async def _assert_refused(store: Store, rollout_id: str, attempt_id: str, reason: str) -> None:
    before = await everything(store)
    calls = [
        store.update_attempt(rollout_id, attempt_id, status="running"),
        store.update_attempt(rollout_id, attempt_id, status="succeeded", reward=1.0, events=[log()]),
        store.update_attempt(rollout_id, attempt_id, status="failed", error=BOOM),
        store.update_attempt(rollout_id, attempt_id, worker_id="thief"),
        store.append_events(rollout_id, attempt_id, [log()]),
        store.append_events(rollout_id, attempt_id, [log()], first_index=0),
    ]
    for call in calls:
        with pytest.raises(LeaseLost) as caught:
            await call
        assert (caught.value.rollout_id, caught.value.attempt_id) == (rollout_id, attempt_id)
        assert caught.value.reason == reason
    assert await everything(store) == before


@pytest.mark.parametrize("end", ["succeeded", "failed", "timeout"])
async def test_a_final_state_is_final(store: Store, end: str):
    claimed = await enqueue_and_claim(store, config=RolloutConfig(max_attempts=1))
    await finish(store, claimed, end, reward=0.5)
    before = await everything(store)
    for status in ["running", "succeeded", "failed", "timeout", "cancelled"]:
        with pytest.raises(LeaseLost):
            await store.update_attempt(claimed.rollout_id, claimed.attempt.attempt_id, status=status, reward=0.75)
    assert await store.cancel_rollouts([claimed.rollout_id]) == ()
    assert await store.dequeue_rollout(worker_id="w") is None
    assert await everything(store) == before


@pytest.mark.parametrize("end", ["succeeded", "failed", "timeout", "cancelled"])
async def test_a_finish_whose_reply_was_lost_can_be_repeated(store: Store, clock: FakeClock, end: str):
    claimed = await enqueue_and_claim(store)
    report = {"status": end, "reward": 0.5, "error": BOOM, "events": [log("last")], "first_index": 0}
    first = await store.update_attempt(claimed.rollout_id, claimed.attempt.attempt_id, **report)
    before = await everything(store)
    await clock.advance(1)
    assert await store.update_attempt(claimed.rollout_id, claimed.attempt.attempt_id, **report) == first
    assert await everything(store) == before


async def test_a_repeated_finish_is_accepted_even_when_the_rollout_has_moved_on(store: Store):
    first = await enqueue_and_claim(store)
    await finish(store, first, "failed", error=BOOM)
    second = await claim(store)
    before = await everything(store)
    repeated = await store.update_attempt(first.rollout_id, first.attempt.attempt_id, status="failed", error=BOOM)
    assert (repeated.status, repeated.sequence_id) == (AttemptStatus.FAILED, 1)
    assert await everything(store) == before
    await finish(store, second)


async def test_a_second_finish_that_differs_is_refused(store: Store):
    claimed = await enqueue_and_claim(store)
    await finish(store, claimed, reward=0.5)
    before = await everything(store)
    for report in [{"status": "succeeded", "reward": 0.6}, {"status": "succeeded"}, {"status": "failed"}]:
        with pytest.raises(LeaseLost, match="succeeded"):
            await store.update_attempt(claimed.rollout_id, claimed.attempt.attempt_id, **report)
    assert await everything(store) == before


async def test_an_attempt_of_another_rollout_cannot_write(store: Store):
    mine, theirs = await enqueue_and_claim(store, "mine"), await enqueue_and_claim(store, "theirs")
    before = await everything(store)
    with pytest.raises(LeaseLost):
        await store.update_attempt(theirs.rollout_id, mine.attempt.attempt_id, status="succeeded")
    with pytest.raises(LeaseLost, match="no such attempt"):
        await store.append_events(theirs.rollout_id, "at-nobody", [log()])
    with pytest.raises(UnknownId):
        await store.update_attempt("ro-nobody", mine.attempt.attempt_id, status="succeeded")
    assert await everything(store) == before


async def test_only_one_of_many_concurrent_finishes_wins(store: Store):
    claimed = await enqueue_and_claim(store)
    reports = [
        store.update_attempt(claimed.rollout_id, claimed.attempt.attempt_id, status="succeeded", reward=n)
        for n in range(8)
    ]
    results = await asyncio.gather(*reports, return_exceptions=True)
    (won,) = [result for result in results if not isinstance(result, LeaseLost)]
    assert (await the(store, claimed.rollout_id)).reward == won.reward


async def test_reports_that_come_together_are_taken_in_their_order_also_when_an_attempt_has_several(store: Store):
    one, two = [await enqueue_and_claim(store, n) for n in range(2)]
    said = ((one, "succeeded"), (two, "running"), (two, "succeeded"), (one, "succeeded"), (one, "failed"))
    reports = (store.update_attempt(of.rollout_id, of.attempt.attempt_id, status=status) for of, status in said)
    *accepted, refused = await asyncio.gather(*reports, return_exceptions=True)
    assert [attempt.status for attempt in accepted] == [status for _, status in said[:-1]]
    assert isinstance(refused, LeaseLost)


async def test_a_permanent_failure_ends_its_rollout_whatever_its_configuration_says(store: Store):
    config = RolloutConfig(max_attempts=5)
    claimed = await store.start_rollout({}, worker_id="w", config=config)
    error = msgspec.structs.replace(BOOM, permanent=True)
    report = {"status": "failed", "error": error}
    ended = await store.update_attempt(claimed.rollout_id, claimed.attempt.attempt_id, **report)
    again = await store.update_attempt(claimed.rollout_id, claimed.attempt.attempt_id, **report)
    found = await store.get_rollout_by_id(claimed.rollout_id)
    assert found is not None
    assert (ended.status, ended.failure, again.attempt_id) == ("failed", error, ended.attempt_id)
    assert (found.status, found.n_failures, found.failure) == ("failed", 1, error)
    assert await store.dequeue_rollout(worker_id="w") is None
