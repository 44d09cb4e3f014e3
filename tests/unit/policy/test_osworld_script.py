"""The script for desktop tasks: its plans, and how it plays them. Whether they solve anything is tried on machines."""

import random
from collections.abc import Sequence

import pytest

from outrider.core.chat import Image, Message, ToolSpec, assistant, system, tool_result, user
from outrider.core.task import Task
from outrider.env.osworld import computer_13, pyautogui
from outrider.env.osworld.action import Action, Special
from outrider.env.registry import bundled_tasks
from outrider.policy.scripted.osworld import DONE, PLANS, RULES, WAIT, OsworldScript, Turn, _written

SCREEN = (1280, 800)
TASKS = bundled_tasks("osworld")
SPACES = {"computer_13": computer_13, "pyautogui": pyautogui}


def opening(space: str = "computer_13", question: str = TASKS[0].question) -> list[Message]:
    rules = f"{RULES} …\n\n{SPACES[space].described(SCREEN)}"
    return [system(rules), user(f"{question}\n\nThis is the screen.", picture(0))]


def picture(number: int) -> tuple[Image, ...]:
    return (Image(data=str(number).encode()),)


def answered(message: Message, number: int) -> list[Message]:
    """What the environment answers, with the picture of this number."""
    if not message.tool_calls:
        return [message, user("This is the screen.", picture(number))]
    return [message, *(tool_result(call, "done", picture(number)) for call in message.tool_calls)]


def read(message: Message, space: str) -> Sequence[Action]:
    """What the environment makes of the message. Raises if it cannot use it."""
    if message.tool_calls:
        return [SPACES[space].action_called(call, SCREEN) for call in message.tool_calls]
    return SPACES[space].actions_in(message.content, SCREEN)


def tools_of(space: str, by: str) -> Sequence[ToolSpec]:
    return SPACES[space].tools() if by == "tools" else ()


def played(messages: list[Message], tools: Sequence[ToolSpec] = computer_13.tools()) -> list[str]:
    """The names of what it does on a screen that always moves."""
    names: list[str] = []
    while len(names) < 40:
        reply = OsworldScript().solve(messages, tools)
        names += [call.name for call in reply.tool_calls]
        if names[-1] in ("DONE", "FAIL"):
            return names
        messages += answered(reply, len(names))
    raise AssertionError(names)


def test_each_task_that_can_be_done_has_one_plan_and_each_plan_a_task():
    beginnings = {task.task_id: [plan for plan in PLANS if task.question.startswith(plan)] for task in TASKS}
    infeasible = [task.task_id for task in TASKS if task.metadata["evaluator"]["func"] == "infeasible"]
    assert [name for name, plans in beginnings.items() if len(plans) != 1] == infeasible == ["print-letter"]
    assert {plan for plans in beginnings.values() for plan in plans} == set(PLANS)


def test_it_knows_its_domain_by_the_rules():
    script = OsworldScript()
    assert script.understands(opening(), ())
    assert not script.understands([system("A counting game."), user("?")], computer_13.tools())
    assert not script.understands([], ())


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.task_id)
def test_a_plan_fits_into_an_episode_and_ends(task: Task):
    names = played(opening(question=task.question))
    assert names == ["FAIL"] or names[-2:] == ["WAIT", "DONE"]
    assert len(names) <= 12  # of 15 turns, so that some are left for a machine that is slow


@pytest.mark.parametrize("turn", [turn for plan in PLANS.values() for turn in plan], ids=str)
def test_a_turn_means_the_same_in_every_language(turn: Turn):
    meanings = []
    for space in SPACES:
        for by in ("tools", "text"):
            actions = read(_written(turn, opening(space), tools_of(space, by)), space)
            assert all(action.program is None for action in actions)
            meanings.append([event for action in actions for event in action.events])
    assert meanings[0] != []
    assert meanings == [meanings[0]] * 4


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("by", ["tools", "text"])
def test_the_end_is_said_in_every_language(space: str, by: str):
    for special in (WAIT, DONE):
        (action,) = read(_written((special,), opening(space), tools_of(space, by)), space)
        assert action.special == Special(special[0])


def test_it_waits_while_the_screen_stands_still_but_not_for_ever():
    script, tools, messages = OsworldScript(), computer_13.tools(), opening()
    said = []
    for _ in range(6):
        reply = script.solve(messages, tools)
        said.append(reply.tool_calls[0].name)
        messages += answered(reply, 0)
    assert said == ["CLICK", "WAIT", "WAIT", "WAIT", "TYPING", "WAIT"]
    messages += answered(assistant("hm"), 1)
    assert script.solve(messages, tools).tool_calls[0].name == "HOTKEY"


def test_it_keeps_its_place_whatever_is_done_in_between():
    messages = opening()
    first = OsworldScript().solve(messages, computer_13.tools())
    messages += answered(first, 1)
    messages += answered(OsworldScript().guess(messages, computer_13.tools(), random.Random(1)), 2)
    assert played(messages)[0] == "TYPING"


def test_it_gives_up_what_it_does_not_know():
    assert played(opening(question="Make me a sandwich.")) == ["FAIL"]


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("by", ["tools", "text"])
def test_a_guess_is_always_legal_and_ends_soon_but_never_gives_up(space: str, by: str):
    kinds = set()
    for seed in range(60):
        rng, messages = random.Random(seed), opening(space)
        for n_said in range(8):
            reply = OsworldScript().guess(messages, tools_of(space, by), rng)
            (action,) = read(reply, space)
            kinds.add(action.special or type(action.events[-1]))
            messages += answered(reply, n_said)
            if action.special is not None:
                break
        else:
            raise AssertionError("it never ends")
    assert Special.DONE in kinds
    assert Special.FAIL not in kinds
    assert len(kinds) > 4


def test_what_a_user_puts_before_the_rules_changes_nothing():
    rules, *others = opening()
    told = [system(f"Be terse. Never use pyautogui. The screen is 1 by 1 pixels.\n\n{rules.content}"), *others]
    script = OsworldScript()
    assert script.understands(told, ())
    assert script.solve(told, ()) == script.solve([rules, *others], ())
    assert script.guess(told, (), random.Random(2)) == script.guess([rules, *others], (), random.Random(2))
    assert not script.understands([user(rules.content)], ())
