"""The scorer of numbers."""

import pytest

from outrider.core.errors import InvalidInput
from outrider.core.task import Task
from outrider.env.scoring import ScorerConfig, scorer_of


async def reward(given: str, expected: object, **config: float) -> float:
    scorer = scorer_of("numeric", ScorerConfig(**config))
    return (await scorer.score(given, Task(task_id="t", answer=expected))).reward


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("42", 42),
        ("It costs $1,234.50.", "1234.5"),
        (r"Half of it: \boxed{\frac{1}{2}}", 0.5),
        ("0.3333333333", "1/3"),
        ("25%", "0.25"),
        ("25", "25%"),
        ("The answer is 7 apples", "7"),
        ("about 3 hours", ["2", "3"]),
        ("0", 0),
    ],
)
async def test_equal_numbers_are_right_however_they_are_written(given: str, expected: object):
    assert await reward(given, expected) == 1.0


@pytest.mark.parametrize(
    ("given", "expected"),
    [("41", 42), ("no idea", 42), ("", 42), ("-5", 5), ("0.33", "1/3"), ("2e-9", "1e-9"), ("0.1", 0), ("2500", "25%")],
)
async def test_other_numbers_are_wrong(given: str, expected: object):
    assert await reward(given, expected) == 0.0


async def test_the_tolerance_is_relative():
    assert await reward("101", 100, tolerance=0.01) == 1.0
    assert await reward("101.1", 100, tolerance=0.01) == 0.0
    assert await reward("100.0000001", 100, tolerance=0.0) == 0.0


def test_an_expected_answer_without_a_number_is_refused():
    with pytest.raises(InvalidInput, match="no number"):
        scorer_of("numeric", ScorerConfig()).check_task(Task(task_id="t", answer="many"))
