"""A wall clock that jumps, by being set or in a suspended machine, costs nobody a lease and makes none longer."""

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from leaks import no_leaks
from outrider.core.attempt import Attempt
from outrider.core.clock import utc
from outrider.core.rollout import AttemptedRollout
from outrider.core.status import AttemptStatus, RolloutStatus, WorkerStatus
from outrider.store import Store, open_store
from outrider.testing import FakeClock
from store_moves import claim, enqueue_and_claim, finish, lease, swept, the, until

HOUR = 3600.0

JUMPS = pytest.mark.parametrize("jump", [HOUR, -HOUR], ids=["forward", "back"])


def jumps_told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "outrider.store.jumps"]


async def attempt_of(store: Store, claimed: AttemptedRollout) -> Attempt:
    attempt = await store.get_latest_attempt(claimed.rollout_id)
    assert attempt is not None
    return attempt


@JUMPS
async def test_a_jump_leaves_of_a_lease_what_was_left(
    store: Store, clock: FakeClock, jump: float, caplog: pytest.LogCaptureFixture
):
    claimed = await enqueue_and_claim(store, config=lease(30))
    await swept(store, clock, 10)
    clock.jump(jump)
    await swept(store, clock, 19.5)
    assert (await the(store, claimed.rollout_id)).status is RolloutStatus.PREPARING
    attempt = await attempt_of(store, claimed)
    assert attempt.lease_expires_at is not None
    assert abs((attempt.lease_expires_at - utc(clock.time())).total_seconds() - 0.5) < 0.1
    assert attempt.lease_expires_at - attempt.started_at == timedelta(seconds=30)
    await clock.advance(0.6)
    await until(store, claimed.rollout_id, lambda rollout: not rollout.status.is_live)
    assert (await attempt_of(store, claimed)).status is AttemptStatus.UNRESPONSIVE
    (told,) = jumps_told(caplog)
    assert ("forward" if jump > 0 else "back") in told
    assert "3600" in told


async def test_three_jumps_forward_fail_no_rollout(store: Store, clock: FakeClock, caplog: pytest.LogCaptureFixture):
    held = [await enqueue_and_claim(store, config=lease(30)) for _ in range(8)]
    for _ in range(3):
        await swept(store, clock, 5)
        clock.jump(HOUR)
        await swept(store, clock, 5)
        assert await store.heartbeat("w", [claimed.attempt.attempt_id for claimed in held]) == ()
    for claimed in held:
        rollout = await finish(store, claimed, reward=1.0)
        assert (rollout.status, rollout.n_attempts, rollout.n_failures) == (RolloutStatus.SUCCEEDED, 1, 0)
    assert len(jumps_told(caplog)) == 3


async def _beat(store: Store, claimed: AttemptedRollout) -> None:
    assert await store.heartbeat("w", [claimed.attempt.attempt_id]) == ()


async def _run(store: Store, claimed: AttemptedRollout) -> None:
    await store.update_attempt(claimed.rollout_id, claimed.attempt.attempt_id, status="running")


@JUMPS
@pytest.mark.parametrize("call", [_beat, _run])
async def test_a_call_right_after_a_jump_finds_its_lease(
    store: Store, clock: FakeClock, jump: float, call: Callable[[Store, AttemptedRollout], Awaitable[None]]
):
    claimed = await enqueue_and_claim(store, config=lease(30, timeout=100))
    await swept(store, clock, 10)
    clock.jump(jump)
    await call(store, claimed)
    await swept(store, clock, 15)
    assert (await the(store, claimed.rollout_id)).status.is_live
    await clock.advance(31)
    await until(store, claimed.rollout_id, lambda rollout: not rollout.status.is_live)


@JUMPS
async def test_what_is_claimed_right_after_a_jump_is_leased_for_its_term(store: Store, clock: FakeClock, jump: float):
    await swept(store, clock, 1)
    clock.jump(jump)
    claimed = await enqueue_and_claim(store, config=lease(30))
    await swept(store, clock, 29)
    assert (await the(store, claimed.rollout_id)).status.is_live
    await clock.advance(2)
    await until(store, claimed.rollout_id, lambda rollout: not rollout.status.is_live)


@JUMPS
async def test_the_time_an_attempt_may_take_is_the_time_it_takes(store: Store, clock: FakeClock, jump: float):
    claimed = await enqueue_and_claim(store, config=lease(30, timeout=60))
    await swept(store, clock, 20)
    await _beat(store, claimed)
    clock.jump(jump)
    await swept(store, clock, 20)
    await _beat(store, claimed)
    await swept(store, clock, 19)
    assert (await the(store, claimed.rollout_id)).status.is_live
    await clock.advance(1.5)
    await until(store, claimed.rollout_id, lambda rollout: not rollout.status.is_live)
    assert (await attempt_of(store, claimed)).status is AttemptStatus.TIMEOUT


@JUMPS
async def test_waits_last_as_long_as_they_were_told_to(store: Store, clock: FakeClock, parked, jump: float):
    rollout = await store.enqueue_rollout("x")
    claimed = await claim(store)
    waits = [
        await parked(store.dequeue_rollout(worker_id="other", wait=5)),
        await parked(store.wait_for_rollouts([rollout.rollout_id], timeout=5)),
        await parked(store.finished_after(0, wait=5)),
        await parked(store.get_latest_resources(wait=5)),
        await parked(store.heartbeat("w", [claimed.attempt.attempt_id], wait=5)),
    ]
    clock.jump(jump)
    await clock.advance(4.5)
    assert not any(wait.done() for wait in waits)
    for _ in range(2):  # some look again at their deadline, and wait for what is left of it
        await clock.advance(0.5)
    async with asyncio.timeout(30):
        await asyncio.gather(*waits)


@JUMPS
async def test_a_worker_is_heard_of_as_before(store: Store, clock: FakeClock, jump: float):
    await store.heartbeat("w")
    await swept(store, clock, 10)
    clock.jump(jump)
    await swept(store, clock, 10)

    async def status() -> WorkerStatus:
        return next(worker.status for worker in await store.query_workers() if worker.worker_id == "w")

    assert await status() is WorkerStatus.IDLE
    await swept(store, clock, 11)
    assert await status() is WorkerStatus.UNKNOWN
    await store.heartbeat("w")
    assert await status() is WorkerStatus.IDLE


async def test_small_steps_are_no_jumps(store: Store, clock: FakeClock, caplog: pytest.LogCaptureFixture):
    claimed = await enqueue_and_claim(store, config=lease(30))
    clock.jump(0.4)
    await swept(store, clock, 25)
    assert (await the(store, claimed.rollout_id)).status.is_live
    assert jumps_told(caplog) == []


async def test_a_lease_is_no_longer_than_its_term_after_the_clock_went_back_while_nobody_looked(
    durable_url: str, clock: FakeClock
):
    async with no_leaks():
        async with open_store(durable_url, clock=clock) as store:
            claimed = await enqueue_and_claim(store, config=lease(30))
        clock.jump(-HOUR)
        async with open_store(durable_url, clock=clock) as store:
            await swept(store, clock, 1)
            assert (await the(store, claimed.rollout_id)).status.is_live
            await clock.advance(31)
            await until(store, claimed.rollout_id, lambda rollout: not rollout.status.is_live)


@pytest.mark.parametrize("jump", [HOUR, 0.0, -HOUR], ids=["forward", "none", "back"])
async def test_after_a_reboot_leases_go_by_wall_time_but_last_no_longer_than_their_term(
    tmp_path: Path, clock: FakeClock, jump: float, caplog: pytest.LogCaptureFixture
):
    url, config = f"sqlite:///{tmp_path / 'runs.db'}", lease(30)
    async with no_leaks():
        async with open_store(url, clock=clock) as store:
            claimed = await enqueue_and_claim(store, config=config)
        with closing(sqlite3.connect(tmp_path / "runs.db", isolation_level=None)) as database:
            database.execute("UPDATE host_clock SET identity = 'another boot', offset = offset + 100000")
        clock.jump(jump)
        async with open_store(url, clock=clock) as store:
            await swept(store, clock, 20)
            assert (await the(store, claimed.rollout_id)).status.is_live == (jump <= 0)
            await swept(store, clock, 11)
            assert not (await the(store, claimed.rollout_id)).status.is_live
            again = await claim(store)
            clock.jump(HOUR)  # from here on jumps are seen again
            await swept(store, clock, 29)
            assert (await the(store, again.rollout_id)).status.is_live
    assert len(jumps_told(caplog)) == 1
