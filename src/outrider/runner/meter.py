"""Counting model calls and tokens while they are made, for progress and for a run's budget."""

from collections.abc import Sequence

from msgspec import Struct

from outrider.core.chat import Message, ToolSpec
from outrider.policy import ChatPolicy, Completion, Probe, Sampling


class Reading(Struct, frozen=True, kw_only=True):
    """What has been used so far."""

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def __add__(self, other: "Reading") -> "Reading":
        return Reading(
            calls=self.calls + other.calls,
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            completion_tokens=self.completion_tokens + other.completion_tokens,
        )

    def __sub__(self, other: "Reading") -> "Reading":
        return Reading(
            calls=self.calls - other.calls,
            prompt_tokens=self.prompt_tokens - other.prompt_tokens,
            completion_tokens=self.completion_tokens - other.completion_tokens,
        )

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


class Meter:
    """Counts upwards."""

    def __init__(self) -> None:
        self.reading = Reading()

    def count(self, completion: Completion) -> None:
        usage = completion.usage
        self.reading += Reading(calls=1, prompt_tokens=usage.prompt_tokens, completion_tokens=usage.completion_tokens)


class MeteredPolicy(ChatPolicy):
    """A policy whose completions are counted."""

    def __init__(self, policy: ChatPolicy, meter: Meter) -> None:
        self._policy = policy
        self._meter = meter

    async def complete(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[ToolSpec] = (),
        sampling: Sampling | None = None,
        session: str = "",
    ) -> Completion:
        completion = await self._policy.complete(messages, tools=tools, sampling=sampling, session=session)
        self._meter.count(completion)
        return completion

    async def check(self, sampling: Sampling | None = None, probe: Probe | None = None) -> None:
        await self._policy.check(sampling, probe)

    async def close(self) -> None:
        await self._policy.close()
