"""The scorer of numbers: the last number of an answer, within a tolerance."""

from fractions import Fraction

from outrider.core.errors import InvalidInput, ScoreError
from outrider.core.task import Task
from outrider.env.protocol import Score
from outrider.env.scoring.config import ScorerConfig
from outrider.env.scoring.expected import expected_answers
from outrider.env.scoring.extraction import extract_answer
from outrider.env.scoring.numbers import Number, last_number, readings, whole_number
from outrider.env.scoring.protocol import Scorer


class NumericScorer(Scorer):
    """1 if the number is near enough to an expected one. `tolerance` is relative; to an expected 0 it is absolute."""

    def __init__(self, config: ScorerConfig) -> None:
        self._tolerance = Fraction(config.tolerance)

    async def score(self, answer: str, task: Task) -> Score:
        try:
            expected = _expected_numbers(task)
        except InvalidInput as exc:
            raise ScoreError(str(exc), stage="score") from exc
        extracted = extract_answer(answer).text
        given = last_number(extracted) or last_number(answer)
        if given is None:
            return Score(reward=0.0, output=extracted, explanation="there is no number in the answer")
        is_right = any(self._near(number, given) for number in expected)
        return Score(reward=float(is_right), output=extracted)

    def check_task(self, task: Task) -> None:
        _expected_numbers(task)

    def _near(self, expected: Number, given: Number) -> bool:
        return any(
            abs(wanted - found) <= self._tolerance * (abs(wanted) or 1) for wanted, found in readings(expected, given)
        )


def _expected_numbers(task: Task) -> list[Number]:
    numbers = []
    for text in expected_answers(task):
        number = whole_number(text) or last_number(text)
        if number is None:
            raise InvalidInput(f"task {task.task_id!r}: the expected answer {text[:80]!r} has no number in it")
        numbers.append(number)
    return numbers
