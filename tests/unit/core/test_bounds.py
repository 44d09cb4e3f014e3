"""Numbers are refused where they are given, not where they would end in a date or a column that does not exist."""

import math
from collections.abc import Callable

import pytest

from outrider.agent.limits import TurnLimits
from outrider.core.bounds import MAX_COUNT, MAX_SECONDS
from outrider.core.errors import InvalidInput
from outrider.core.rollout import RolloutConfig
from outrider.runner import RunnerConfig
from outrider.runner.attempt import StageLimits
from outrider.train.config import EnvManagerConfig, SchedulerConfig

SECONDS: list[tuple[Callable[..., object], str]] = [
    (RolloutConfig, "timeout_seconds"),
    (RolloutConfig, "unresponsive_seconds"),
    (RunnerConfig, "poll_interval"),
    (RunnerConfig, "heartbeat_interval"),
    (RunnerConfig, "grace_seconds"),
    *((StageLimits, f"{stage}_seconds") for stage in ("boot", "setup", "act", "score", "close", "cancel")),
    (StageLimits, "turn_seconds"),
    (TurnLimits, "trajectory_seconds"),
    (SchedulerConfig, "turn_seconds"),
    (SchedulerConfig, "trajectory_seconds"),
    (SchedulerConfig, "batch_seconds"),
    (SchedulerConfig, "hedge_seconds"),
]
COUNTS: list[tuple[Callable[..., object], str]] = [
    (RolloutConfig, "max_attempts"),
    (RunnerConfig, "max_env_num_per_worker"),
    (RunnerConfig, "max_rollouts"),
    (EnvManagerConfig, "max_env_num_per_worker"),
    (EnvManagerConfig, "num_env_groups"),
    (EnvManagerConfig, "group_size"),
    (EnvManagerConfig, "group_size_redundancy"),
    (SchedulerConfig, "max_refills"),
]


@pytest.mark.parametrize(("config", "name"), SECONDS, ids=lambda value: getattr(value, "__name__", value))
def test_times_are_numbers_within_a_hundred_years(config: Callable[..., object], name: str):
    for bad in (-1, math.nan, -math.inf, 2 * MAX_SECONDS, 1e12, 2**70, 10**400, "1", True, [1]):
        with pytest.raises(InvalidInput, match=name):
            config(**{name: bad})
    config(**{name: 1.5})


@pytest.mark.parametrize(("config", "name"), COUNTS, ids=lambda value: getattr(value, "__name__", value))
def test_counts_are_whole_numbers_that_every_database_keeps(config: Callable[..., object], name: str):
    for bad in (-1, MAX_COUNT + 1, 2**70, 1.0, "1", True, [1]):
        with pytest.raises(InvalidInput, match=name):
            config(**{name: bad})
    config(**{name: 1})


def test_a_seed_that_no_database_keeps_is_refused():
    for bad in (2**63, -(2**63) - 1, 0.5, "1"):
        with pytest.raises(InvalidInput, match="seed"):
            SchedulerConfig(seed=bad)  # type: ignore[arg-type]


def test_what_is_to_be_retried_is_named_as_such():
    for bad in ("failed", 5, ["succeeded"], [5]):
        with pytest.raises(InvalidInput, match="retry_condition"):
            RolloutConfig(retry_condition=bad)  # type: ignore[arg-type]


def test_the_longest_time_ends_in_a_date_that_exists():
    assert RolloutConfig(unresponsive_seconds=MAX_SECONDS, timeout_seconds=MAX_SECONDS, max_attempts=MAX_COUNT)
