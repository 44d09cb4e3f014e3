"""Outrider: rollouts for LLM agents, claimed once, crash-proof, scored."""
