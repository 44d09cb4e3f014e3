"""The math environments, as far as they need no other process."""

import pytest

from outrider.core.chat import Role, ToolCall, assistant
from outrider.core.errors import EnvError, InvalidInput, boundary
from outrider.core.task import Task
from outrider.env.math import MathConfig, MathEnvironments
from outrider.env.registry import bundled_tasks, environments_of

TASK = Task(task_id="sum", question="What is 40 + 2?", answer="42")


async def test_an_episode_is_a_question_a_calculation_and_an_answer():
    environments = MathEnvironments(MathConfig())
    env = environments.make(TASK)
    opening = await env.reset(1)
    assert [message.role for message in opening] == [Role.SYSTEM, Role.USER]
    assert "calculator" in opening[0].content
    assert r"\boxed{42}" in opening[0].content
    assert [tool.name for tool in env.tools] == ["calculator"]
    step = await env.step(assistant("", (ToolCall(id="1", name="calculator", arguments='{"expression": "40 + 2"}'),)))
    assert [message.content for message in step.observation] == ["42"]
    assert not step.terminated
    step = await env.step(assistant(r"So \boxed{42}"))
    assert step.terminated
    score = await env.score()
    assert score is not None
    assert score.reward == 1.0
    assert score.output == "42"
    assert score.metrics == {"tool_calls": 1.0, "tool_errors": 0.0}
    await env.close()
    await environments.close()


async def test_an_episode_that_ends_without_an_answer_scores_nothing():
    env = MathEnvironments(MathConfig()).make(TASK)
    await env.reset()
    score = await env.score()
    assert score is not None
    assert (score.reward, score.explanation) == (0.0, "the answer is empty")


async def test_the_calculator_can_be_left_out_and_the_instructions_be_others():
    env = MathEnvironments(MathConfig(calculator=False)).make(TASK)
    assert env.tools == ()
    assert "calculator" not in (await env.reset())[0].content
    env = MathEnvironments(MathConfig(instructions="Be brief.")).make(TASK)
    assert (await env.reset())[0].content == "Be brief."


def test_a_task_without_an_answer_is_refused_before_a_model_sees_it():
    environments = MathEnvironments(MathConfig())
    with pytest.raises(EnvError, match="task 'x' has no answer"), boundary(EnvError, "env.make"):
        environments.make(Task(task_id="x", question="Why?"))


def test_settings_are_checked_when_they_are_read():
    with pytest.raises(InvalidInput, match="scorr"):
        environments_of("math", {"scorr": "math"})
    with pytest.raises(InvalidInput, match="no scorer 'maths'; did you mean math"):
        environments_of("math", {"scorer": "maths"})
    with pytest.raises(InvalidInput, match="tolerance"):
        environments_of("math", {"scorer_config": {"tolerance": -1}})
    environments_of("math", {"scorer": "judge", "scorer_config": {"judge": {"model": "builtin:solver"}}})


def test_forty_tasks_of_several_kinds_are_bundled():
    tasks = bundled_tasks("math")
    environments = MathEnvironments(MathConfig())
    for task in tasks:
        environments.make(task)
    assert len({task.task_id for task in tasks}) == len(tasks) == 40
    kinds = {task.metadata["kind"] for task in tasks}
    assert kinds == {"arithmetic", "fractions", "equations", "inequalities", "percentages", "combinatorics", "algebra"}
