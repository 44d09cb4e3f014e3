r"""The scorer of mathematics: symbolic equality, found as cheaply as possible."""

import importlib.util

from outrider.core.errors import InvalidInput
from outrider.core.extras import install_command
from outrider.core.task import Task
from outrider.env.protocol import Score
from outrider.env.scoring.checker import SymbolicChecker, Verdict
from outrider.env.scoring.config import ScorerConfig
from outrider.env.scoring.expected import expected_answers, expected_when_scoring
from outrider.env.scoring.extraction import extract_answer
from outrider.env.scoring.plain import ends_with_number, equal_at_sight, formula_in, tidied
from outrider.env.scoring.protocol import Scorer

LONGEST_FORMULA = 4_000
"""Characters beyond which an answer is no formula."""

_LONGEST_SAID = 2_000
"""How much of a text without a marked answer is searched for LaTeX, from the end."""


class MathScorer(Scorer):
    """1 if the answer equals an expected one: boxed or plain, decimal or fraction, set, interval, with a unit."""

    def __init__(self, config: ScorerConfig) -> None:
        self._seconds = config.check_seconds
        self._checker = SymbolicChecker(check_seconds=config.check_seconds, max_processes=config.max_processes)

    async def score(self, answer: str, task: Task) -> Score:
        extracted = extract_answer(answer)
        given = tidied(extracted.text)
        expected = [tidied(text) for text in expected_when_scoring(task)]
        if not given:
            return Score(reward=0.0, output="", explanation="the answer is empty")
        at_sight = [equal_at_sight(text, given) for text in expected]
        if True in at_sight:
            return Score(reward=1.0, output=extracted.text)
        undecided = [text for text, decided in zip(expected, at_sight, strict=True) if decided is None]
        if extracted.marked:
            return await self._compared(undecided, given, "", extracted.text)
        return await self._found(undecided, given[-LONGEST_FORMULA:], answer[-_LONGEST_SAID:], extracted.text)

    async def _found(self, undecided: list[str], prose: str, said: str, output: str) -> Score:
        """The score of an answer that may stand in the middle of a sentence."""
        formula = formula_in(prose)
        at_sight = [ends_with_number(prose, text) or equal_at_sight(text, formula) for text in undecided]
        if True in at_sight:
            return Score(reward=1.0, output=output)
        has_latex = "$" in said or "\\(" in said or "\\[" in said
        rest = [text for text, decided in zip(undecided, at_sight, strict=True) if decided is None or has_latex]
        return await self._compared(rest, formula, said if has_latex else "", output)

    async def _compared(self, undecided: list[str], given: str, said: str, output: str) -> Score:
        if len(given) > LONGEST_FORMULA:
            return Score(reward=0.0, output=output, explanation="the answer is too long for a formula")
        explanation = ""
        for expected in undecided:
            verdict = await self._checker.compare(expected, given, said)
            if verdict is Verdict.EQUAL:
                return Score(reward=1.0, output=output)
            if verdict is Verdict.GAVE_UP:
                explanation = f"the answer takes more than {self._seconds:g} s or too much memory to compare"
        return Score(reward=0.0, output=output, explanation=explanation)

    def check_task(self, task: Task) -> None:
        expected_answers(task)

    async def check(self) -> None:
        if importlib.util.find_spec("math_verify") is None:
            raise InvalidInput(f"the scorer `math` needs a library: {install_command('math')}")

    async def close(self) -> None:
        await self._checker.close()
