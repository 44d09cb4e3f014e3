"""Policies: the models that agents ask."""

from outrider.policy.opening import open_policy
from outrider.policy.protocol import ChatPolicy, Completion, FinishReason, Probe, Sampling, Tokens, Usage
from outrider.policy.spec import Budget, PolicySpec

__all__ = [
    "Budget",
    "ChatPolicy",
    "Completion",
    "FinishReason",
    "PolicySpec",
    "Probe",
    "Sampling",
    "Tokens",
    "Usage",
    "open_policy",
]
