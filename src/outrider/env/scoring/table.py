"""Scorers by name."""

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import partial
from types import MappingProxyType

from msgspec.structs import replace

from outrider.core.errors import InvalidInput
from outrider.core.task import Task
from outrider.env.protocol import Score
from outrider.env.scoring.choice import CHOICES, ChoiceScorer
from outrider.env.scoring.config import ScorerConfig
from outrider.env.scoring.instructions import ARGUMENTS, INSTRUCTION_IDS, InstructionsScorer, has_instructions
from outrider.env.scoring.judge import JudgeScorer
from outrider.env.scoring.math import MathScorer
from outrider.env.scoring.numeric import NumericScorer
from outrider.env.scoring.protocol import Scorer
from outrider.env.scoring.text import Measure, SimilarityScorer, TextScorer
from outrider.policy.protocol import ChatPolicy


def scorer_of(name: str, config: ScorerConfig) -> Scorer:
    """The scorer called `name`; whoever asks for it closes it."""
    make = SCORERS.get(name)
    if make is None:
        near = get_close_matches(name, SCORERS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(SCORERS)}"
        raise InvalidInput(f"there is no scorer {name!r}; {hint}")
    return make(config)


FORM_FIELDS = frozenset({CHOICES, INSTRUCTION_IDS, ARGUMENTS})
"""What a task's metadata has of its form."""


class ScorerByForm(Scorer):
    """Scores each task as its form asks: choices by letter, instructions by their rules, all else as is usual."""

    def __init__(self, usual: Scorer, config: ScorerConfig) -> None:
        self._usual = usual
        self._choice = ChoiceScorer(config)
        self._instructions = InstructionsScorer(config)

    async def score(self, answer: str, task: Task) -> Score:
        return await self._of(task).score(answer, task)

    def check_task(self, task: Task) -> None:
        self._of(task).check_task(task)

    async def check(self) -> None:
        await self._usual.check()

    async def close(self) -> None:
        await self._usual.close()

    def _of(self, task: Task) -> Scorer:
        if has_instructions(task):
            return self._instructions
        return self._choice if isinstance(task.metadata.get(CHOICES), Mapping) else self._usual


def scorer_by_form(name: str | None, config: ScorerConfig, *, usual: str) -> Scorer:
    """The scorer called `name` for all tasks; without a name, the one of each task's form, else the `usual` one."""
    return ScorerByForm(scorer_of(usual, config), config) if name is None else scorer_of(name, config)


def _judge(config: ScorerConfig) -> Scorer:
    spec = config.judge
    if spec is None:
        raise InvalidInput("the scorer `judge` needs a model; name one as `scorer_config: {judge: {model: NAME}}`")

    # A server of its own is not the one that OPENAI_API_KEY is for by itself.
    spec = replace(spec, takes_default_key=not spec.base_urls)

    async def open_judge() -> ChatPolicy:
        from outrider.policy.opening import open_policy  # noqa: PLC0415 most runs have no judge

        return await open_policy(spec)

    return JudgeScorer(replace(config, judge=spec), open_judge)


def _python(config: ScorerConfig) -> Scorer:  # noqa: ARG001 the sandbox has settings of its own
    from outrider.env.scoring.python import PythonTestsScorer  # noqa: PLC0415 it brings the sandbox along

    return PythonTestsScorer()


SCORERS: Mapping[str, Callable[[ScorerConfig], Scorer]] = MappingProxyType(
    {
        "exact_match": partial(TextScorer, Measure.EXACT_MATCH),
        "f1": partial(TextScorer, Measure.F1),
        "contains": partial(TextScorer, Measure.CONTAINS),
        "numeric": NumericScorer,
        "math": MathScorer,
        "choice": ChoiceScorer,
        "instructions": InstructionsScorer,
        "similarity": SimilarityScorer,
        "python": _python,
        "judge": _judge,
    }
)
