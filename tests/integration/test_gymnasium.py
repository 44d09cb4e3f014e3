"""Real environments of gymnasium, played in text."""

import sys
import threading
import types
from typing import Any

import gymnasium
import pytest

from leaks import no_leaks
from outrider.core.chat import Message, Role, ToolCall, assistant
from outrider.core.errors import InvalidInput
from outrider.core.task import Task
from outrider.env import Environment, Score
from outrider.env.gymnasium import readable
from outrider.env.registry import environments_of
from outrider.policy.scripted.games import GamesScript
from outrider.testing import check_environment

TASK = Task(task_id="t")
LAKE, TAXI, BLACKJACK = "gymnasium:FrozenLake-v1", "gymnasium:Taxi-v4", "gymnasium:Blackjack-v1"


def make(tag: str, **config: Any) -> Environment:
    return environments_of(tag, config).make(TASK)


def say(action: str) -> Message:
    return assistant(f"<answer>{action}</answer>")


async def score_of(env: Environment) -> Score:
    score = await env.score()
    assert score is not None
    return score


@pytest.mark.parametrize("tag", [LAKE, TAXI, BLACKJACK, "gymnasium:CliffWalking-v1"])
async def test_the_toy_texts_conform(tag: str):
    environments = environments_of(tag)
    await environments.check()
    async with no_leaks():
        found = await check_environment(lambda: environments.make(TASK), actions=[say("1"), say("0"), say("1")])
    assert found.n_steps > 10
    await environments.close()


async def test_frozen_lake_is_crossed_by_the_names_of_its_moves():
    async with no_leaks():
        env = make(LAKE, kwargs={"is_slippery": False})
        rules, first = await env.reset(0)
        assert rules.content.startswith("Frozen lake involves crossing a frozen lake")
        assert "Actions: Left, Down, Right, Up\n" in rules.content
        assert "in the form <answer>ACTION</answer>, for example: <answer>Left</answer>" in rules.content
        assert "## Arguments" not in rules.content
        assert first.content == "<red>S</red>FFF\nFHFH\nFFFH\nHFFG"
        for action in ("Down", "down", "Right", "2", "Down", "Right"):
            step = await env.step(say(action))
        assert (step.reward, step.terminated, step.truncated) == (1.0, True, False)
        assert step.observation[0].content == "  (Right)\nSFFF\nFHFH\nFFFH\nHFF<red>G</red>"
        score = await score_of(env)
        assert (score.reward, score.metrics) == (1.0, {"n_actions": 6.0, "n_invalid": 0.0})
        await env.close()
        await env.close()


async def test_a_hole_ends_without_a_reward_and_the_time_limit_truncates():
    env = make(LAKE, kwargs={"is_slippery": False, "max_episode_steps": 2})
    await env.reset(0)
    await env.step(say("Right"))
    step = await env.step(say("Down"))
    assert (step.reward, step.terminated) == (0.0, True)
    await env.close()
    env = make(LAKE, kwargs={"is_slippery": False, "max_episode_steps": 2})
    await env.reset(0)
    ends = [(step.terminated, step.truncated) for step in [await env.step(say("Up")) for _ in range(2)]]
    assert ends == [(False, False), (False, True)]
    await env.close()


async def test_slippery_ice_follows_the_seed():
    async def walk(seed: int) -> list[str]:
        env = make(LAKE)
        await env.reset(seed)
        seen = []
        for _ in range(6):
            step = await env.step(say("Up"))
            seen.append(step.observation[0].content)
        await env.close()
        return seen

    assert await walk(3) == await walk(3)
    assert len({tuple(await walk(seed)) for seed in range(8)}) > 1
    assert await walk(-3) == await walk(-3)


async def test_a_taxi_shows_its_passenger_and_carries_it():
    env = make(TAXI)
    rules, first = await env.reset(1)
    assert "Actions: South, North, East, West, Pickup, Dropoff" in rules.content
    assert "blue the waiting passenger and magenta the destination" in rules.content
    assert first.content.splitlines()[3] == "| : :<yellow> </yellow>: : |"
    assert "|<magenta>R</magenta>: | : :G|" in first.content
    assert "|<blue>B</blue>: |" in first.content
    route = ["East", "South", "South", "Pickup", "North", "North", "West", "West", "West", "North", "North", "Dropoff"]
    steps = [await env.step(say(action)) for action in route]
    assert "<green>_</green>" in steps[4].observation[0].content
    assert steps[-1].terminated
    assert steps[-1].reward == 20.0
    assert (await score_of(env)).reward == 20.0 - (len(route) - 1)
    assert steps[0].info["action_mask"] == [1, 1, 1, 1, 0, 0]
    await env.close()


async def test_blackjack_is_played_by_its_numbers_in_words():
    env = make(BLACKJACK)
    rules, first = await env.reset(1)
    assert "Actions: Stick, Hit" in rules.content
    assert first.content == "(20, 7, 0)"
    step = await env.step(say("Stick"))
    assert step.terminated
    assert step.reward in {-1.0, 0.0, 1.0}
    await env.close()


async def test_an_invalid_answer_is_told_and_the_world_stands_still():
    env = make(LAKE, invalid_action_penalty=-0.5, kwargs={"is_slippery": False})
    _, first = await env.reset(0)
    for action, told in [
        (say("Jump"), "'Jump' is not an action. The actions are Left, Down, Right, Up."),
        (say("7"), "'7' is not an action."),
        (say("-1"), "'-1' is not an action."),
        (assistant("Left"), "There was no answer in the form <answer>Left</answer>."),
    ]:
        step = await env.step(action)
        assert step.reward == -0.5
        assert step.observation[0].content.startswith(told)
        assert step.observation[0].content.endswith(first.content)
    step = await env.step(assistant("", (ToolCall(id="a", name="move"),)))
    assert [message.role for message in step.observation] == [Role.TOOL, Role.USER]
    score = await score_of(env)
    assert (score.reward, score.metrics) == (-2.5, {"n_actions": 5.0, "n_invalid": 5.0})
    await env.close()


async def test_names_rules_and_form_can_be_chosen():
    env = make(
        LAKE,
        actions=["West", "South", "East", "North"],
        instructions="Cross it.",
        action_pattern=r"\[(.*?)\]",
        answer_example="[{action}]",
        kwargs={"is_slippery": False},
    )
    rules, _ = await env.reset(0)
    assert rules.content.startswith("Cross it.")
    assert "Actions: West, South, East, North" in rules.content
    step = await env.step(assistant("[east]"))
    assert "S<red>F</red>FF" in step.observation[0].content
    await env.close()


class Parrot(gymnasium.Env[str, str]):
    """Says what it is told, backwards. It may be used in one thread only."""

    action_space = gymnasium.spaces.Text(max_length=5, charset="abc")
    observation_space = gymnasium.spaces.Text(max_length=5, charset="abc")
    closed: list[str]

    def __init__(self, closed: list[str] | None = None) -> None:
        self._thread = threading.get_ident()
        self.closed = [] if closed is None else closed

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        assert threading.get_ident() == self._thread
        return "abc", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        assert threading.get_ident() == self._thread
        return action[::-1], 0.5, action == "c", False, {}

    def close(self) -> None:
        assert threading.get_ident() == self._thread
        self.closed.append("closed")


class Steering(Parrot):
    """Wants a number with a fraction."""

    action_space = gymnasium.spaces.Box(-1.0, 1.0)  # type: ignore[assignment]


@pytest.fixture
def my_gym(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("my_gym")
    module.__dict__.update(Parrot=Parrot, Steering=Steering)
    monkeypatch.setitem(sys.modules, "my_gym", module)


@pytest.mark.usefixtures("my_gym")
async def test_a_users_own_environment_with_texts_is_played():
    closed: list[str] = []
    async with no_leaks():
        env = make("my_gym:Parrot", kwargs={"closed": closed})
        rules, first = await env.reset(0)
        assert rules.content.startswith("Says what it is told, backwards.")
        assert rules.content.endswith("Answer each turn in the form <answer>ACTION</answer>")
        assert first.content == "abc"
        assert (await env.step(say("aab"))).observation[0].content == "baa"
        assert "'xyz' is not an action." in (await env.step(say("xyz"))).observation[0].content
        assert (await env.step(say("c"))).terminated
        assert closed == []
        await env.close()
        assert closed == ["closed"]


@pytest.mark.usefixtures("my_gym")
async def test_a_users_own_environment_conforms():
    environments = environments_of("my_gym:Parrot")
    async with no_leaks():
        await check_environment(lambda: environments.make(TASK), actions=[say("a"), say("c")])


@pytest.mark.parametrize(
    ("tag", "config", "reason"),
    [
        ("gymnasium:FrozenLak-v1", {}, "gymnasium:FrozenLak-v1: .*FrozenLake"),
        ("gymnasium:no_such_module:Env-v0", {}, "no_such_module"),
        ("gymnasium:", {}, "gymnasium:: Malformed environment ID"),
        (LAKE, {"kwargz": {}}, "unknown field `kwargz`; did you mean kwargs?"),
    ],
)
def test_an_unknown_environment_is_refused(tag: str, config: dict[str, Any], reason: str):
    with pytest.raises(InvalidInput, match=reason):
        environments_of(tag, config)


@pytest.mark.usefixtures("my_gym")
@pytest.mark.parametrize(
    ("tag", "config", "reason"),
    [
        (LAKE, {"kwargs": {"depth": 3}}, "FrozenLake cannot be made: .*unexpected keyword argument 'depth'"),
        (LAKE, {"actions": ["Left", "Right"]}, "FrozenLake has 4 actions, but `actions` names 2"),
        ("gymnasium:MountainCarContinuous-v0", {}, "action space Box.*; only Discrete and Text can be played in text"),
        ("my_gym:Steering", {}, "Steering has the action space Box"),
    ],
)
async def test_what_cannot_be_played_is_found_before_a_run(tag: str, config: dict[str, Any], reason: str):
    async with no_leaks():
        with pytest.raises(InvalidInput, match=reason):
            await environments_of(tag, config).check()


async def test_an_environment_without_names_is_played_by_numbers():
    env = make("gymnasium:CartPole-v1")
    rules, first = await env.reset(0)
    assert "Actions: 0, 1\n" in rules.content
    assert first.content.startswith("[")
    assert (await env.step(say("1"))).reward == 1.0
    await env.close()


@pytest.mark.parametrize("tag", [LAKE, TAXI, BLACKJACK])
async def test_the_script_for_games_tries_the_actions_it_reads(tag: str):
    script = GamesScript()
    env = make(tag)
    messages = list(await env.reset(0))
    assert script.understands(messages, ())
    for _ in range(3):
        action = script.solve(messages, ())
        step = await env.step(action)
        messages += [action, *step.observation]
        if step.terminated:
            break
    assert (await score_of(env)).metrics["n_invalid"] == 0.0
    await env.close()


@pytest.mark.parametrize(
    ("drawing", "text"),
    [
        ("\x1b[34;1m\x1b[43mR\x1b[0m\x1b[0m:", "<blue><yellow>R</yellow></blue>:"),
        ("\x1b[2J\x1b[1;1Hplain\x1b[0m", "plain"),
        ("\x1b[31mopen", "<red>open</red>"),
        ("\x1b[1mbold\x1b[0m \x1b[38mx\x1b[m", "bold <crimson>x</crimson>"),
        ("\n\nx\n", "x"),
    ],
)
def test_colours_become_tags(drawing: str, text: str):
    assert readable(drawing) == text


def test_without_the_extra_it_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(InvalidInput, match=r"pip install -e \S+\[gymnasium\]"):
        environments_of(LAKE)
