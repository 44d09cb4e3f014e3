"""Scorers: from an answer to a number."""

from outrider.env.scoring.config import ScorerConfig
from outrider.env.scoring.protocol import Scorer
from outrider.env.scoring.table import FORM_FIELDS, SCORERS, scorer_by_form, scorer_of

__all__ = ["FORM_FIELDS", "SCORERS", "Scorer", "ScorerConfig", "scorer_by_form", "scorer_of"]
