"""Counting what ends, from the store's feed: the numbers of a progress line and of a summary."""

from collections import Counter
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from outrider.core.causes import Causes, FailFast
from outrider.core.clock import Clock, SystemClock
from outrider.core.rollout import TASK_KEY, Rollout
from outrider.core.status import LIVE, QUEUED, RolloutStatus
from outrider.evaluate.plan import RUN_KEY
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
    n_unscored: int = 0
    """How many succeeded without a reward."""
    n_unscored_of_runs: int = 0
    """How many of those `outrider run` has enqueued, which scores all its rollouts."""
    total_reward: float = 0.0
    n_infrastructure: int = 0
    cursor: int = 0
    causes: Causes = field(default_factory=Causes)
    fail_fast: FailFast | None = None
    own_workers: AbstractSet[str] = frozenset()
    """Whose rollouts show whether any can succeed: others may run another agent on the same store."""

    def add(self, rollout: Rollout) -> None:
        self.ended[rollout.status] += 1
        self.n_retries += max(rollout.n_attempts - 1, 0)
        if rollout.worker_id is not None:
            self.by_worker[rollout.worker_id] += 1
        if rollout.reward is not None:
            self.n_scored += 1
            self.total_reward += rollout.reward
        elif rollout.status is RolloutStatus.SUCCEEDED:
            self.n_unscored += 1
            self.n_unscored_of_runs += RUN_KEY in rollout.metadata and TASK_KEY in rollout.metadata
        if rollout.status is RolloutStatus.FAILED and rollout.failure is not None:
            self.failures[f"{rollout.failure.boundary}: {rollout.failure.kind}"] += 1
            self.n_infrastructure += rollout.failure.boundary.is_infrastructure
            self.causes.add(rollout.rollout_id, rollout.failure)
        if self.fail_fast is not None and rollout.worker_id in self.own_workers:
            self.fail_fast.add(rollout.failure if rollout.status is RolloutStatus.FAILED else None)

    @property
    def stopped_by(self) -> str | None:
        """Why nothing more should be tried, if so."""
        return None if self.fail_fast is None else self.fail_fast.reason

    @property
    def n_missing(self) -> int:
        """How many failed, were cancelled, or lack the score that a run expects.

        Elsewhere an agent that gives no reward has done what it was asked.
        """
        return self.n_ended - self.ended[RolloutStatus.SUCCEEDED] + self.n_unscored_of_runs

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
            "unscored": self.n_unscored,
            "mean_reward": self.mean_reward,
            "failed_by_infrastructure": self.n_infrastructure,
            "failures": dict(self.failures.most_common()),
            "causes": self.causes.most_common(),
            "by_worker": dict(sorted(self.by_worker.items())),
            "seconds": round(seconds, 3),
            "rollouts_per_second": round(self.n_ended / seconds, 2),
        }


def n_open(statistics: Statistics) -> int:
    """How many rollouts are not at their end yet."""
    return sum(statistics.rollouts[status] for status in QUEUED | LIVE)


async def follow(store: Store, tally: Tally, *, on_change: Callable[[Statistics], None], every: float) -> None:
    """Count what ends until nothing is open any more, or the tally says stop.

    Counts whenever a rollout ends, and calls `on_change` every `every` seconds at least. A store that is away is
    waited for.
    """

    async def count() -> bool:
        statistics = await store.statistics()
        on_change(statistics)
        if tally.stopped_by or (not n_open(statistics) and tally.cursor >= statistics.cursor):
            return False
        finished = await store.finished_after(tally.cursor, limit=FEED_PAGE, wait=every)
        tally.cursor = finished.cursor
        for rollout in finished.items:
            tally.add(rollout)
        return True

    while await insist(store.outage, SystemClock(), count):
        continue


def new_tally(clock: Clock, statistics: Statistics, *, fail_fast: bool) -> Tally:
    rule = FailFast() if fail_fast else None
    return Tally(began_at=clock.monotonic(), cursor=statistics.cursor, fail_fast=rule)
