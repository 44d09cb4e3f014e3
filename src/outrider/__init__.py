"""Outrider: rollouts for LLM agents, claimed once, crash-proof, scored."""

from outrider.agent import Context, Result, current
from outrider.core.errors import LeaseLost, OutriderError
from outrider.core.rollout import AttemptedRollout, Rollout, RolloutConfig, RolloutRequest
from outrider.runner import Runner, RunnerConfig, local_workers
from outrider.store import Store, open_store

__all__ = [
    "AttemptedRollout",
    "Context",
    "LeaseLost",
    "OutriderError",
    "Result",
    "Rollout",
    "RolloutConfig",
    "RolloutRequest",
    "Runner",
    "RunnerConfig",
    "Store",
    "current",
    "local_workers",
    "open_store",
]
