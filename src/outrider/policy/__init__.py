"""Policies: the models that agents ask."""

from outrider.policy.opening import open_policy
from outrider.policy.protocol import ChatPolicy, Completion, FinishReason, Sampling, Tokens, Usage
from outrider.policy.spec import Budget, PolicySpec

__all__ = [
    "Budget",
    "ChatPolicy",
    "Completion",
    "FinishReason",
    "PolicySpec",
    "Sampling",
    "Tokens",
    "Usage",
    "open_policy",
]
