"""An environment: what an agent acts on. Gymnasium's shape, asynchronous, and in the language of chat.

Invariants:
- Used once: one `reset`, then steps until `terminated` or `truncated`, one `score`, one `close`.
- All randomness comes from the seed given to `reset`; the same seed gives the same episode in any process.
- What the agent gets wrong (a malformed call, an invalid move) is answered in the observation. An exception is a
  failure of the environment itself.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, Protocol

from msgspec import Struct

from outrider.core.artifact import Artifact
from outrider.core.chat import Message, ToolSpec
from outrider.core.errors import EnvError
from outrider.core.task import Task
from outrider.pool.provider import Ability
from outrider.pool.source import Machine

Observation = tuple[Message, ...]
"""What the agent sees: the messages to append to its conversation."""


class Step(NamedTuple):
    """What an action led to. `terminated`: the task itself has ended; `truncated`: a limit ended it."""

    observation: Observation = ()
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    info: Mapping[str, Any] = {}


class Score(Struct, frozen=True, kw_only=True):
    """What an episode was worth. `output` is what the agent came to: its answer, its program, where it stood."""

    reward: float
    output: Any = None
    metrics: Mapping[str, float] = {}
    explanation: str = ""


class Needs(Struct, frozen=True, kw_only=True):
    """What a machine must be able to do. `optional`: there are episodes without a machine too."""

    abilities: frozenset[Ability]
    optional: bool = False


class Environment(Protocol):
    """One episode's world."""

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """What the agent may call. Without tools, the text of its message is its action."""
        return ()

    def board(self, machine: Machine) -> None:  # noqa: ARG002 it has no use for one
        """Act on this machine, which its caller holds and gives back. At most once, and before `reset`."""
        raise EnvError(f"{type(self).__name__} uses no machine", stage="env.board")

    async def reset(self, seed: int | None = None) -> Observation:
        """Begin: the opening messages, usually a system message with the rules and a user message with the task."""
        ...

    async def step(self, action: Message) -> Step:
        """Carry out what the assistant's message asks for. Each of its tool calls is answered by one message."""
        ...

    async def score(self) -> Score | None:
        """The worth of the whole episode, however it ended; None: the sum of its steps' rewards."""
        return None

    def artifacts(self) -> tuple[Artifact, ...]:
        """What to keep besides what was said; asked for once, before `close`, however the episode ended."""
        return ()

    async def close(self) -> None:
        """Give back what the episode holds."""
        return


class Environments(Protocol):
    """The environments of one tag in one worker: owns what its episodes share, such as an index or a browser."""

    task_fields: ClassVar[frozenset[str] | None] = None
    """The names in a task's metadata that its episodes and their scorer read; None: it may read any."""

    def make(self, task: Task) -> Environment:
        """A fresh environment for one episode of `task`; it takes hold of nothing before its `reset`.

        Raises `InvalidInput` if the task cannot be run or scored; a run asks for all its tasks before it begins.
        """
        ...

    @property
    def needs(self) -> Needs | None:
        """What its episodes want of a machine; None: they use none."""
        return None

    async def check(self) -> None:
        """Raise `InvalidInput` if no episode could run: a missing program, extra or file. Called once, before a run."""
        return

    async def close(self) -> None:
        """Give back what the episodes shared."""
        return


def needs_of(environments: Environments) -> Needs | None:
    """What they want of a machine; a class that a user wrote may not say."""
    return getattr(environments, "needs", None)
