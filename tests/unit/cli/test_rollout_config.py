"""The settings of `outrider rollout`: flags over --set over a file, and what is refused."""

from pathlib import Path

import msgspec
import pytest

from outrider.cli.machine_settings import MachineSettings
from outrider.cli.rollout_config import RolloutSettings, check_same, read_settings, write_settings
from outrider.core.errors import InvalidInput
from outrider.train.config import EnvManagerConfig, SchedulerConfig

FILE = """
train_env_manager: {num_env_groups: 4, group_size: 2, tags: [FrozenLake]}
model: builtin:solver
steps: 7
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "frozen_lake.yaml"
    path.write_text(FILE)
    return path


def test_flags_go_over_single_settings_and_those_over_the_file(file: Path):
    changes = ["train_env_manager.group_size=4", "steps=8", "seed=3", "custom_envs.FrozenLake.max_steps=5"]
    settings = read_settings(file, changes, {"steps": 9})
    assert (settings.steps, settings.seed, settings.model) == (9, 3, "builtin:solver")
    assert (settings.train_env_manager.group_size, settings.train_env_manager.num_env_groups) == (4, 4)
    assert settings.env_of("FrozenLake").max_steps == 5


def test_a_name_may_hold_dashes_and_colons(file: Path):
    name = "gymnasium:FrozenLake-v1"
    settings = read_settings(file, [f"train_env_manager.tags=['{name}']", f"custom_envs.{name}.max_steps=5"])
    assert settings.env_of(name).max_steps == 5


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("steps", "--set 'steps': write it as NAME=VALUE"),
        ("steps=0", "steps is 0; give 1 or more"),
        ("workers=0", "workers is 0; give 1 or more"),
        ("validate_every=0", "validate_every is 0; give 1 or more"),
        ("validate_every=2", "no val_env_manager"),
        ("train_seconds=-1", "train_seconds is -1"),
        ("silence_seconds=0", "silence_seconds is 0"),
        ("sync_seconds=-1", "sync_seconds is -1"),
        ("train_seconds=.nan", "train_seconds is nan"),
        ("seed.x=1", "--set 'seed.x=1': seed holds 5, which has no settings in it"),
        ("modle=x", "unknown field `modle`; did you mean model?"),
        ("train_env_manager.group_sise=2", "did you mean group_size?"),
        ("train_env_manager.group_size=0", "group_size is 0; give 1 or more"),
        ("rollout_batch_size=3", "a batch of 3 is not a multiple of group_size 2; 4 would be"),
        ("seed=[", "--set 'seed=['"),
    ],
)
def test_a_setting_that_cannot_be_used_is_refused_with_what_to_do(file: Path, change: str, says: str):
    file.write_text(FILE + "seed: 5\n")
    with pytest.raises(InvalidInput) as error:
        read_settings(file, [change])
    assert says in str(error.value)


def test_settings_come_back_from_their_file_as_they_were(tmp_path: Path):
    settings = RolloutSettings(
        train_env_manager=EnvManagerConfig(num_env_groups=4, group_size=2, tags=("a", "b")),
        hedge_seconds=None, max_staleness="unbounded", async_generation_ratio=0.5, base_urls=("http://one",),
    )  # fmt: skip
    write_settings(tmp_path / "rollout.yaml", settings)
    assert read_settings(tmp_path / "rollout.yaml") == settings


def test_the_scheduler_gets_its_own_part():
    settings = RolloutSettings(seed=4, rollout_batch_size=8, model="x")
    assert type(settings.scheduler) is SchedulerConfig
    assert settings.scheduler == SchedulerConfig(seed=4, rollout_batch_size=8)


@pytest.mark.parametrize(
    ("workers", "per_worker", "n_slots"), [(1, 2, 30), (2, 100, 15), (2, 8, 8), (4, 100, 8), (64, 100, 1)]
)
def test_one_worker_has_all_slots_and_several_share_them(workers: int, per_worker: int, n_slots: int):
    manager = EnvManagerConfig(
        num_env_groups=6, group_size=4, group_size_redundancy=1, max_env_num_per_worker=per_worker
    )
    assert RolloutSettings(train_env_manager=manager, workers=workers).n_slots == n_slots


def test_the_settings_of_machines_are_those_of_every_command():
    settings, machines = RolloutSettings(), MachineSettings()
    own = {field.name: (field.type, field.default) for field in msgspec.structs.fields(RolloutSettings)}
    assert {field.name: (field.type, field.default) for field in msgspec.structs.fields(MachineSettings)}.items() <= (
        own.items()
    )
    assert settings.machine_settings == machines
    given = RolloutSettings(num_vms=7, machine={"disk_bytes": 3}, pool_name="desks").machine_settings
    assert given == MachineSettings(num_vms=7, machine={"disk_bytes": 3}, pool_name="desks")


def test_single_settings_of_a_provider_and_a_pool_go_over_those_of_the_file(file: Path):
    file.write_text(FILE + "machine: {a: 1, b: 2}\npool: {max_uses: 3}\n")
    read = read_settings(file, ["machine.c=3"], {"machine": {"b": 4}, "pool": {}})
    assert (read.machine, read.pool) == ({"a": 1, "b": 4, "c": 3}, {"max_uses": 3})


def test_a_run_goes_on_with_more_machines_and_not_with_others():
    begun = RolloutSettings(use_vm_pool=True, num_vms=2, path_to_vm="a.qcow2")
    faster = {"num_vms": 9, "pool": {"max_uses": 3}, "pool_name": "desks", "use_vm_pool": False, "headless": True}
    check_same(begun, msgspec.structs.replace(begun, **faster), "mine")
    others = {
        "provider_name": "qemu",
        "path_to_vm": "b",
        "snapshot_name": "s",
        "screen_width": 800,
        "machine": {"a": 1},
    }
    for name, value in others.items():
        with pytest.raises(InvalidInput, match=f"mine was begun with {name}"):
            check_same(begun, msgspec.structs.replace(begun, **{name: value}), "mine")


def test_a_run_goes_on_only_with_what_it_was_begun_with():
    begun = RolloutSettings(train_env_manager=EnvManagerConfig(num_env_groups=4, group_size=2), model="a")
    further = RolloutSettings(train_env_manager=begun.train_env_manager, model="a", steps=99, workers=2, turn_seconds=1)
    check_same(begun, further, "mine")
    other = RolloutSettings(train_env_manager=EnvManagerConfig(num_env_groups=4, group_size=4), model="a")
    with pytest.raises(InvalidInput, match=r"mine was begun with train_env_manager\.group_size 2, and it is 4 now"):
        check_same(begun, other, "mine")
