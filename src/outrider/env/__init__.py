"""Environments: what agents act on."""

from outrider.env.protocol import Environment, Environments, Observation, Score, Step

__all__ = ["Environment", "Environments", "Observation", "Score", "Step"]
