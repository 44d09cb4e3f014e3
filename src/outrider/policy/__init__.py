"""Policies: the models that agents ask."""

from outrider.policy.protocol import ChatPolicy, Completion, FinishReason, Sampling, Tokens, Usage

__all__ = ["ChatPolicy", "Completion", "FinishReason", "Sampling", "Tokens", "Usage"]
