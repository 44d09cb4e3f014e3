"""What `outrider rollout` makes of its settings, and what it refuses before anything starts."""

from pathlib import Path
from typing import Any

import pytest

from outrider.agent.chat import MAX_TURNS
from outrider.cli.machine_settings import MachineSettings
from outrider.cli.machines import machine_spec, supply_spec
from outrider.cli.rollout_config import RolloutSettings
from outrider.cli.rollout_setup import (
    SLOT_BYTES,
    available_bytes,
    check,
    check_memory,
    demand_of,
    environment_spec,
    episode_spec,
    notes,
    tasks_of,
    worker_spec,
)
from outrider.core.errors import InvalidInput
from outrider.env.osworld.environment import OsworldConfig
from outrider.env.registry import environments_of
from outrider.store import StoreUrl
from outrider.train.config import CustomEnv, EnvManagerConfig

OWN = """
from outrider.env.python import PythonEnvironments

class Acts(PythonEnvironments):
    pass

class Asks:
    def __init__(self, task):
        self.task = task
    def reset(self, seed=None):
        return "?"
    def step(self, action):
        return "", 0.0, True, False, {}
"""


def settings(*tags: str, **changes: Any) -> RolloutSettings:
    manager = EnvManagerConfig(num_env_groups=4, group_size=2, tags=tags or ("FrozenLake",), max_env_num_per_worker=3)
    return RolloutSettings(train_env_manager=manager, **changes)


@pytest.mark.parametrize(
    ("tag", "custom", "name", "config"),
    [
        ("FrozenLake", CustomEnv(), "FrozenLake", {}),
        ("easy", CustomEnv(env="FrozenLake", config={"size": 3}), "FrozenLake", {"size": 3}),
        (
            "FrozenLake",
            CustomEnv(max_steps=5, penalty=-0.5),
            "FrozenLake",
            {"max_steps": 5, "invalid_action_penalty": -0.5},
        ),
        (
            "gymnasium:Taxi-v3",
            CustomEnv(max_steps=5, config={"kwargs": {"is_rainy": True}}),
            "gymnasium:Taxi-v3",
            {"kwargs": {"is_rainy": True, "max_episode_steps": 5}},
        ),
    ],
)
def test_limits_and_penalties_have_the_names_that_the_environment_has_for_them(
    tag: str, custom: CustomEnv, name: str, config: dict[str, Any]
):
    spec = environment_spec(tag, custom)
    assert (spec.name, spec.config) == (name, config)


def test_templates_and_deadlines_reach_the_workers():
    custom = {"FrozenLake": CustomEnv(system_template="Play. {system}", turn_template="Now: {observation}")}
    spec = worker_spec(settings(custom_envs=custom, turn_seconds=7, trajectory_seconds=70), "memory://")
    environment = spec.episodes.environments["FrozenLake"]
    assert (environment.system_template, environment.turn_template) == ("Play. {system}", "Now: {observation}")
    limits = spec.config.limits
    assert (limits.turn_seconds, limits.setup_seconds, limits.trajectory_seconds) == (7, 7, 70)
    assert spec.episodes.sampling.logprobs


def test_a_tag_has_the_tasks_of_its_file_or_of_its_environment_and_a_game_has_none(tmp_path: Path):
    file = tmp_path / "tasks.jsonl"
    file.write_text('{"id": "a", "question": "1 + 1?", "answer": "2"}\n')
    assert [task.task_id for task in tasks_of("math", CustomEnv(tasks=str(file)), seed=0)] == ["a"]
    assert tasks_of("FrozenLake", CustomEnv(), seed=0) == []
    assert all(task.question for task in tasks_of("math", CustomEnv(), seed=0))


async def test_the_tasks_of_all_tags_are_found_when_everything_can_work():
    tasks = await check(settings("FrozenLake", "math"))
    assert set(tasks) == {"math"}


@pytest.mark.parametrize(
    ("tags", "changes", "says"),
    [
        (("FrozenLak",), {}, "there is no environment 'FrozenLak'; did you mean FrozenLake?"),
        (("a",), {"custom_envs": {"a": CustomEnv(env="FrozenLak")}}, "tag a: there is no environment 'FrozenLak'"),
        (("FrozenLake",), {"custom_envs": {"FrozenLake": CustomEnv(config={"sise": 3})}}, "did you mean size?"),
        (("math",), {"custom_envs": {"math": CustomEnv(max_steps=3)}}, "unknown field `max_steps`"),
        (("math",), {"custom_envs": {"math": CustomEnv(tasks="nowhere.jsonl")}}, "nowhere.jsonl"),
        (
            ("own:Asks",),
            {},
            "tag own:Asks: own:Asks takes a task and brings none along: give it some with `tasks: FILE`",
        ),
        (("nowhere:Env",), {}, "there is no module 'nowhere'"),
        (("FrozenLake",), {"filters": ("zero_varianse",)}, "there is no filter 'zero_varianse'"),
        (("FrozenLake",), {"filters": ("nowhere:drop",)}, "there is no module 'nowhere'"),
        (("FrozenLake",), {"model": "builtin:nobody"}, "there is no builtin policy 'nobody'"),
        (("FrozenLake",), {"agent": "nobody"}, "nobody"),
        (("FrozenLake",), {"store": StoreUrl("memory://"), "workers": 2}, "lives in one process"),
    ],
)
async def test_what_could_not_work_is_refused_before_anything_starts(
    tags: tuple[str, ...], changes: dict[str, Any], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "own.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInput) as error:
        await check(settings(*tags, **changes))
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_more_environments_than_memory_are_refused_with_how_many_fit():
    with pytest.raises(InvalidInput, match=r"8 environments at once need about .* are free: 3 fit"):
        check_memory(settings(), available=3 * SLOT_BYTES + 1)
    check_memory(settings(), available=8 * SLOT_BYTES)
    check_memory(settings(), available=None)


def test_an_environment_with_a_browser_takes_more_memory_than_a_game():
    with pytest.raises(InvalidInput, match="fit"):
        check_memory(settings("web"), available=100 << 20)
    check_memory(settings("FrozenLake"), available=100 << 20)


def test_this_machine_says_how_much_memory_it_has():
    available = available_bytes()
    assert available is not None
    assert available > 1 << 20


def test_fewer_slots_than_environments_are_told():
    (note,) = notes(settings(workers=2))
    assert "2 workers of 3 environments run 6 of 8 at once; --workers 3 or" in note
    assert notes(settings(workers=3)) == notes(settings(workers=1)) == []


@pytest.mark.parametrize(
    ("tags", "changes", "acting"),
    [
        (("FrozenLake", "py", "web"), {}, None),
        (("FrozenLake",), {"use_vm_pool": True}, None),
        (("osworld", "py", "FrozenLake"), {}, ("osworld",)),
        (("py", "FrozenLake"), {"provider_name": "process"}, ("py",)),
        (("osworld", "web"), {"pool_name": "desks"}, ("osworld", "web")),
        (("own:Asks", "own:Acts"), {"use_vm_pool": True}, ("own:Acts",)),
        (("own:Acts",), {}, None),
        (("a", "b"), {"custom_envs": {"a": CustomEnv(env="osworld"), "b": CustomEnv(env="osworld")}}, ("osworld",)),
    ],
)
async def test_tags_act_on_machines_if_they_must_or_can_and_are_asked_to(
    tags: tuple[str, ...],
    changes: dict[str, Any],
    acting: tuple[str, ...] | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    (tmp_path / "own.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    demand = await demand_of(settings(*tags, **changes))
    assert (None if demand is None else demand.environments) == acting


async def test_the_wait_for_a_machine_is_allowed_for_and_everything_else_stays_bounded():
    given = settings("py", use_vm_pool=True, num_vms=2, turn_seconds=7, trajectory_seconds=70, sync_seconds=30)
    demand = await demand_of(given)
    supply = supply_spec(demand)
    assert supply is not None
    hold = 70 + 2 * 7 + 30 + 900
    assert supply.pool.max_hold_seconds == hold
    assert supply.wait_seconds == 3 * hold + 300, "eight members take turns on two machines: three are before the last"
    limits = worker_spec(given, "memory://", demand, supply).config.limits
    assert limits.boot_seconds > supply.wait_seconds
    assert (limits.setup_seconds, limits.turn_seconds, limits.trajectory_seconds) == (7, 7, 70)


async def test_a_worker_has_as_many_machines_as_members_that_act_on_them():
    alone = supply_spec(await demand_of(settings("osworld", "FrozenLake")))
    assert alone is not None
    assert (alone.is_shared, alone.pool.n_machines) == (False, 4)
    divided = supply_spec(await demand_of(settings("osworld", "FrozenLake", workers=3)))
    assert divided is not None
    assert divided.pool.n_machines == 3, "that is how many slots it has"
    unbounded = supply_spec(await demand_of(settings("osworld", trajectory_seconds=float("inf"))))
    assert unbounded is not None
    assert unbounded.pool.max_hold_seconds == 4 * 3600


async def test_only_tags_on_machines_are_given_them():
    given = settings("osworld", "py", "FrozenLake")
    demand = await demand_of(given)
    episodes = worker_spec(given, "memory://", demand, supply_spec(demand)).episodes
    assert {tag: spec.on_machines for tag, spec in episodes.environments.items()} == {
        "osworld": True, "py": False, "FrozenLake": False,
    }  # fmt: skip


def test_what_osworld_takes_goes_through_the_settings_of_its_tag():
    config = {"action_space": "pyautogui", "observation_type": "a11y_tree", "client_password": "secret"}
    spec = environment_spec("osworld", CustomEnv(max_steps=9, config=config))
    assert spec.config == {**config, "max_steps": 9}
    environments_of("osworld", spec.config)
    with pytest.raises(InvalidInput, match="did you mean action_space"):
        environments_of("osworld", {"action_spaces": "pyautogui"})


async def test_programs_on_machines_take_no_memory_here():
    on_machines = settings("py", use_vm_pool=True)
    with pytest.raises(InvalidInput, match="fit"):
        check_memory(on_machines, available=100 << 20)
    check_memory(on_machines, 100 << 20, await demand_of(on_machines))


def test_machines_have_the_screen_that_they_are_made_with_unless_another_is_given():
    desktop = machine_spec(MachineSettings(), ("osworld",))
    assert (desktop.provider, desktop.width, desktop.height) == ("desktop", None, None)
    small = machine_spec(MachineSettings(screen_width=1280, screen_height=800), ("osworld",))
    assert (small.width, small.height) == (1280, 800)
    virtual = machine_spec(MachineSettings(provider_name="qemu", path_to_vm="guest"), ("osworld",))
    assert (virtual.width, virtual.height) == (None, None)


def test_osworld_has_as_many_turns_in_training_as_in_a_run():
    spec = environment_spec("osworld", CustomEnv())
    assert "max_steps" not in spec.config
    assert OsworldConfig().max_steps == MAX_TURNS == 100


def test_silence_of_a_server_is_borne_for_half_of_a_turn_unless_it_is_given():
    assert episode_spec(settings("math")).policy.silence_seconds == 120.0
    assert episode_spec(settings("math", turn_seconds=100.0)).policy.silence_seconds == 50.0
    assert episode_spec(settings("math", silence_seconds=7.0)).policy.silence_seconds == 7.0
