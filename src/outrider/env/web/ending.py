"""How a web task is scored: by the answer, by the page on which the episode ends, or by both."""

from outrider.core.errors import ScoreError, ToolRefusal
from outrider.core.task import Task
from outrider.env.protocol import Score
from outrider.env.scoring import Scorer
from outrider.env.web.actions import Actions
from outrider.env.web.process import first_line
from outrider.env.web.task import PageCheck

_HOLDS = "async () => {{ try {{ return !!(await ({expression})); }} catch {{ return false; }} }}"
_SHOWS = "text => (document.body ?? document.documentElement)?.innerText.includes(text) ?? false"


class EndingScorer(Scorer):
    """One episode's scorer: a failed check gives 0, else the answer is worth what `answers` say, or 1 if none is asked.

    `answers` is shared, and closed by its owner.
    """

    def __init__(self, answers: Scorer, check: PageCheck | None, actions: Actions) -> None:
        self._answers = answers
        self._check = check
        self._actions = actions

    async def score(self, answer: str, task: Task) -> Score:
        if self._check is None:
            return await self._answers.score(answer, task)
        wrong = await self._wrong_with(self._check, task)
        checked = {"page_check": float(not wrong)}
        if task.answer is None:
            return Score(reward=float(not wrong), output=answer, metrics=checked, explanation=wrong)
        answered = await self._answers.score(answer, task)
        return Score(
            reward=0.0 if wrong else answered.reward,
            output=answered.output,
            metrics={**answered.metrics, **checked},
            explanation=wrong or answered.explanation,
        )

    def check_task(self, task: Task) -> None:
        if task.answer is not None:
            self._answers.check_task(task)

    async def check(self) -> None:
        await self._answers.check()

    async def close(self) -> None: ...

    async def _wrong_with(self, check: PageCheck, task: Task) -> str:
        """What the page lacks; empty: nothing."""
        from playwright.async_api import Error  # noqa: PLC0415

        try:
            async with self._actions.window.acting() as page:
                if not check.fits(page.url):
                    return f"the last page is {page.url}, not {check.url}"
                if check.text is not None and not await page.evaluate(_SHOWS, check.text):
                    return f"the last page does not show {check.text!r}"
                try:
                    is_true = check.js is None or await page.evaluate(_HOLDS.format(expression=check.js))
                except Error as exc:
                    if "SyntaxError" not in str(exc):
                        raise
                    raise ScoreError(f"task {task.task_id!r}: check.js: {first_line(exc)}", stage="score") from exc
                return "" if is_true else f"on the last page this does not hold: {check.js}"
        except ToolRefusal as exc:
            return f"the last page cannot be checked: {exc}"
