"""What all games have in common: how they speak, what they count, how they end."""

from typing import Any

import pytest

from outrider.core.chat import Message, Role, ToolCall, assistant
from outrider.core.errors import EnvError, InvalidInput
from outrider.core.task import Task
from outrider.env.protocol import Environment
from outrider.env.registry import environments_of

GAMES = ("FrozenLake", "SimpleSokoban", "LargerSokoban", "SokobanDifferentGridVocab")
TASK = Task(task_id="t")


def say(action: str) -> Message:
    return assistant(f"<answer>{action}</answer>")


async def opened(tag: str, seed: int = 0, **config: Any) -> Environment:
    env = environments_of(tag, config).make(TASK)
    await env.reset(seed)
    return env


@pytest.mark.parametrize("tag", GAMES)
async def test_the_opening_tells_the_rules_the_legend_and_the_form(tag: str):
    rules, first = await environments_of(tag).make(TASK).reset(7)
    assert (rules.role, first.role) == (Role.SYSTEM, Role.USER)
    assert "in the form <answer>ACTION</answer>, for example: <answer>Up</answer>" in rules.content
    lines = first.content.splitlines()
    assert (lines[0], lines[-1]) == ("Turn 1:", "Actions left: 10")
    assert all(f"{glyph} = " in rules.content for glyph in {*"".join(lines[1:-1])})


async def test_names_glyphs_and_form_can_be_chosen():
    config = {
        "glyphs": {"player": "@", "frozen": "·"},
        "actions": {"up": "North", "down": "South", "left": "West", "right": "East"},
        "action_pattern": r"\[move:(.*?)\]",
        "answer_example": "[move:{action}]",
        "p_frozen": 1.0,
        "max_steps": 99,
    }
    env = environments_of("FrozenLake", config).make(TASK)
    rules, first = await env.reset(1)
    assert "@ = you" in rules.content
    assert "- West: go one cell left" in rules.content
    assert "for example: [move:North]" in rules.content
    assert {*"".join(first.content.splitlines()[1:-1])} == {"@", "·", "G"}
    for _ in range(4):
        step = await env.step(assistant("west it is [move: west ]"))
    assert step.info == {"action": "West", "is_valid": True, "is_effective": False}
    assert not (await env.step(say("West"))).info["is_valid"]


@pytest.mark.parametrize(
    ("action", "told"),
    [
        (assistant("I go up"), "There was no answer in the form <answer>Up</answer>."),
        (assistant(""), "There was no answer in the form"),
        (say("Jump"), "'Jump' is not an action; the actions are Up, Down, Left, Right."),
        (say(""), "'' is not an action"),
        (say("Up, Up"), "'Up, Up' is not an action"),
        (say("x" * 10_000), f"'{'x' * 40}' is not an action"),
    ],
)
@pytest.mark.parametrize(("tag", "penalty"), [("FrozenLake", -0.01), ("LargerSokoban", -0.15)])
async def test_an_invalid_answer_costs_a_step_and_a_penalty_and_moves_nothing(
    tag: str, penalty: float, action: Message, told: str
):
    env = environments_of(tag).make(TASK)
    _, before = await env.reset(0)
    step = await env.step(action)
    assert (step.reward, step.terminated, step.truncated) == (penalty, False, False)
    assert step.info == {"action": None, "is_valid": False, "is_effective": False}
    (said,) = step.observation
    assert said.content.startswith(told)
    assert said.content.splitlines()[2:-1] == before.content.splitlines()[1:-1]
    assert said.content.endswith("Actions left: 9")


async def test_actions_are_read_whatever_their_case():
    env = await opened("SimpleSokoban")
    assert (await env.step(say(" uP "))).info["is_valid"]


async def test_a_call_of_a_tool_that_is_not_there_is_answered_and_invalid():
    env = await opened("SimpleSokoban")
    calls = (ToolCall(id="a", name="move"), ToolCall(id="b", name="move", arguments="{"))
    step = await env.step(assistant("<answer>Up</answer>", calls))
    assert [(message.role, message.tool_call_id) for message in step.observation] == [
        (Role.TOOL, "a"),
        (Role.TOOL, "b"),
        (Role.USER, None),
    ]
    assert (step.info["is_valid"], step.reward) == (False, -0.15)


@pytest.mark.parametrize("tag", GAMES)
async def test_the_limit_truncates_and_does_not_terminate(tag: str):
    env = await opened(tag, max_steps=3)
    ends = []
    for _ in range(3):
        step = await env.step(say("nowhere"))
        ends.append((step.terminated, step.truncated))
    assert ends == [(False, False), (False, False), (False, True)]
    assert step.observation[0].content.splitlines()[1] == "The game is over: you ran out of steps."
    score = await env.score()
    assert score is not None
    assert score.explanation == "ran out of steps"
    assert score.metrics == {"success": 0.0, "n_actions": 3.0, "n_invalid": 3.0, "n_effective": 0.0}


async def test_a_win_on_the_last_step_is_an_end_and_no_truncation():
    env = environments_of("FrozenLake", {"max_steps": 1}).make(TASK)
    _, view = await env.reset(0)
    rows = view.content.splitlines()[1:-1]
    ((row, column),) = [(r, c) for r, line in enumerate(rows) for c, glyph in enumerate(line) if glyph == "P"]
    goal = {"Up": (-1, 0), "Down": (1, 0), "Left": (0, -1), "Right": (0, 1)}
    (action,) = [
        name
        for name, (down, right) in goal.items()
        if 0 <= row + down < 4 and 0 <= column + right < 4 and rows[row + down][column + right] == "G"
    ]
    step = await env.step(say(action))
    assert (step.reward, step.terminated, step.truncated) == (1.0, True, False)
    score = await env.score()
    assert score is not None
    assert (score.reward, score.explanation) == (1.0, "reached the goal")
    assert score.metrics == {"success": 1.0, "n_actions": 1.0, "n_invalid": 0.0, "n_effective": 1.0}
    assert "√" in score.output


async def test_the_score_is_the_sum_of_the_rewards_however_the_episode_ended():
    env = await opened("SimpleSokoban", seed=3)
    rewards = [(await env.step(say(action))).reward for action in ("Up", "fly", "Left", "Down")]
    score = await env.score()
    assert score is not None
    assert score.reward == pytest.approx(sum(rewards))
    assert score.explanation == "stopped before the end"
    assert score.metrics["n_actions"] == 4
    assert score.metrics["n_invalid"] == 1


async def test_without_a_limit_nothing_is_counted_down():
    env = environments_of("SimpleSokoban", {"max_steps": None, "search_depth": 20}).make(TASK)
    _, view = await env.reset(0)
    assert "Actions left" not in view.content
    for _ in range(50):
        step = await env.step(say("stay"))
    assert not step.truncated


async def test_the_seed_decides_the_level_and_the_task_may_fix_it():
    def level(task: Task, seed: int | None) -> Any:
        return environments_of("LargerSokoban").make(task).reset(seed)

    fixed = Task(task_id="f", metadata={"seed": 5})
    assert await level(TASK, 5) == await level(TASK, 5) == await level(fixed, 9) == await level(fixed, None)
    assert await level(TASK, 5) != await level(TASK, 6)
    assert await level(TASK, None) != await level(TASK, None)


@pytest.mark.parametrize("seed", ["5", 1.0, True, [1]])
def test_a_seed_that_is_no_number_is_refused(seed: Any):
    with pytest.raises(InvalidInput, match=r"task 'f': metadata\.seed must be a whole number"):
        environments_of("FrozenLake").make(Task(task_id="f", metadata={"seed": seed}))


async def test_a_game_is_played_once():
    env = await opened("FrozenLake", max_steps=1)
    with pytest.raises(EnvError, match="played once"):
        await env.reset(0)
    await env.step(say("stay"))
    with pytest.raises(EnvError, match="the game is over"):
        await env.step(say("stay"))
    with pytest.raises(EnvError, match="has not begun"):
        await environments_of("FrozenLake").make(TASK).step(say("Up"))


async def test_a_game_that_never_began_has_a_score_and_closes():
    env = environments_of("FrozenLake").make(TASK)
    score = await env.score()
    assert score is not None
    assert (score.reward, score.metrics["success"], score.output) == (0.0, 0.0, None)
    await env.close()
    await env.close()
