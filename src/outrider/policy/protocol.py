"""A policy: the model being run. It completes conversations; how and where is its own affair."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol

from msgspec import Struct

from outrider.core.chat import Message, ToolSpec


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

    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    logprobs: bool = False


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

    async def check(self) -> None:
        """Raise `InvalidInput` if the policy cannot be used as configured: server, key, model. Cheap."""

    async def close(self) -> None:
        """Let go of connections and files."""
