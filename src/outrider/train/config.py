"""How rollouts for training are scheduled: the environments, their groups, batches, staleness and deadlines."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Struct

from outrider.core.bounds import (
    Bytes,
    Count,
    PositiveCount,
    Reward,
    SecondsLimit,
    Seed,
    Temperature,
    Within,
    check_bounds,
)
from outrider.core.errors import InvalidInput
from outrider.core.settings import read_yaml, settings_of
from outrider.train.advantage import AdvantageRule

UNBOUNDED: Literal["unbounded"] = "unbounded"

Ratio = Annotated[float, Within(0, 1e6)]


class EnvManagerConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which environments there are, and how they are grouped.

    Members of a group share tag, configuration and seed. `group_size_redundancy` members more than `group_size` are
    started, and those left over are cancelled when the group is full. `num_groups_partition` says how many groups each
    tag has; without it they are divided equally, the remainder to the first tags. A worker runs up to
    `max_env_num_per_worker` environments at once; that of a validation says how many of them may validate.
    """

    max_env_num_per_worker: PositiveCount = 16
    num_env_groups: PositiveCount = 128
    group_size: PositiveCount = 1
    group_size_redundancy: Count = 0
    tags: tuple[str, ...] = ("FrozenLake",)
    num_groups_partition: tuple[Count, ...] | None = None
    temperature: Temperature | None = None

    def __post_init__(self) -> None:
        check_bounds(self)
        if not self.tags or len(set(self.tags)) < len(self.tags):
            raise InvalidInput(f"tags is {list(self.tags)}; give each environment once, and at least one")
        _check_partition(self)

    @property
    def n_envs(self) -> int:
        """All environments at once, without the redundant ones."""
        return self.num_env_groups * self.group_size

    @property
    def n_seats(self) -> int:
        """Members that a group starts with."""
        return self.group_size + self.group_size_redundancy

    @property
    def n_slots(self) -> int:
        """All environments at once, the redundant ones too."""
        return self.num_env_groups * self.n_seats

    @property
    def n_workers(self) -> int:
        """Workers that it takes to run all environments at once."""
        return math.ceil(self.n_slots / self.max_env_num_per_worker)

    @property
    def partition(self) -> dict[str, int]:
        """How many groups each tag has."""
        if self.num_groups_partition is not None:
            return dict(zip(self.tags, self.num_groups_partition, strict=True))
        share, rest = divmod(self.num_env_groups, len(self.tags))
        return {tag: share + (number < rest) for number, tag in enumerate(self.tags)}


def _check_partition(config: EnvManagerConfig) -> None:
    partition = config.num_groups_partition
    if partition is None:
        return
    if len(partition) != len(config.tags):
        raise InvalidInput(
            f"num_groups_partition has {len(partition)} numbers for {len(config.tags)} tags; give one for each of "
            f"{', '.join(config.tags)}"
        )
    if sum(partition) != config.num_env_groups:
        parts = " + ".join(map(str, partition))
        raise InvalidInput(
            f"num_groups_partition is {parts} = {sum(partition)}, but num_env_groups is {config.num_env_groups}; "
            "the parts must add up to it"
        )


class CustomEnv(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a tag stands for: an environment that the registry knows, and its settings.

    `max_steps` and `penalty` (the reward of an invalid action) are settings of the environment, as those in `config`
    are; `max_tokens_per_step` bounds each model call. `system_template` stands in for the environment's own
    instructions (`{system}`), `turn_template` is put around each observation (`{observation}`). `tasks` is a file
    of tasks, each of which is a group's in turn; without it the environment makes its task from the seed, or has its
    bundled ones.
    """

    env: str | None = None
    max_steps: PositiveCount | None = None
    max_tokens_per_step: PositiveCount | None = None
    penalty: Reward | None = None
    system_template: str | None = None
    turn_template: str | None = None
    tasks: str | None = None
    config: Mapping[str, Any] = {}

    def __post_init__(self) -> None:
        check_bounds(self)


class SchedulerConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All of it. `rollout_batch_size` counts trajectories, in whole groups; None: as many as there are environments.

    `async_generation_ratio` is how many batches are generated ahead: 0 is synchronous, fractions are allowed.
    `max_staleness` is the most that the policy may have moved on from a trajectory's first turn when it is delivered;
    None: the ratio, rounded up; `unbounded`: no bound.
    `filters` drop groups: `zero_variance`, or `module:function`. Deadlines are in seconds: per turn (a model call, or a
    step of the environment), per trajectory, per `get_batch`. A member whose environment shows no progress for
    `hedge_seconds` is started a second time beside the first, and the first to end counts; None: never.
    `max_refills` is how often a member that failed is started again. No more groups are opened than a batch takes
    while finished trajectories that wait for a trainer take up `max_buffer_bytes` in the store. `advantages` says how
    those of a batch are computed.
    """

    train_env_manager: EnvManagerConfig = EnvManagerConfig()
    val_env_manager: EnvManagerConfig | None = None
    custom_envs: Mapping[str, CustomEnv] = {}
    rollout_batch_size: PositiveCount | None = None
    async_generation_ratio: Ratio = 0.0
    max_staleness: Count | Literal["unbounded"] | None = None
    filters: tuple[str, ...] = ()
    advantages: AdvantageRule = AdvantageRule()
    turn_seconds: SecondsLimit = 300.0
    trajectory_seconds: SecondsLimit = 3600.0
    batch_seconds: SecondsLimit = 7200.0
    hedge_seconds: SecondsLimit | None = 60.0
    max_refills: Count = 8
    max_buffer_bytes: Bytes = 4 << 30
    seed: Seed = 0

    def __post_init__(self) -> None:
        check_bounds(self)
        self.n_groups_of(self.batch_size)
        bound = self.staleness_bound
        if bound is not None and bound < self.async_generation_ratio:
            raise InvalidInput(
                f"async_generation_ratio {self.async_generation_ratio:g} generates further ahead than max_staleness "
                f"{self.max_staleness} allows; give a ratio of {self.max_staleness} or less, about half is best"
            )
        _check_tags(self)

    @property
    def batch_size(self) -> int:
        """Trajectories in a batch."""
        return self.train_env_manager.n_envs if self.rollout_batch_size is None else self.rollout_batch_size

    def n_groups_of(self, batch_size: int) -> int:
        """How many groups make a batch of so many trajectories; refuses what is not whole groups."""
        group_size = self.train_env_manager.group_size
        if batch_size < 1 or batch_size % group_size:
            near = max(round(batch_size / group_size), 1) * group_size
            raise InvalidInput(f"a batch of {batch_size} is not a multiple of group_size {group_size}; {near} would be")
        return batch_size // group_size

    @property
    def is_synchronous(self) -> bool:
        return self.async_generation_ratio == 0

    @property
    def staleness_bound(self) -> int | None:
        """The hard bound; None if there is none."""
        if self.max_staleness == UNBOUNDED:
            return None
        if isinstance(self.max_staleness, int):
            return self.max_staleness
        return math.ceil(self.async_generation_ratio)

    def env_of(self, tag: str) -> CustomEnv:
        """What the tag stands for: itself, unless `custom_envs` says more."""
        return self.custom_envs.get(tag) or CustomEnv()


def _check_tags(config: SchedulerConfig) -> None:
    managers = [config.train_env_manager, *([config.val_env_manager] if config.val_env_manager else [])]
    used = [tag for manager in managers for tag in manager.tags]
    for tag in config.custom_envs:
        if tag not in used:
            raise InvalidInput(
                f"custom_envs has {tag!r}, which is not a tag of an env manager; there are {', '.join(used)}"
            )


def warnings_of(config: SchedulerConfig) -> list[str]:
    """What is allowed and probably not meant."""
    found = []
    val, train = config.val_env_manager, config.train_env_manager
    if val is not None and val.group_size != 1:
        found.append(
            f"val_env_manager.group_size is {val.group_size}: at temperature 0 all members of a group are alike"
        )
    if val is not None and val.temperature not in (None, 0, 0.0):
        found.append(
            f"val_env_manager.temperature is {val.temperature:g}: results differ from one validation to the next"
        )
    if "zero_variance" in config.filters and train.group_size == 1:
        found.append("the filter zero_variance drops every group of one member")
    return found


def read_scheduler_config(path: Path) -> SchedulerConfig:
    """The configuration in a YAML file; a field that nothing reads is refused with the nearest name."""
    return settings_of(SchedulerConfig, read_yaml(path), str(path))
