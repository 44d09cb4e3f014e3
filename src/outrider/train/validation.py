"""Validation: the groups of `val_env_manager`, run in the same slots, with one version of the policy."""

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from statistics import fmean

from msgspec import Struct

from outrider.core.clock import Clock
from outrider.core.crash_points import reached
from outrider.core.errors import InvalidInput
from outrider.core.ids import new_id
from outrider.core.ledger import PIN_KEY, SAMPLING_KEY
from outrider.core.rollout import SAMPLE_KEY, TASK_KEY, Rollout, RolloutConfig, RolloutRequest
from outrider.core.seeds import derived_seed
from outrider.core.status import Mode, RolloutStatus
from outrider.core.task import Task
from outrider.store import Store
from outrider.store.outage import insist
from outrider.train.config import EnvManagerConfig, SchedulerConfig
from outrider.train.seeding import sampling_of, task_of

_log = logging.getLogger(__name__)

FEED_PAGE = 1000
PRIORITY = 2
"""Before whatever trains: a trainer waits for it."""


class TagResult(Struct, frozen=True, kw_only=True):
    """How one tag did. Those that failed, and those cancelled at the deadline (`n_unfinished`), have no score."""

    n: int
    n_scored: int
    n_failed: int
    n_unfinished: int
    reward: float | None
    """The mean of those that have one."""
    rewards: tuple[float, ...]


class ValidationResult(Struct, frozen=True, kw_only=True):
    """How a version of the policy did."""

    version: int
    seconds: float
    tags: Mapping[str, TagResult]

    @property
    def is_complete(self) -> bool:
        return not any(tag.n_unfinished for tag in self.tags.values())

    @property
    def metrics(self) -> dict[str, float]:
        """Flat numbers for a log."""
        found: dict[str, float] = {"val/seconds": self.seconds}
        for name, tag in self.tags.items():
            if tag.reward is not None:
                found[f"val/{name}/reward"] = tag.reward
            found[f"val/{name}/scored"] = tag.n_scored / tag.n
        return found


class Validation:
    """The rollouts of one validation: the same tasks and seeds every time, whatever the version."""

    def __init__(self, config: SchedulerConfig, ledger: str, version: int, tasks: Mapping[str, Sequence[Task]]) -> None:
        if config.val_env_manager is None:
            raise InvalidInput("there is no val_env_manager in the configuration; add one to validate")
        self._config = config
        self._manager: EnvManagerConfig = config.val_env_manager
        self._prefix = new_id(f"{ledger}-val-{version}")
        self._version = version
        self._tasks = tasks

    @property
    def n_at_once(self) -> int:
        """How many run at once at most: `max_env_num_per_worker` of them in each worker, on average."""
        return self._config.train_env_manager.n_workers * self._manager.max_env_num_per_worker

    def requests(self) -> list[RolloutRequest]:
        return [
            self._request(tag, k, seat)
            for tag, n_groups in self._manager.partition.items()
            for k in range(n_groups)
            for seat in range(self._manager.group_size)
        ]

    async def run(self, store: Store, clock: Clock, timeout: float) -> tuple[Rollout, ...]:
        """Have it run, so many at once; whatever has not ended at the deadline is cancelled. All of its rollouts."""
        deadline = clock.monotonic() + timeout
        insistently = partial(insist, store.outage, clock)
        waiting = self.requests()
        ids: list[str] = []
        open_ids: set[str] = set()
        cursor = (await insistently(store.statistics)).cursor
        try:
            while (waiting or open_ids) and (left := deadline - clock.monotonic()) > 0:
                next_ones, waiting = _split(waiting, self.n_at_once - len(open_ids))
                for rollout in await insistently(partial(store.enqueue_many_rollouts, next_ones)):
                    ids.append(rollout.rollout_id)
                    open_ids |= set() if rollout.status.is_final else {rollout.rollout_id}
                reached("validation.enqueued")
                wait = left if open_ids else 0.0
                feed = await insistently(partial(store.finished_after, cursor, limit=FEED_PAGE, wait=wait))
                cursor = feed.cursor
                open_ids -= {rollout.rollout_id for rollout in feed.items}
        finally:
            cancelled = await store.cancel_rollouts(list(open_ids))
        if cancelled or waiting:
            n_late = len(cancelled) + len(waiting)
            _log.warning(
                "%d of %d rollouts of the validation did not end in %g s", n_late, len(ids) + len(waiting), timeout
            )
        return (await insistently(partial(store.query_rollouts, rollout_ids=ids))).items

    def result(self, rollouts: Sequence[Rollout], seconds: float) -> ValidationResult:
        by_tag: dict[str, list[Rollout]] = {tag: [] for tag, n in self._manager.partition.items() if n}
        for rollout in rollouts:
            by_tag[rollout.tag or ""].append(rollout)
        sizes = {tag: n * self._manager.group_size for tag, n in self._manager.partition.items()}
        tags = {tag: _tag_result(own, sizes[tag]) for tag, own in by_tag.items()}
        return ValidationResult(version=self._version, seconds=seconds, tags=tags)

    def _request(self, tag: str, k: int, seat: int) -> RolloutRequest:
        task = task_of(tag, k, self._tasks.get(tag, ()), self._config.seed)
        return RolloutRequest(
            input=task.as_input(),
            rollout_id=f"{self._prefix}-{tag}-{k}.{seat}",
            mode=Mode.VAL,
            tag=tag,
            seed=derived_seed(self._config.seed, "val", tag, k),
            priority=PRIORITY,
            config=RolloutConfig(max_attempts=1 + self._config.max_refills),
            metadata={
                TASK_KEY: task.task_id,
                SAMPLE_KEY: seat,
                PIN_KEY: self._version,
                SAMPLING_KEY: {"temperature": 0.0, **sampling_of(self._config, self._manager, tag)},
            },
        )


def _split(requests: list[RolloutRequest], n: int) -> tuple[list[RolloutRequest], list[RolloutRequest]]:
    return requests[: max(n, 0)], requests[max(n, 0) :]


def _tag_result(rollouts: Sequence[Rollout], n: int) -> TagResult:
    rewards = tuple(one.reward for one in rollouts if one.reward is not None)
    n_failed = sum(one.status is RolloutStatus.FAILED for one in rollouts)
    n_ended = sum(one.status in {RolloutStatus.SUCCEEDED, RolloutStatus.FAILED} for one in rollouts)
    return TagResult(
        n=n,
        n_scored=len(rewards),
        n_failed=n_failed,
        n_unfinished=n - n_ended,
        reward=fmean(rewards) if rewards else None,
        rewards=rewards,
    )
