"""A batch on its way to the trainer: read back from the store, group by group."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from outrider.core.account import Account, AttemptAccount, Fate
from outrider.core.errors import UnknownId
from outrider.core.event import EventKind
from outrider.core.ledger import GroupEntry
from outrider.core.rollout import Rollout
from outrider.core.trajectory import Trajectory
from outrider.store import Store
from outrider.train.advantage import AdvantageRule
from outrider.train.batch import Batch
from outrider.train.metrics import Trained, metrics_of
from outrider.train.sample import SampledTrajectory
from outrider.train.samples import sampled

READS_AT_ONCE = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """What the ledger says of a batch, its number and members, and how things stood at that moment."""

    number: int
    members: Sequence[tuple[str, ...]]
    metrics: Mapping[str, float] = field(default_factory=dict)
    tokens: Mapping[Fate, int] = field(default_factory=dict)

    @classmethod
    def of(cls, number: int, entries: Sequence[GroupEntry]) -> "Delivery":
        """One that was delivered before, and not acknowledged."""
        return cls(number=number, members=[entry.members for entry in entries])


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutBatch:
    """What `get_batch` returns: whole groups with samples and advantages, and how it came about.

    `version` is that of the policy which is about to be trained on it. `tokens` are those that found their fate since
    the batch before: over all batches, and what is still open, they add up to all that were generated.
    """

    number: int
    version: int
    batch: Batch
    metrics: Mapping[str, float]
    tokens: Mapping[Fate, int]

    @property
    def group_ids(self) -> tuple[str, ...]:
        return tuple(group.group_id for group in self.batch.groups)

    def __len__(self) -> int:
        return len(self.batch.trajectories)


async def load_batch(store: Store, delivery: Delivery, *, version: int, rule: AdvantageRule | None) -> RolloutBatch:
    """The batch with all that its members did."""
    ids = [rollout_id for members in delivery.members for rollout_id in members]
    rollouts = {one.rollout_id: one for one in await store.query_rollouts(rollout_ids=ids)}
    limit = asyncio.Semaphore(READS_AT_ONCE)

    async def load(rollout_id: str) -> SampledTrajectory:
        async with limit:
            return sampled(await _trajectory(store, rollouts.get(rollout_id), rollout_id))

    trajectories = await asyncio.gather(*map(load, ids))
    trained = _trained(rollouts.values(), await store.query_accounts(ids))
    return RolloutBatch(
        number=delivery.number,
        version=version,
        batch=Batch.of(trajectories, version=version, rule=rule),
        metrics={**metrics_of(trained, version), **delivery.metrics},
        tokens=delivery.tokens,
    )


def _trained(rollouts: Iterable[Rollout], accounts: Iterable[AttemptAccount]) -> list[Trained]:
    by_attempt = {one.attempt_id: one.account for one in accounts}
    return [
        Trained(one.group_id or "", one.tag or "", one.reward or 0.0, by_attempt.get(one.attempt_id or "", Account()))
        for one in rollouts
    ]


async def _trajectory(store: Store, rollout: Rollout | None, rollout_id: str) -> Trajectory:
    if rollout is None:
        raise UnknownId("rollout", rollout_id)
    events = await store.query_events(rollout_id, attempt_id=rollout.attempt_id)
    kept = tuple(event for event in events if event.kind is not EventKind.ARTIFACT)
    return Trajectory(rollout=rollout, attempt=None, events=kept)
