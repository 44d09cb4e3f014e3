"""Counting what ends, from the store's feed: the numbers of a progress line and of a summary."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from outrider.core.clock import Clock, SystemClock
from outrider.core.rollout import Rollout
from outrider.core.status import LIVE, QUEUED, RolloutStatus
from outrider.store import Statistics, Store
from outrider.store.outage import insist

FEED_PAGE = 1000


@dataclass(slots=True)
class Tally:
    """What has ended since the count began. Rollouts without a score stay in the denominator that reports print."""

    began_at: float
    ended: Counter[RolloutStatus] = field(default_factory=Counter)
    by_worker: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    n_retries: int = 0
    n_scored: int = 0
    total_reward: float = 0.0
    n_infrastructure: int = 0
    cursor: int = 0

    def add(self, rollout: Rollout) -> None:
        self.ended[rollout.status] += 1
        self.n_retries += max(rollout.n_attempts - 1, 0)
        if rollout.worker_id is not None:
            self.by_worker[rollout.worker_id] += 1
        if rollout.reward is not None:
            self.n_scored += 1
            self.total_reward += rollout.reward
        if rollout.status is RolloutStatus.FAILED and rollout.failure is not None:
            self.failures[f"{rollout.failure.boundary}: {rollout.failure.kind}"] += 1
            self.n_infrastructure += rollout.failure.boundary.is_infrastructure

    @property
    def n_ended(self) -> int:
        return sum(self.ended.values())

    @property
    def mean_reward(self) -> float | None:
        return self.total_reward / self.n_scored if self.n_scored else None

    def summary(self, now: float) -> dict[str, object]:
        """The numbers of a finished run, for people and scripts."""
        seconds = max(now - self.began_at, 1e-9)
        return {
            "ended": self.n_ended,
            **{status: self.ended[status] for status in sorted(self.ended)},
            "retries": self.n_retries,
            "scored": self.n_scored,
            "mean_reward": self.mean_reward,
            "failed_by_infrastructure": self.n_infrastructure,
            "failures": dict(self.failures.most_common()),
            "by_worker": dict(sorted(self.by_worker.items())),
            "seconds": round(seconds, 3),
            "rollouts_per_second": round(self.n_ended / seconds, 2),
        }


def n_open(statistics: Statistics) -> int:
    """How many rollouts are not at their end yet."""
    return sum(statistics.rollouts[status] for status in QUEUED | LIVE)


async def follow(store: Store, tally: Tally, *, on_change: Callable[[Statistics], None], every: float) -> None:
    """Count what ends until nothing is open any more; woken by ends, and every so many seconds for the display.

    A store that is away is waited for.
    """

    async def count() -> bool:
        statistics = await store.statistics()
        on_change(statistics)
        if not n_open(statistics) and tally.cursor >= statistics.cursor:
            return False
        finished = await store.finished_after(tally.cursor, limit=FEED_PAGE, wait=every)
        tally.cursor = finished.cursor
        for rollout in finished.items:
            tally.add(rollout)
        return True

    while await insist(store.outage, SystemClock(), count):
        continue


def new_tally(clock: Clock, statistics: Statistics) -> Tally:
    return Tally(began_at=clock.monotonic(), cursor=statistics.cursor)
