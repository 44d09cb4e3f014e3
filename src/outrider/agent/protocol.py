"""What a worker runs for a rollout: an agent, and around it an episode of five stages."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from outrider.agent.context import Context


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What an agent achieved: a reward if it was scored, whatever it wants to keep, and further numbers."""

    reward: float | None = None
    output: Any = None
    metrics: Mapping[str, float] = field(default_factory=dict)


AgentFunction = Callable[[Any, Context], Awaitable[Result | float | None] | Result | float | None]
"""`async def agent(task, ctx)`; a plain `def` runs in a thread of its own. A bare number is the reward."""


class Episode(Protocol):
    """One attempt's work, used once.

    The worker calls the stages in this order, each under its own deadline; `close` whatever happened before it.
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


EpisodeFactory = Callable[[Context], Episode]
"""Makes the episode of one attempt."""
