"""Short ways through a rollout's life, for tests."""

from collections.abc import Callable
from typing import Any

from outrider.core.clock import utc
from outrider.core.event import Event, EventKind
from outrider.core.rollout import AttemptedRollout, Rollout, RolloutConfig
from outrider.store import Store
from outrider.testing import FakeClock, eventually

AT = utc(1_750_000_000.0)


async def claim(store: Store, worker_id: str | int = "w", **arguments: Any) -> AttemptedRollout:
    """Claim the next rollout; there must be one."""
    claimed = await store.dequeue_rollout(worker_id=worker_id, **arguments)
    assert claimed is not None
    return claimed


async def enqueue_and_claim(store: Store, input: Any = None, worker_id: str = "w", **request: Any) -> AttemptedRollout:
    rollout = await store.enqueue_rollout(input, **request)
    claimed = await claim(store, worker_id)
    assert claimed.rollout_id == rollout.rollout_id
    return claimed


async def finish(store: Store, claimed: AttemptedRollout, status: str = "succeeded", **report: Any) -> Rollout:
    await store.update_attempt(claimed.rollout_id, claimed.attempt.attempt_id, status=status, **report)
    return await the(store, claimed.rollout_id)


async def the(store: Store, rollout_id: str) -> Rollout:
    rollout = await store.get_rollout_by_id(rollout_id)
    assert rollout is not None
    return rollout


async def until(store: Store, rollout_id: str, holds: Callable[[Rollout], bool]) -> Rollout:
    """The rollout once `holds` is true of it, however long the engine's own threads take."""

    async def condition() -> bool:
        return holds(await the(store, rollout_id))

    await eventually(condition)
    return await the(store, rollout_id)


def lease(seconds: float, timeout: float | None = None) -> RolloutConfig:
    return RolloutConfig(unresponsive_seconds=seconds, timeout_seconds=timeout)


async def swept(store: Store, clock: FakeClock, seconds: float) -> None:
    """Move time, and make sure that the store has looked for expired leases since: a lease due just now is gone."""
    probe = await store.start_rollout("probe", worker_id="probe", config=lease(seconds))
    await clock.advance(seconds)
    await until(store, probe.rollout_id, lambda rollout: not rollout.status.is_live)
    await store.cancel_rollouts([probe.rollout_id])


async def everything(store: Store) -> object:
    """All that can be seen of rollouts and attempts, to show that a refused call changed nothing."""
    rollouts = (await store.query_rollouts()).items
    attempts = [(await store.query_attempts(rollout.rollout_id)).items for rollout in rollouts]
    events = [(await store.query_events(rollout.rollout_id)).items for rollout in rollouts]
    return rollouts, attempts, events


def log(name: str = "said", **data: Any) -> Event:
    return Event(kind=EventKind.LOG, at=AT, name=name, data=data)
