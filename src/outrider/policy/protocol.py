"""A policy: the model being run. It completes conversations; how and where is its own affair."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol

from msgspec import Struct

from outrider.core.bounds import PositiveCount, Seed, Share, Temperature, TopK, check_bounds
from outrider.core.chat import Message, ToolSpec, system, user


class FinishReason(StrEnum):
    """Why a completion ended."""

    STOP = "stop"
    """The model was done."""

    TOOL_CALLS = "tool_calls"
    """It asks for tools to be called."""

    LENGTH = "length"
    """It reached a limit of tokens in the middle of its answer."""

    CONTENT_FILTER = "content_filter"
    """The server withheld the rest."""


class Sampling(Struct, frozen=True, kw_only=True):
    """How to sample. What is None is left to the server."""

    temperature: Temperature | None = None
    top_p: Share | None = None
    max_tokens: PositiveCount | None = None
    seed: Seed | None = None
    stop: tuple[str, ...] = ()
    logprobs: bool = False
    top_k: TopK | None = None
    reasoning_effort: str | None = None

    def __post_init__(self) -> None:
        check_bounds(self)


class Usage(Struct, frozen=True, kw_only=True):
    """Tokens that one call took. `cached_tokens` are those of the prompt that the server had already."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0


class Tokens(Struct, frozen=True, kw_only=True):
    """The exact tokens of a call, packed: ids as little-endian int32, log-probabilities as little-endian float32."""

    prompt_ids: bytes = b""
    completion_ids: bytes = b""
    logprobs: bytes = b""


class Completion(Struct, frozen=True, kw_only=True):
    """A model's answer. `tokens` where the server gives them; `policy_version` grows as the policy is trained.

    `queue_seconds` is how long the call waited at our own end before the model was asked.
    """

    message: Message
    finish_reason: FinishReason = FinishReason.STOP
    usage: Usage = Usage()
    tokens: Tokens | None = None
    model: str = ""
    policy_version: int = 0
    n_retries: int = 0
    queue_seconds: float = 0.0


class Probe(Struct, frozen=True, kw_only=True):
    """What the requests of a run will hold, so that a server that refuses it is found out before the run.

    `without_tools` and `without_system` say how to run on a server that takes no tools, or no system messages.
    """

    tools: tuple[ToolSpec, ...] = ()
    has_system: bool = False
    without_tools: str = ""
    without_system: str = ""

    @property
    def messages(self) -> tuple[Message, ...]:
        return (system("Be brief."), user("Hi")) if self.has_system else (user("Hi"),)


class ChatPolicy(Protocol):
    """Completes conversations. One policy serves many attempts at once; it is opened and closed by their worker."""

    async def complete(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[ToolSpec] = (),
        sampling: Sampling | None = None,
        session: str = "",
    ) -> Completion:
        """The next message. `session` names the conversation, so that its calls can go to one server.

        Raises `PolicyError`: `ContextOverflow` if the conversation is too long for the model, `PolicyUnusable` if no
        call can succeed any more.
        """

    async def check(self, sampling: Sampling | None = None, probe: Probe | None = None) -> None:
        """Raise `InvalidInput` if it cannot be used: server, key, model, sampling, and what `probe` holds. Cheap."""

    async def close(self) -> None:
        """Let go of connections and files."""
