"""What holds in every store at every moment, checked through its public methods alone."""

from collections import Counter

from outrider.core.attempt import Attempt
from outrider.core.rollout import RETRYABLE, Rollout
from outrider.core.status import AttemptStatus, RolloutStatus
from outrider.store import Store


async def check_invariants(store: Store) -> None:
    """Fail on the first thing that does not fit together. Call it while nobody else uses the store."""
    rollouts = (await store.query_rollouts()).items
    attempts = {rollout.rollout_id: (await store.query_attempts(rollout.rollout_id)).items for rollout in rollouts}
    for rollout in rollouts:
        _check_rollout(rollout, attempts[rollout.rollout_id])
    live = [attempt for several in attempts.values() for attempt in several if attempt.status.is_live]
    await _check_feed(store, rollouts)
    await _check_workers(store, live)
    await _check_statistics(store, rollouts, live)


def _check_rollout(rollout: Rollout, attempts: tuple[Attempt, ...]) -> None:
    assert [attempt.sequence_id for attempt in attempts] == list(range(1, rollout.n_attempts + 1))
    assert len({attempt.attempt_id for attempt in attempts}) == len(attempts)
    assert all(attempt.rollout_id == rollout.rollout_id for attempt in attempts)
    assert rollout.n_failures == sum(attempt.status in RETRYABLE for attempt in attempts)
    assert rollout.n_failures <= rollout.config.max_attempts
    assert rollout.attempt_id == (attempts[-1].attempt_id if attempts else None)
    live = [attempt for attempt in attempts if attempt.status.is_live]
    for attempt in attempts:
        assert (attempt.ended_at is None) == (attempt in live)
        assert (attempt.lease_expires_at is None) == (attempt not in live)
    if rollout.status.is_live:
        assert live == [attempts[-1]]
        assert (live[0].status, live[0].worker_id) == (AttemptStatus(rollout.status), rollout.worker_id)
    else:
        assert live == []
    assert (rollout.ended_at is not None) == rollout.status.is_final
    if rollout.status is RolloutStatus.SUCCEEDED:
        assert (attempts[-1].status, attempts[-1].reward) == (AttemptStatus.SUCCEEDED, rollout.reward)
    if rollout.status is RolloutStatus.FAILED:
        assert attempts[-1].status in RETRYABLE
        assert attempts[-1].failure == rollout.failure


async def _check_feed(store: Store, rollouts: tuple[Rollout, ...]) -> None:
    shown, cursor = [], 0
    while (page := await store.finished_after(cursor, limit=7)).items:
        assert page.cursor > cursor
        shown += page.items
        cursor = page.cursor
    ended = {rollout.rollout_id: rollout for rollout in rollouts if rollout.status.is_final}
    assert len(shown) == len(ended), "every ended rollout stands in the feed once"
    assert {rollout.rollout_id: rollout for rollout in shown} == ended


async def _check_workers(store: Store, live: list[Attempt]) -> None:
    workers = (await store.query_workers()).items
    held: dict[str, set[str]] = {}
    for attempt in live:
        held.setdefault(attempt.worker_id, set()).add(attempt.attempt_id)
    assert {worker.worker_id: set(worker.attempt_ids) for worker in workers if worker.attempt_ids} == held
    for worker in workers:
        assert (worker.status == "busy") == bool(worker.attempt_ids)
        assert worker.first_seen_at <= worker.last_seen_at


async def _check_statistics(store: Store, rollouts: tuple[Rollout, ...], live: list[Attempt]) -> None:
    statistics = await store.statistics()
    counts = Counter(rollout.status for rollout in rollouts)
    assert dict(statistics.rollouts) == {status: counts[status] for status in RolloutStatus}
    kinds = Counter((rollout.status, rollout.mode, rollout.tag) for rollout in rollouts)
    for wanted in {(status, mode, tag) for status, mode, tag in kinds} | {
        (status, None, None) for status in RolloutStatus
    }:
        chosen = dict(zip(("status", "mode", "tag"), wanted, strict=True))
        given = {name: value for name, value in chosen.items() if value is not None}
        expected = sum(n for kind, n in kinds.items() if all(w in (None, k) for w, k in zip(wanted, kind, strict=True)))
        assert (await store.query_rollouts(limit=0, **given)).total == expected, given
    workers = Counter(worker.status for worker in (await store.query_workers()).items)
    assert {status: n for status, n in statistics.workers.items() if n} == workers
    queued = [rollout.enqueued_at for rollout in rollouts if rollout.status.is_queued]
    assert statistics.oldest_queued_at == min(queued, default=None)
    leases = [attempt.lease_expires_at for attempt in live if attempt.lease_expires_at is not None]
    assert statistics.next_expiry_at == min(leases, default=None)
