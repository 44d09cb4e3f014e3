"""What an attempt has taken so far: turns, steps, tokens and time."""

import math
from collections.abc import Mapping
from typing import Any

from outrider.core.account import Account
from outrider.policy import Completion


class Spending:
    """The sums of one attempt. A call that did not come to its end counts nothing."""

    def __init__(self) -> None:
        self._n_turns = 0
        self._n_steps = 0
        self._prompt_tokens = 0
        self._completion_tokens = 0
        self._cached_tokens = 0
        self._n_retries = 0
        self._model_seconds = 0.0
        self._env_seconds = 0.0
        self._reset_seconds = 0.0
        self._first_version: int | None = None
        self._last_version: int | None = None

    def turn(self, completion: Completion, seconds: float) -> None:
        usage = completion.usage
        self._n_turns += 1
        self._prompt_tokens += usage.prompt_tokens
        self._completion_tokens += usage.completion_tokens
        self._cached_tokens += usage.cached_tokens
        self._n_retries += completion.n_retries
        self._model_seconds += seconds
        self._last_version = completion.policy_version
        if self._first_version is None:
            self._first_version = completion.policy_version

    def reset(self, seconds: float) -> None:
        self._reset_seconds += seconds

    def step(self, seconds: float) -> None:
        self._n_steps += 1
        self._env_seconds += seconds

    @property
    def metrics(self) -> dict[str, float]:
        """What a result tells of it; `env_seconds` is with the reset."""
        return {
            "turns": float(self._n_turns),
            "prompt_tokens": float(self._prompt_tokens),
            "completion_tokens": float(self._completion_tokens),
            "cached_tokens": float(self._cached_tokens),
            "model_seconds": self._model_seconds,
            "env_seconds": self._env_seconds + self._reset_seconds,
            "retries": float(self._n_retries),
        }

    def account(self, *, n_bytes: int, held_seconds: float, metrics: Mapping[str, Any]) -> Account:
        """All of it, with those `metrics` of a result that are finite numbers and do not stand here already."""
        own = self.metrics
        return Account(
            n_turns=self._n_turns,
            n_steps=self._n_steps,
            prompt_tokens=self._prompt_tokens,
            completion_tokens=self._completion_tokens,
            n_bytes=n_bytes,
            first_version=self._first_version,
            last_version=self._last_version,
            reset_seconds=self._reset_seconds,
            held_seconds=held_seconds,
            model_seconds=self._model_seconds,
            env_seconds=self._env_seconds,
            metrics={
                name: float(value)
                for name, value in metrics.items()
                if name not in own and isinstance(value, int | float) and math.isfinite(value)
            },
        )
