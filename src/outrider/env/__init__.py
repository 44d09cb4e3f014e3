"""Environments: what agents act on."""

from outrider.env.protocol import Environment, Environments, Needs, Observation, Score, Step, needs_of

__all__ = ["Environment", "Environments", "Needs", "Observation", "Score", "Step", "needs_of"]
