"""An environment in all kinds of trouble, for tests of what runs it."""

import asyncio
import os
from typing import Any

N_STEPS = 3


class Walk:
    """Three steps to the left or to the right. `trouble` says what goes wrong, `n_times` how often; -1: always.

    `tickets` is an empty folder in which environments in any process note how often it has gone wrong.
    """

    def __init__(
        self,
        *,
        trouble: str = "",
        n_times: int = -1,
        tickets: str = "",
        reset_seconds: float = 0.0,
        step_seconds: float = 0.0,
    ) -> None:
        self._trouble = trouble
        self._n_times = n_times
        self._tickets = tickets
        self._reset_seconds = reset_seconds
        self._step_seconds = step_seconds
        self._n_steps = 0

    async def reset(self, seed: int | None = None) -> Any:
        if self._trouble.endswith("reset") and self._goes_wrong():
            return await self._go_wrong(f"the level of seed {seed} cannot be built")
        await asyncio.sleep(self._reset_seconds)
        return "Actions: left, right."

    async def step(self, action: str) -> Any:
        if self._trouble.endswith("step") and self._goes_wrong():
            return await self._go_wrong("there is no ground to stand on")
        await asyncio.sleep(self._step_seconds)
        self._n_steps += 1
        reward = float("nan") if self._trouble == "unscored" else float("left" in action)
        return "Actions: left, right.", reward, self._n_steps == N_STEPS, False, {}

    async def _go_wrong(self, what: str) -> Any:
        if self._trouble.startswith("hung"):
            await asyncio.Event().wait()
        if self._trouble.startswith("nonsense"):
            return 42
        raise RuntimeError(what)

    def _goes_wrong(self) -> bool:
        """Whether there is a ticket left; each can be had once."""
        if self._n_times < 0:
            return True
        for number in range(self._n_times):
            try:
                os.close(os.open(f"{self._tickets}/{number}", os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                continue
            return True
        return False


async def silent(task: Any, ctx: Any) -> None:
    """An agent whose rollouts end well and without a reward."""
