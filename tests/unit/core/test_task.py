"""Tasks in rollouts."""

import pytest

from outrider.core.errors import InvalidInput
from outrider.core.task import Task


def test_a_task_comes_back_from_a_rollout_as_it_was():
    task = Task(task_id="t1", question="2+2?", answer=["4", "four"], metadata={"kind": "sum"})
    assert Task.of(task.as_input(), task_id="other") == task


@pytest.mark.parametrize(("input", "question"), [(None, ""), ("2+2?", "2+2?"), (7, "7")])
def test_any_other_input_is_the_question(input: object, question: str):
    assert Task.of(input, task_id="r1") == Task(task_id="r1", question=question)


def test_an_input_of_another_shape_is_refused_with_its_place():
    with pytest.raises(InvalidInput, match=r"task 'r1': Expected `str`, got `int` - at `\$\.question`"):
        Task.of({"question": 3}, task_id="r1")
