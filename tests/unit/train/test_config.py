"""The configuration of a scheduler: as the document writes it, and what is refused."""

from pathlib import Path

import pytest

from outrider.core.errors import InvalidInput
from outrider.train.config import EnvManagerConfig, SchedulerConfig, read_scheduler_config

DOCUMENT = """
train_env_manager:
  max_env_num_per_worker: 16
  num_env_groups: 128
  # members of a group share configuration and seed
  group_size: 8
  tags: [FrozenLake]
  num_groups_partition: [128]

val_env_manager:
  max_env_num_per_worker: 32
  num_env_groups: 1024
  group_size: 1
  tags: [SimpleSokoban, LargerSokoban, SokobanDifferentGridVocab, FrozenLake]
  num_groups_partition: [256, 256, 256, 256]
"""

TWO_TAGS = "num_env_groups: 4, tags: [a, b]"


def test_the_document_loads_as_it_stands_and_makes_1024_environments_in_128_groups(tmp_path: Path):
    path = tmp_path / "agentic.yaml"
    path.write_text(DOCUMENT)
    config = read_scheduler_config(path)
    train, val = config.train_env_manager, config.val_env_manager
    assert val is not None
    assert (train.num_env_groups, train.n_envs, config.batch_size) == (128, 1024, 1024)
    assert val.partition == dict.fromkeys(val.tags, 256)
    assert config.is_synchronous


@pytest.mark.parametrize(
    ("groups", "tags", "partition"),
    [
        (8, ("a", "b"), {"a": 4, "b": 4}),
        (8, ("a", "b", "c"), {"a": 3, "b": 3, "c": 2}),
        (1, ("a", "b"), {"a": 1, "b": 0}),
    ],
)
def test_without_a_partition_groups_are_divided_equally_the_rest_to_the_first(
    groups: int, tags: tuple[str, ...], partition: dict[str, int]
):
    assert EnvManagerConfig(num_env_groups=groups, tags=tags).partition == partition


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("train_env_manager: {group_size: 0}", "group_size is 0; give 1 or more"),
        ("train_env_manager: {group_size: 8}\nrollout_batch_size: 12", "not a multiple of group_size 8; 16"),
        (f"train_env_manager: {{{TWO_TAGS}, num_groups_partition: [1, 2]}}", "1 + 2 = 3, but num_env_groups is 4"),
        (f"train_env_manager: {{{TWO_TAGS}, num_groups_partition: [4]}}", "1 numbers for 2 tags"),
        ("train_env_manager: {tags: [a, a]}", "give each environment once"),
        ("train_env_manager: {group_sise: 8}", "did you mean group_size?"),
        ("async_generation_ration: 1", "did you mean async_generation_ratio?"),
        ("async_generation_ratio: -1", "async_generation_ratio is -1"),
        ("max_staleness: -1", "max_staleness is -1"),
        ("turn_seconds: 0", "turn_seconds is 0"),
    ],
)  # fmt: skip
def test_a_configuration_that_cannot_work_is_refused_with_what_to_do(tmp_path: Path, text: str, says: str):
    path = tmp_path / "agentic.yaml"
    path.write_text(text)
    with pytest.raises(InvalidInput) as error:
        read_scheduler_config(path)
    assert says in str(error.value)


def test_a_batch_is_as_large_as_the_environments_unless_said_otherwise():
    manager = EnvManagerConfig(num_env_groups=4, group_size=2)
    assert SchedulerConfig(train_env_manager=manager).batch_size == 8
    assert SchedulerConfig(train_env_manager=manager, rollout_batch_size=4, async_generation_ratio=0.5).batch_size == 4
