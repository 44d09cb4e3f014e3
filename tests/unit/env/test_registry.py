import sys
import types
from collections.abc import Iterator
from importlib.metadata import EntryPoint, EntryPoints
from typing import Any

import msgspec
import pytest

from outrider.core.chat import Message, user
from outrider.core.errors import InvalidInput
from outrider.core.task import Task
from outrider.env import Environment, Environments, Observation, Step
from outrider.env.registry import BUILT_IN, bundled_tasks, environments_of, tags

GAMES = ("FrozenLake", "SimpleSokoban", "LargerSokoban", "SokobanDifferentGridVocab")


class Echo(Environment):
    """Says how it was made."""

    def __init__(self, task: Task, *, loudness: int = 1) -> None:
        self._said = f"{task.task_id} {loudness}"

    async def reset(self, seed: int | None = None) -> Observation:
        return (user(f"{self._said} {seed}"),)

    async def step(self, action: Message) -> Step:
        return Step(terminated=True)


class Bare(Echo):
    """Takes no task."""

    def __init__(self, loudness: int = 1) -> None:
        self._said = f"bare {loudness}"


class Echoes(Environments):
    """Environments with a configuration of their own."""

    class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
        loudness: int = 1

    def __init__(self, config: Config) -> None:
        self._config = config

    def make(self, task: Task) -> Environment:
        return Echo(task, loudness=self._config.loudness)


class PlainEchoes(Environments):
    """Environments that take their configuration as keywords."""

    def __init__(self, loudness: int = 1) -> None:
        self._loudness = loudness

    def make(self, task: Task) -> Environment:
        return Echo(task, loudness=self._loudness)


@pytest.fixture(autouse=True)
def my_envs(monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
    module = types.ModuleType("my_envs")
    module.__dict__.update(Echo=Echo, Bare=Bare, Echoes=Echoes, PlainEchoes=PlainEchoes, number=3, math=types)
    monkeypatch.setitem(sys.modules, "my_envs", module)
    return module


async def opening(tag: str, config: dict[str, Any] | None = None, task_id: str = "t") -> str:
    (message,) = await environments_of(tag, config).make(Task(task_id=task_id)).reset(4)
    return message.content


def test_every_built_in_tag_is_named():
    assert set(tags()) >= {*GAMES, "math", "py", "rag", "web"}
    assert all(place.startswith("outrider.env.") for place in BUILT_IN.values())


@pytest.mark.parametrize("tag", GAMES)
async def test_a_game_can_be_made_from_its_tag(tag: str):
    environments = environments_of(tag)
    await environments.check()
    assert len(await environments.make(Task(task_id="t")).reset(0)) == 2
    await environments.close()


@pytest.mark.parametrize(
    ("tag", "config", "said"),
    [
        ("my_envs:Echo", None, "t 1 4"),
        ("my_envs:Echo", {"loudness": 2}, "t 2 4"),
        ("my_envs:Bare", {"loudness": 3}, "bare 3 4"),
        ("my_envs:Echoes", None, "t 1 4"),
        ("my_envs:Echoes", {"loudness": 4}, "t 4 4"),
        ("my_envs:PlainEchoes", {"loudness": 5}, "t 5 4"),
    ],
)
async def test_a_users_class_is_made_with_its_configuration(tag: str, config: dict[str, Any] | None, said: str):
    assert await opening(tag, config) == said


async def test_a_tasks_seed_reaches_a_users_class():
    task = Task(task_id="t", metadata={"seed": 11})
    env = environments_of("my_envs:Echo").make(task)
    assert (await env.reset(4))[0].content == "t 1 11"
    assert (await env.step(user(""))).terminated
    assert await env.score() is None
    assert env.tools == ()
    await env.close()


async def test_installed_packages_announce_environments(monkeypatch: pytest.MonkeyPatch):
    announced = EntryPoints([EntryPoint("shouting", "my_envs:Echoes", "outrider.environments")])
    monkeypatch.setattr("importlib.metadata.entry_points", lambda *, group: announced.select(group=group))
    assert "shouting" in tags()
    assert await opening("shouting", {"loudness": 9}) == "t 9 4"
    with pytest.raises(InvalidInput, match=r"did you mean shouting\?"):
        environments_of("shoutin")


@pytest.mark.parametrize(
    ("tag", "reason"),
    [
        ("FrozenLak", "no environment 'FrozenLak'; did you mean FrozenLake? there are FrozenLake, LargerSokoban, "),
        ("simplesokoban", "did you mean SimpleSokoban?"),
        ("", "no environment ''; there are FrozenLake"),
        ("no_such_module:Class", "no module 'no_such_module'"),
        ("my_envs:Ecko", "'my_envs' has no 'Ecko'; did you mean Echo?"),
        ("my_envs:number", "is a int; name a class"),
        ("my_envs:", "write it as module:name"),
        (":Echo", "write it as module:name"),
        ("my_envs.py:Echo", "name the module, not its file: my_envs:Echo"),
        ("./folder/my_envs.py:Echo", "name the module, not its file: folder.my_envs:Echo"),
        ("my_envs:Task", "has no 'Task'"),
    ],
)
def test_an_unknown_tag_is_refused_with_the_nearest_name(tag: str, reason: str):
    with pytest.raises(InvalidInput) as refused:
        environments_of(tag)
    assert reason in str(refused.value)


@pytest.mark.parametrize(
    ("tag", "config", "reason"),
    [
        (
            "FrozenLake",
            {"sise": 5},
            "configuration of FrozenLake: Object contains unknown field `sise`; did you mean size?",
        ),
        ("FrozenLake", {"size": "big"}, "Expected `int`, got `str` - at `$.size`"),
        ("FrozenLake", {"size": 1}, "configuration of FrozenLake: size is 1; give 2 or more"),
        ("FrozenLake", {"p_frozen": 1.5}, "p_frozen is 1.5; give 1 at most"),
        ("FrozenLake", {"glyphs": {"gaol": "G"}}, "unknown field `gaol` - at `$.glyphs`; did you mean goal?"),
        ("FrozenLake", {"glyphs": {"goal": "GG"}}, "goal must be one visible character, not 'GG' - at `$.glyphs`"),
        ("FrozenLake", {"rewards": {"hole": 1e40}}, "hole is 1e+40; give 1e+30 at most - at `$.rewards`"),
        ("FrozenLake", {"rewards": {"xyz": 1}}, "unknown field `xyz` - at `$.rewards`; there are step, hole, goal"),
        ("FrozenLake", {"max_steps": 0}, "max_steps is 0; give 1 or more"),
        ("FrozenLake", {"action_pattern": "("}, "is not a regular expression"),
        ("FrozenLake", {"actions": {"up": "down"}}, "must differ in more than case - at `$.actions`"),
        ("FrozenLake", {"actions": {"up": " up"}}, "one line without blanks around it"),
        ("FrozenLake", {"actions": {"up": "</answer>"}}, "cannot be written in the form <answer>…</answer>"),
        ("LargerSokoban", {"dim_room": [10]}, "Expected `array` of length 2"),
        ("LargerSokoban", {"dim_room": [10, 3]}, "dim_room is 3; give 4 or more"),
        ("LargerSokoban", {"invalid_action_penalty": float("nan")}, "invalid_action_penalty is nan; give a number"),
        ("my_envs:Echoes", {"loudnes": 2}, "did you mean loudness?"),
        ("my_envs:PlainEchoes", {"loudnes": 2}, "did you mean loudness?"),
        ("my_envs:Echo", {"loudnes": 2}, "my_envs:Echo cannot be made with this configuration"),
        ("my_envs:Echo", {"volume": 2}, "it takes loudness"),
    ],
)
def test_a_wrong_configuration_is_refused_with_its_path(tag: str, config: dict[str, Any], reason: str):
    with pytest.raises(InvalidInput) as refused:
        environments_of(tag, config)
    assert reason in str(refused.value)


def test_a_module_that_fails_to_import_something_else_says_so(tmp_path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "broken_envs.py").write_text("import no_such_thing_at_all\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(InvalidInput, match=r"ModuleNotFoundError.*no_such_thing_at_all.*broken_envs\.py:1"):
        environments_of("broken_envs:Env")


@pytest.mark.parametrize("tag", [*GAMES, "my_envs:Bare", "gymnasium:FrozenLake-v1"])
def test_what_has_no_tasks_is_played_from_seeds(tag: str):
    tasks = bundled_tasks(tag, limit=None, seed=0)
    assert len(tasks) == len({task.task_id for task in tasks}) == 10
    name = tag.rpartition(":")[2]
    assert [task.task_id for task in tasks] == [f"{name}-{task.metadata['seed']}" for task in tasks]
    assert tasks == bundled_tasks(tag, limit=12, seed=0)[:10]
    assert tasks != bundled_tasks(tag, limit=10, seed=1)
    assert bundled_tasks(tag, limit=0, seed=0) == []


def test_what_has_tasks_brings_them_in_their_order():
    tasks = bundled_tasks("math", limit=None, seed=0)
    assert tasks
    assert len({task.task_id for task in tasks}) == len(tasks)
    assert all(task.question for task in tasks)
    assert bundled_tasks("math", limit=2, seed=1) == tasks[:2]


def test_a_class_that_takes_a_task_needs_some():
    with pytest.raises(InvalidInput, match=r"my_envs:Echo takes a task and brings none along: .* --data FILE"):
        bundled_tasks("my_envs:Echo", limit=1, seed=0)


def test_tasks_of_an_unknown_tag_are_refused():
    with pytest.raises(InvalidInput, match="did you mean FrozenLake"):
        bundled_tasks("FrozenLace", limit=1, seed=0)
