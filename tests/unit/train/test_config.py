"""The configuration of a scheduler: as the document writes it, and what is refused."""

from pathlib import Path

import pytest

from outrider.core.errors import InvalidInput
from outrider.train.config import EnvManagerConfig, SchedulerConfig, read_scheduler_config, warnings_of

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
        ("trajectory_seconds: -1", "trajectory_seconds is -1"),
        ("batch_seconds: 0", "batch_seconds is 0"),
        ("hedge_seconds: 0", "hedge_seconds is 0"),
        ("max_refills: -1", "max_refills is -1; give 0 or more"),
        ("max_buffer_bytes: -1", "max_buffer_bytes is -1; give 0 or more"),
        ("rollout_batch_size: 0", "rollout_batch_size is 0; give 1 or more"),
        ("async_generation_ratio: .inf", "async_generation_ratio is inf"),
        ("async_generation_ratio: 2\nmax_staleness: 1", "give a ratio of 1 or less"),
        ("max_staleness: forever", "at `$.max_staleness`"),
        ("train_env_manager: {num_env_groups: 0}", "num_env_groups is 0; give 1 or more"),
        ("train_env_manager: {max_env_num_per_worker: 0}", "max_env_num_per_worker is 0; give 1 or more"),
        ("train_env_manager: {group_size_redundancy: -1}", "group_size_redundancy is -1; give 0 or more"),
        ("train_env_manager: {tags: []}", "at least one"),
        ("train_env_manager: {temperature: -0.5}", "temperature is -0.5"),
        (f"train_env_manager: {{{TWO_TAGS}, num_groups_partition: [5, 0]}}", "the parts must add up to it"),
        ("train_env_manager: {group_size: many}", "Expected `int`, got `str` - at `$.train_env_manager.group_size`"),
        ("val_env_manager: {group_sise: 1}", "at `$.val_env_manager`; did you mean group_size?"),
        ("custom_envs: {FrozenLake: {max_step: 3}}", "at `$.custom_envs.FrozenLake`; did you mean max_steps?"),
        ("custom_envs: {FrozenLake: {max_steps: 0}}", "max_steps is 0; give 1 or more"),
        ("custom_envs: {FrozenLake: {max_tokens_per_step: 0}}", "max_tokens_per_step is 0; give 1 or more"),
        ("custom_envs: {Sokoban: {}}", "'Sokoban', which is not a tag of an env manager; there are FrozenLake"),
        ("- 1", "holds list; write settings as `name: value`"),
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


@pytest.mark.parametrize(
    ("ratio", "staleness", "bound"),
    [(0, None, 0), (0.5, None, 1), (2, None, 2), (0.5, 3, 3), (4, "unbounded", None)],
)
def test_the_bound_of_staleness_follows_the_ratio_unless_it_is_given(ratio: float, staleness: object, bound: object):
    config = SchedulerConfig(async_generation_ratio=ratio, max_staleness=staleness)
    assert config.staleness_bound == bound
    assert config.is_synchronous == (ratio == 0)


def test_redundant_members_count_as_seats_and_not_as_environments():
    manager = EnvManagerConfig(num_env_groups=4, group_size=6, group_size_redundancy=2, max_env_num_per_worker=10)
    assert (manager.n_envs, manager.n_seats, manager.n_workers) == (24, 8, 4)


def test_a_tag_stands_for_itself_unless_custom_envs_says_more(tmp_path: Path):
    path = tmp_path / "agentic.yaml"
    path.write_text("custom_envs: {FrozenLake: {env: SimpleSokoban, penalty: -0.5, config: {dim: 5}}}")
    config = read_scheduler_config(path)
    assert (config.env_of("FrozenLake").env, config.env_of("FrozenLake").penalty) == ("SimpleSokoban", -0.5)
    assert config.env_of("FrozenLake").config == {"dim": 5}
    assert config.env_of("another").env is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("val_env_manager: {group_size: 2}", "val_env_manager.group_size is 2"),
        ("val_env_manager: {temperature: 0.7}", "val_env_manager.temperature is 0.7"),
        ("filters: [zero_variance]", "drops every group of one member"),
    ],
)
def test_what_is_allowed_and_probably_not_meant_is_told(tmp_path: Path, text: str, says: str):
    path = tmp_path / "agentic.yaml"
    path.write_text(text)
    (warning,) = warnings_of(read_scheduler_config(path))
    assert says in warning


def test_the_document_gives_no_warning(tmp_path: Path):
    path = tmp_path / "agentic.yaml"
    path.write_text(DOCUMENT)
    assert warnings_of(read_scheduler_config(path)) == []
