"""Scorers: from an answer to a number."""

from outrider.env.scoring.protocol import Scorer

__all__ = ["Scorer"]
