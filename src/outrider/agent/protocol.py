"""What a worker runs for a rollout: an agent, and around it an episode of five stages."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from outrider.agent.context import Context


class StopReason(StrEnum):
    """Why an episode went no further."""

    TERMINATED = "terminated"
    """The task itself came to its end."""

    TRUNCATED = "truncated"
    """A limit of the environment ended it."""

    MAX_TURNS = "max_turns"
    """The agent had made as many model calls as it may."""

    CONTEXT = "context"
    """The conversation had become too long for the model."""

    ANSWERED = "answered"
    """The agent was done; the environment would have gone on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What an agent achieved: a reward if it was scored, whatever it wants to keep, and further numbers.

    `explanation` is the scorer's; `stop_reason` is a `StopReason` where an environment was acted on.
    """

    reward: float | None = None
    output: Any = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    stop_reason: str = ""
    explanation: str = ""


Answer = Result | float | str | None
"""What an agent may return: a number is the reward, a text the final answer, None leaves all to the environment."""

AgentFunction = Callable[[Any, Context], Awaitable[Answer] | Answer]
"""`async def agent(task, ctx)`; a plain `def` runs in a thread of its own. `task` is the rollout's input."""


class Episode(Protocol):
    """One attempt's work, used once.

    The worker calls the stages in this order, each under its own deadline; `close` whatever happened before it. One
    whose `boot` waits for a machine, which it holds from then on, says so by an attribute `takes_machine`. A stage
    that is `no_stage`, and a score that is `scored_already`, are passed over.
    """

    async def boot(self, ctx: Context) -> None:
        """Get the machine, if the task needs one."""

    async def setup(self, ctx: Context) -> None:
        """Bring the environment to the state the task starts from."""

    async def act(self, ctx: Context) -> Result:
        """Let the agent work until it is done."""

    async def score(self, ctx: Context, result: Result) -> Result:
        """The result with its reward."""

    async def close(self, ctx: Context) -> None:
        """Give back what the episode holds."""


async def no_stage(_episode: object, _ctx: Context) -> None:
    """A stage in which nothing happens: `setup = no_stage` in the class of an episode."""


async def scored_already(_episode: object, _ctx: Context, result: Result) -> Result:
    """The score of what was scored while it acted: `score = scored_already` in the class of an episode."""
    return result


def has_stage(stage: Callable[..., object]) -> bool:
    return getattr(stage, "__func__", None) not in (no_stage, scored_already)


def takes_machine(episode: Episode) -> bool:
    """Whether its `boot` waits for a machine; most episodes do not, and say nothing."""
    return bool(getattr(episode, "takes_machine", False))


EpisodeFactory = Callable[[Context], Episode]
"""Makes the episode of one attempt."""
