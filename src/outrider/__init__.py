"""Outrider runs LLM agents on tasks, scores them, and keeps every conversation.

A name is loaded when it is first used: `outrider status` needs neither agents nor runners.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from outrider.agent import Context, Result, current
    from outrider.core.errors import LeaseLost, OutriderError
    from outrider.core.rollout import AttemptedRollout, Rollout, RolloutConfig, RolloutRequest
    from outrider.runner import Runner, RunnerConfig, local_workers
    from outrider.store import Store, open_store

__version__ = "0.1.0"

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

_HOMES = {
    "outrider.agent": ("Context", "Result", "current"),
    "outrider.core.errors": ("LeaseLost", "OutriderError"),
    "outrider.core.rollout": ("AttemptedRollout", "Rollout", "RolloutConfig", "RolloutRequest"),
    "outrider.runner": ("Runner", "RunnerConfig", "local_workers"),
    "outrider.store": ("Store", "open_store"),
}


def __getattr__(name: str) -> object:
    for home, names in _HOMES.items():
        if name in names:
            found: object = getattr(import_module(home), name)
            globals()[name] = found
            return found
    raise AttributeError(f"module 'outrider' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
