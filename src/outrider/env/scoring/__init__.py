"""Scorers: from an answer to a number."""

from outrider.env.scoring.config import ScorerConfig
from outrider.env.scoring.protocol import Scorer
from outrider.env.scoring.table import SCORERS, scorer_of

__all__ = ["SCORERS", "Scorer", "ScorerConfig", "scorer_of"]
