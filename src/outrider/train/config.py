"""How rollouts for training are scheduled: the environments, their groups, batches, staleness and deadlines."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from outrider.core.errors import InvalidInput
from outrider.core.settings import read_yaml, settings_of


class EnvManagerConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which environments there are, and how they are grouped.

    Members of a group share tag, configuration and seed. `group_size_redundancy` members more than `group_size` are
    started, and those left over are cancelled when the group is full. `num_groups_partition` says how many groups each
    tag has; without it they are divided equally, the remainder to the first tags.
    """

    max_env_num_per_worker: int = 16
    num_env_groups: int = 128
    group_size: int = 1
    group_size_redundancy: int = 0
    tags: tuple[str, ...] = ("FrozenLake",)
    num_groups_partition: tuple[int, ...] | None = None
    temperature: float | None = None

    def __post_init__(self) -> None:
        for name, least in (("max_env_num_per_worker", 1), ("num_env_groups", 1), ("group_size", 1)):
            if getattr(self, name) < least:
                raise InvalidInput(f"{name} is {getattr(self, name)}; give {least} or more")
        if self.group_size_redundancy < 0:
            raise InvalidInput(f"group_size_redundancy is {self.group_size_redundancy}; give 0 or more")
        if not self.tags or len(set(self.tags)) < len(self.tags):
            raise InvalidInput(f"tags is {list(self.tags)}; give each environment once, and at least one")
        _check_partition(self)

    @property
    def n_envs(self) -> int:
        """All environments at once, without the redundant ones."""
        return self.num_env_groups * self.group_size

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
    if min(partition) < 0 or sum(partition) != config.num_env_groups:
        parts = " + ".join(map(str, partition))
        raise InvalidInput(
            f"num_groups_partition is {parts} = {sum(partition)}, but num_env_groups is {config.num_env_groups}; "
            "the parts must add up to it"
        )


class CustomEnv(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a tag stands for: an environment that the registry knows, and its settings.

    `max_steps` and `penalty` (for an invalid action) are those of the environment; `max_tokens_per_step` bounds each
    model call; `system_template` takes the place of the environment's own instructions.
    """

    env: str | None = None
    max_steps: int | None = None
    max_tokens_per_step: int | None = None
    penalty: float | None = None
    system_template: str | None = None
    config: Mapping[str, Any] = {}


class SchedulerConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All of it. `rollout_batch_size` counts trajectories, in whole groups.

    `async_generation_ratio` is how many batches are generated ahead: 0 is synchronous, fractions are allowed.
    `max_staleness` is the most that the policy may have moved on from a trajectory's first turn when it is delivered;
    None: as `async_generation_ratio` allows. `filters` drop groups: `zero_variance`, or `module:function`.
    Deadlines are in seconds: per turn (one model call and one step), per trajectory, per `get_batch`.
    """

    train_env_manager: EnvManagerConfig = EnvManagerConfig()
    val_env_manager: EnvManagerConfig | None = None
    custom_envs: Mapping[str, CustomEnv] = {}
    rollout_batch_size: int | None = None
    async_generation_ratio: float = 0.0
    max_staleness: int | None = None
    filters: tuple[str, ...] = ()
    turn_seconds: float = 300.0
    trajectory_seconds: float = 3600.0
    batch_seconds: float = 7200.0
    max_refills: int = 8
    seed: int = 0

    def __post_init__(self) -> None:
        size, group_size = self.batch_size, self.train_env_manager.group_size
        if size < 1 or size % group_size:
            near = max(round(size / group_size), 1) * group_size
            raise InvalidInput(
                f"rollout_batch_size is {size}, not a multiple of group_size {group_size}; {near} would be"
            )
        if not (math.isfinite(self.async_generation_ratio) and self.async_generation_ratio >= 0):
            raise InvalidInput(f"async_generation_ratio is {self.async_generation_ratio}; give 0 or more")
        if self.max_staleness is not None and self.max_staleness < 0:
            raise InvalidInput(f"max_staleness is {self.max_staleness}; give 0 or more, or leave it out for no bound")
        for name in ("turn_seconds", "trajectory_seconds", "batch_seconds"):
            if not getattr(self, name) > 0:
                raise InvalidInput(f"{name} is {getattr(self, name)}; give more than 0")
        if self.max_refills < 0:
            raise InvalidInput(f"max_refills is {self.max_refills}; give 0 or more")

    @property
    def batch_size(self) -> int:
        """Trajectories in a batch; as many as there are environments, if nobody says."""
        return self.train_env_manager.n_envs if self.rollout_batch_size is None else self.rollout_batch_size

    @property
    def is_synchronous(self) -> bool:
        return self.async_generation_ratio == 0


def read_scheduler_config(path: Path) -> SchedulerConfig:
    """The configuration in a YAML file; a field that nothing reads is refused with the nearest name."""
    return settings_of(SchedulerConfig, read_yaml(path), str(path))
