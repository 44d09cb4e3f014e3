"""A trainer that learns nothing: it takes batches as a real one would, and publishes a version for each."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from datetime import datetime
from typing import Any

from msgspec import Struct

from outrider.cli.rollout_config import RolloutSettings
from outrider.core.account import Fate
from outrider.core.clock import Clock, sleep, utc
from outrider.core.ledger import GroupState
from outrider.store import Store
from outrider.train.delivery import RolloutBatch
from outrider.train.scheduler import RolloutScheduler

TEXT = "text"
"""The fate of tokens that were delivered and could not be trained on."""


class Step(Struct, frozen=True, kw_only=True):
    """One step of training: the batch it took, what came with it, and what a trainer finds in it.

    `step` counts from 1, `batch` and `version` from 0; `version` is the policy's before the step. `tokens` are those
    that found their fate since the batch before; of those in the batch, `text` are known as text only.
    """

    step: int
    batch: int
    version: int
    published: int
    groups: tuple[str, ...]
    n_trajectories: int
    n_samples: int
    reward: float
    wait_seconds: float
    staleness_mean: float
    staleness_max: int
    tokens: Mapping[str, int]
    in_loss: int
    """Tokens that the batch has in the loss."""
    masked: int
    text: int
    """Tokens that are known as text only, so that no loss can be had of them."""
    without_logprobs: int = 0
    """Tokens in the loss whose log-probability is not known."""
    zero_advantage: float
    """The share of rows that teach nothing, since their advantage is 0."""
    metrics: Mapping[str, float]
    delivered_at: datetime
    published_at: datetime


class StandInTrainer:
    """Its time is `train_seconds` for a batch and `sync_seconds`, with model calls paused, for a version."""

    def __init__(self, settings: RolloutSettings, scheduler: RolloutScheduler, clock: Clock) -> None:
        self._settings = settings
        self._scheduler = scheduler
        self._clock = clock

    async def steps(self, n_done: int) -> AsyncIterator[Step]:
        """All steps after the first `n_done`, each as soon as its version is published."""
        while n_done < self._settings.steps:
            step = await self._step()
            n_done = step.step
            yield step

    async def _step(self) -> Step:
        asked_at = self._clock.monotonic()
        batch = await self._scheduler.get_batch()
        wait_seconds = self._clock.monotonic() - asked_at
        delivered_at = utc(self._clock.time())
        lessons = await asyncio.to_thread(_lessons, batch)
        await sleep(self._clock, self._settings.train_seconds)
        published = await self._publish()
        return Step(
            step=batch.number + 1,
            batch=batch.number,
            version=batch.version,
            published=published,
            groups=batch.group_ids,
            n_trajectories=len(batch),
            n_samples=len(batch.batch.samples),
            wait_seconds=wait_seconds,
            tokens=token_fates(batch.tokens, n_text=lessons["text"]),
            metrics=batch.metrics,
            delivered_at=delivered_at,
            published_at=utc(self._clock.time()),
            **lessons,
        )

    async def _publish(self) -> int:
        if not self._settings.sync_seconds:
            return await self._scheduler.publish()
        await self._scheduler.pause()
        try:
            await sleep(self._clock, self._settings.sync_seconds)
            return await self._scheduler.publish()
        finally:
            await self._scheduler.resume()


def _lessons(batch: RolloutBatch) -> dict[str, Any]:
    """What a trainer computes of a batch: its arrays, its advantages, and where its tokens go."""
    arrays = batch.batch.to_numpy(pad=None)
    account = batch.batch.token_accounting()
    ages = batch.batch.staleness
    rewards = [one.reward for one in batch.batch.trajectories if one.reward is not None]
    advantages = arrays["row_advantage"]
    return {
        "reward": sum(rewards) / len(rewards),
        "staleness_mean": float(ages.mean()),
        "staleness_max": int(ages.max()),
        "in_loss": int(arrays["loss_mask"].sum()),
        "masked": account.masked,
        "text": account.text,
        "without_logprobs": account.without_logprobs,
        "zero_advantage": float((advantages == 0).mean()) if len(advantages) else 1.0,
    }


def token_fates(tokens: Mapping[Fate, int], *, n_text: int) -> dict[str, int]:
    """Tokens by fate, where `n_text` of those in batches could not be trained on, since their ids are missing."""
    n_delivered = tokens.get(Fate.TRAINED, 0)
    n_text = min(n_text, n_delivered)
    fates: dict[str, int] = {fate.value: tokens[fate] for fate in Fate if fate in tokens}
    if n_text:
        fates |= {Fate.TRAINED.value: n_delivered - n_text, TEXT: n_text}
    return fates


async def n_steps_done(store: Store, ledger: str) -> int:
    """How many batches have been trained on: those that were delivered, less those that will come again."""
    delivered = await store.query_groups(ledger, states=(GroupState.DELIVERED,))
    if delivered.items:
        return min(entry.batch or 0 for entry in delivered)
    return next((found.n_batches for found in await store.query_ledgers() if found.name == ledger), 0)
