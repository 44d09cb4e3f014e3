import pytest

from guessing import CountingGame, Games, call
from outrider.core.chat import Message, Role, assistant, system, tool_result, user
from outrider.core.errors import InvalidInput
from outrider.core.task import Task
from outrider.env import Environment, Environments, Observation, Step
from outrider.env.templates import templated

TASK = Task(task_id="1")


async def opening_of(environments: Environments) -> Observation:
    return await environments.make(TASK).reset(0)


async def test_a_system_template_takes_the_place_of_the_instructions():
    games = templated(Games(CountingGame), system_template="Be brief. {{ok}}")
    assert await opening_of(games) == (system("Be brief. {ok}"), user("Count, one number at a time."))


async def test_a_system_template_may_hold_the_instructions():
    games = templated(Games(CountingGame), system_template="{system} Be brief.")
    assert (await opening_of(games))[0] == system("A counting game. Be brief.")


async def test_a_system_prompt_stands_before_the_instructions_as_it_is():
    games = templated(Games(CountingGame), system_prompt="Be {brief}.\n")
    assert (await opening_of(games))[0] == system("Be {brief}.\n\nA counting game.")
    both = templated(Games(CountingGame), system_prompt="First.", system_template="{system} Then.")
    assert (await opening_of(both))[0] == system("First.\n\nA counting game. Then.")
    silent = templated(Games(lambda _: Silent()), system_prompt="Be brief.")
    assert await opening_of(silent) == (system("Be brief."), user("go"))


class Silent(Environment):
    """Has no system message, and answers in two ways."""

    async def reset(self, seed: int | None = None) -> Observation:
        return (user("go"),)

    async def step(self, action: Message) -> Step:
        return Step((tool_result(call("look"), "a {wall}"), user("a {hole}")), 0.5, terminated=True, info={"n": 1})


async def test_where_there_is_no_system_message_the_template_becomes_one():
    games = templated(Games(lambda _: Silent()), system_template="Play.{system}")
    assert await opening_of(games) == (system("Play."), user("go"))


async def test_a_turn_template_goes_around_every_user_message_and_changes_nothing_else():
    env = templated(Games(lambda _: Silent()), turn_template="<{observation}>").make(TASK)
    assert await env.reset(0) == (user("<go>"),)
    step = await env.step(assistant("left"))
    assert [message.content for message in step.observation] == ["a {wall}", "<a {hole}>"]
    assert step.observation[0].role is Role.TOOL
    assert (step.reward, step.terminated, step.truncated, step.info) == (0.5, True, False, {"n": 1})


async def test_without_templates_the_environments_are_as_they_were():
    games = Games(CountingGame)
    assert templated(games) is games


@pytest.mark.parametrize(
    ("templates", "message"),
    [
        ({"system_template": "{sytem}"}, "system_template has {sytem}; it may have {system}"),
        ({"system_template": "{}"}, "system_template has {}"),
        ({"system_template": "{system.content}"}, "system_template has {system.content}"),
        ({"system_template": "{system!r}"}, "a format behind its placeholder"),
        ({"turn_template": "{observation} {turn}"}, "turn_template has {turn}; it may have {observation}"),
        ({"turn_template": "look around"}, "turn_template has no {observation}"),
        ({"turn_template": "{observation"}, "turn_template cannot be read"),
    ],
)
def test_a_placeholder_that_there_is_not_is_refused(templates: dict[str, str], message: str):
    with pytest.raises(InvalidInput) as caught:
        templated(Games(CountingGame), **templates)
    assert message in str(caught.value)
