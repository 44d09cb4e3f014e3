"""Which task, tag and seed the next group has: the same for a run's seed, whatever the workers and their timing.

The k-th group of a tag has the same seed and task in every run with that seed. Which tag comes next follows the
partition: the one that is furthest behind its share of the groups that were not dropped, so that a dropped group is
replaced by one of its own tag.
"""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache

from outrider.core.ledger import LEDGER_KEY, SAMPLING_KEY, NewGroup
from outrider.core.rollout import SAMPLE_KEY, TASK_KEY, Rollout, RolloutConfig, RolloutRequest
from outrider.core.seeds import derived_seed
from outrider.core.status import Mode
from outrider.core.task import Task
from outrider.train.config import EnvManagerConfig, SchedulerConfig

SEAT_MARK, HEDGE_MARK = ".", "+"
HEDGE_PRIORITY = 1


class GroupSource:
    """Makes groups in order. `made` counts those of each tag, `kept` those that were not dropped."""

    def __init__(self, config: SchedulerConfig, ledger: str, tasks: Mapping[str, Sequence[Task]]) -> None:
        self._config = config
        self._manager = config.train_env_manager
        self._ledger = ledger
        self._tasks = tasks
        self._partition = {tag: n for tag, n in self._manager.partition.items() if n}
        self.n_opened = 0
        self.made: Counter[str] = Counter()
        self.kept: Counter[str] = Counter()

    def next_group(self) -> NewGroup:
        tag = self._next_tag()
        k = self.made[tag]
        seed = derived_seed(self._config.seed, tag, k)
        group_id = f"{self._ledger}-{self.n_opened}"
        task = task_of(tag, k, self._tasks.get(tag, ()), self._config.seed)
        members = tuple(self._member(group_id, tag, seed, task, seat) for seat in range(self._manager.n_seats))
        group = NewGroup(
            group_id=group_id, number=self.n_opened, tag=tag, seed=seed, size=self._manager.group_size, members=members
        )
        self.n_opened += 1
        self.made[tag] += 1
        self.kept[tag] += 1
        return group

    def dropped(self, tag: str) -> None:
        """A group of this tag will not be delivered."""
        self.kept[tag] -= 1

    def _member(self, group_id: str, tag: str, seed: int, task: Task, seat: int) -> RolloutRequest:
        return RolloutRequest(
            input=task.as_input(),
            rollout_id=f"{group_id}{SEAT_MARK}{seat}",
            mode=Mode.TRAIN,
            tag=tag,
            seed=seed,
            group_id=group_id,
            config=RolloutConfig(max_attempts=1 + self._config.max_refills),
            metadata={
                LEDGER_KEY: self._ledger,
                TASK_KEY: task.task_id,
                SAMPLE_KEY: seat,
                SAMPLING_KEY: sampling_of(self._config, self._manager, tag),
            },
        )

    def _next_tag(self) -> str:
        """The tag with the smallest share of what it should have; of equal ones the first."""
        return min(self._partition, key=lambda tag: (self.kept[tag] + 1) / self._partition[tag])


def hedge_of(rollout: Rollout, number: int) -> RolloutRequest:
    """The same member once more, to be run beside this one: the same task, seed and sample."""
    return RolloutRequest(
        input=rollout.input,
        rollout_id=f"{group_of(rollout.rollout_id)}{SEAT_MARK}{seat_of(rollout.rollout_id)}{HEDGE_MARK}{number}",
        mode=rollout.mode,
        tag=rollout.tag,
        seed=rollout.seed,
        group_id=rollout.group_id,
        priority=HEDGE_PRIORITY,
        config=rollout.config,
        metadata=rollout.metadata,
    )


def is_hedge(rollout_id: str) -> bool:
    return HEDGE_MARK in rollout_id.rpartition(SEAT_MARK)[2]


def group_of(rollout_id: str) -> str:
    """The group of which a rollout is a member."""
    return rollout_id.rpartition(SEAT_MARK)[0]


def seat_of(rollout_id: str) -> int:
    """Which member of its group a rollout is."""
    return int(rollout_id.rpartition(SEAT_MARK)[2].split(HEDGE_MARK, 1)[0])


def sampling_of(config: SchedulerConfig, manager: EnvManagerConfig, tag: str) -> dict[str, float]:
    """What a tag's rollouts have of their own in how they are sampled."""
    found = {"temperature": manager.temperature, "max_tokens": config.env_of(tag).max_tokens_per_step}
    return {name: value for name, value in found.items() if value is not None}


def task_of(tag: str, k: int, tasks: Sequence[Task], seed: int) -> Task:
    """The k-th task of a tag: each of them once, in an order of its own, before any comes again."""
    if not tasks:
        return Task(task_id=f"{tag}-{k}")
    epoch, place = divmod(k, len(tasks))
    return tasks[_order(seed, tag, epoch, len(tasks))[place]]


@lru_cache(maxsize=64)
def _order(seed: int, tag: str, epoch: int, n_tasks: int) -> list[int]:
    return random.Random(derived_seed(seed, tag, "order", epoch)).sample(range(n_tasks), n_tasks)
