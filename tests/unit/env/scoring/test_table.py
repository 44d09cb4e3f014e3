"""Scorers by name."""

import pytest

from outrider.core.errors import InvalidInput
from outrider.env.scoring import SCORERS, Scorer, ScorerConfig, scorer_of
from outrider.policy.spec import PolicySpec


@pytest.mark.parametrize("name", sorted(SCORERS))
async def test_every_name_stands_for_a_scorer_that_can_be_closed_unused(name: str):
    scorer: Scorer = scorer_of(name, ScorerConfig(judge=PolicySpec(model="builtin:solver")))
    await scorer.close()


def test_an_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(InvalidInput, match="no scorer 'exact'; did you mean exact_match"):
        scorer_of("exact", ScorerConfig())
    with pytest.raises(InvalidInput, match="no scorer 'zzz'; there are exact_match"):
        scorer_of("zzz", ScorerConfig())


def test_a_judge_needs_a_model():
    with pytest.raises(InvalidInput, match="needs a model"):
        scorer_of("judge", ScorerConfig())
