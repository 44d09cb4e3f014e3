"""A policy small enough to read: a linear language model in NumPy that learns to cross the frozen lake by GRPO.

A conversation is one sequence of tokens: a mark, then by turns the six tokens of what the player sees and the one of
the action that it takes. The logits of an action are the sum of `weights` over the seven tokens before it. So the ids
of each prompt go on from those of the last, and the arrays of a batch hold all that there is to learn from.

Extra: `train`.
"""

import asyncio
import math
import random
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider.core.chat import Message, Role, ToolSpec, assistant
from outrider.policy import ChatPolicy, Completion, Probe, Sampling, Tokens, Usage

ACTIONS = {"Up": (-1, 0), "Down": (1, 0), "Left": (0, -1), "Right": (0, 1)}
REPLIES = tuple(assistant(f"<answer>{action}</answer>") for action in ACTIONS)
GLYPHS = frozenset("P_OG")
BESIDE = "._OG"
"""What may lie next to the player: the shore, ice, a hole, the goal."""

# Token ids: the actions, the mark, what lies in each direction, where the goal is (rows, then columns).
ACTION_OF = {reply.content: action for action, reply in enumerate(REPLIES)}
START = len(ACTIONS)
SIGHTS = START + 1
GOAL = SIGHTS + len(ACTIONS) * len(BESIDE)
N_TOKENS = GOAL + 6
WINDOW = 1 + len(ACTIONS) + 2
"""How many tokens an action follows from: the action before it, and what is seen."""


class LinearPolicy(ChatPolicy):
    """Draws actions from `weights`, which `update` improves; `version` counts the updates.

    `answer_seconds` is what an answer takes on average, `update_seconds` what an update takes: a real model is not as
    quick as this one.
    """

    def __init__(
        self,
        *,
        learning_rate: float = 8.0,
        clip: float = 0.6,
        n_epochs: int = 12,
        answer_seconds: float = 0.0,
        update_seconds: float = 0.0,
    ) -> None:
        self.weights = np.zeros((N_TOKENS, len(ACTIONS)))
        self.version = 0
        self._learning_rate = learning_rate
        self._clip = clip
        self._n_epochs = n_epochs
        self._answer_seconds = answer_seconds
        self._update_seconds = update_seconds

    async def complete(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[ToolSpec] = (),  # noqa: ARG002 a lake offers none
        sampling: Sampling | None = None,
        session: str = "",  # noqa: ARG002 there is one server, this
    ) -> Completion:
        sampling = sampling or Sampling()
        rng = random.Random(sampling.seed)
        await asyncio.sleep(self._answer_seconds and rng.expovariate(1 / self._answer_seconds))
        prompt = tokens_of(messages)
        logits = self.weights[prompt[-WINDOW:]].sum(axis=0).tolist()
        action, logprob = _drawn(logits, 1.0 if sampling.temperature is None else sampling.temperature, rng)
        return Completion(
            message=REPLIES[action],
            usage=Usage(prompt_tokens=len(prompt), completion_tokens=1),
            tokens=Tokens(
                prompt_ids=np.array(prompt, "<i4").tobytes(),
                completion_ids=np.array([action], "<i4").tobytes(),
                logprobs=np.array([logprob], "<f4").tobytes(),
            ),
        )

    async def check(self, sampling: Sampling | None = None, probe: Probe | None = None) -> None: ...

    async def close(self) -> None: ...

    def update(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Learn from the arrays of a batch (`Batch.to_numpy`): some steps uphill on the clipped objective of GRPO.

        A ratio is that of the chance of an action now to its chance in the policy that took it, however old that was.
        Answers come from the old weights until the new ones are complete, so it may run in a thread.
        """
        time.sleep(self._update_seconds)
        weights = self.weights
        tokens, mask = arrays["tokens"], arrays["loss_mask"]
        row, place = np.nonzero(mask)
        windows = tokens[row[:, None], place[:, None] + np.arange(-WINDOW, 0)]
        taken = np.eye(len(ACTIONS))[tokens[mask]]
        advantages, logprobs = arrays["advantages"][mask], arrays["logprobs"][mask]
        for _ in range(self._n_epochs):
            chances = _softmax(weights[windows].sum(axis=1))
            ratios = (chances * taken).sum(axis=1) / np.exp(logprobs)
            counts = np.where(advantages > 0, ratios < 1 + self._clip, ratios > 1 - self._clip)
            pulls = (counts * ratios * advantages)[:, None] * (taken - chances)
            gradient = np.zeros_like(weights)
            np.add.at(gradient, windows, pulls[:, None, :])
            weights = weights + self._learning_rate * gradient / len(pulls)
        self.weights, self.version = weights, self.version + 1

    def save(self, path: Path) -> None:
        """Write a checkpoint; a file that is there is replaced at once or not at all."""
        parts = path.with_suffix(".part")
        with parts.open("wb") as file:
            np.savez(file, weights=self.weights, version=self.version)
        parts.replace(path)

    def load(self, path: Path) -> None:
        """Go on from a checkpoint."""
        with np.load(path) as saved:
            self.weights, self.version = saved["weights"], int(saved["version"])


def tokens_of(messages: Sequence[Message]) -> list[int]:
    """The conversation in token ids."""
    tokens = [START]
    for message in messages:
        if message.role is Role.ASSISTANT:
            tokens.append(ACTION_OF[message.content])
        elif message.role is Role.USER:
            tokens += seen(message.content)
    return tokens


@lru_cache(maxsize=100_000)
def seen(observation: str) -> tuple[int, ...]:
    """What lies in each direction, and where the goal is."""
    grid = [line for line in observation.splitlines() if line and GLYPHS.issuperset(line)]
    cells = {(row, column): glyph for row, line in enumerate(grid) for column, glyph in enumerate(line)}
    place = {glyph: cell for cell, glyph in cells.items()}
    (row, column), goal = place["P"], place["G"]
    beside = [BESIDE.index(cells.get((row + down, column + right), ".")) for down, right in ACTIONS.values()]
    sights = [SIGHTS + number * len(BESIDE) + what for number, what in enumerate(beside)]
    return (*sights, GOAL + 1 + _sign(goal[0] - row), GOAL + 4 + _sign(goal[1] - column))


def _sign(number: int) -> int:
    return (number > 0) - (number < 0)


def _drawn(logits: Sequence[float], temperature: float, rng: random.Random) -> tuple[int, float]:
    """An action and its log-probability; at temperature 0 the likeliest."""
    highest = max(logits)
    if temperature == 0:
        return logits.index(highest), 0.0
    chances = [math.exp((logit - highest) / temperature) for logit in logits]
    sums = list(accumulate(chances))
    drawn = rng.random() * sums[-1]
    action = next((number for number, total in enumerate(sums) if drawn < total), len(sums) - 1)
    return action, math.log(chances[action] / sums[-1])


def _softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)  # type: ignore[no-any-return]
