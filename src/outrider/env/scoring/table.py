"""Scorers by name."""

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import partial
from types import MappingProxyType

from msgspec.structs import replace

from outrider.core.errors import InvalidInput
from outrider.env.scoring.config import ScorerConfig
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


def _judge(config: ScorerConfig) -> Scorer:
    spec = config.judge
    if spec is None:
        raise InvalidInput("the scorer `judge` needs a model; name one as `scorer_config: {judge: {model: NAME}}`")

    async def open_judge() -> ChatPolicy:
        from outrider.policy.opening import open_policy  # noqa: PLC0415 most runs have no judge

        # A server of its own is not the one that OPENAI_API_KEY is for by itself.
        return await open_policy(replace(spec, takes_default_key=not spec.base_urls))

    return JudgeScorer(config, open_judge)


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
        "similarity": SimilarityScorer,
        "python": _python,
        "judge": _judge,
    }
)
