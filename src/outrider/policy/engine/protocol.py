"""What a policy over token ids is made of: the engine that continues them, and what goes to it and comes back."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from outrider.policy.protocol import FinishReason, Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRequest:
    """One prompt to be continued. `prompt_ids` is an array of C ints: it pickles, and numpy and torch read it as it is.

    A reply ends with any of `stop_ids`; the texts of `sampling.stop` are the engine's to look for.
    """

    prompt_ids: "array[int]"
    sampling: Sampling
    stop_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenReply:
    """What was sampled, with the stop id if that was sampled too. `logprobs`: one for each id, or none at all."""

    ids: Sequence[int]
    logprobs: Sequence[float] = ()
    finish_reason: FinishReason = FinishReason.STOP
    policy_version: int = 0


class BatchEngine(Protocol):
    """Continues many prompts in one call. It is called once at a time."""

    async def generate(self, requests: Sequence[TokenRequest]) -> Sequence[TokenReply | Exception]:
        """A reply for each request, in their order; an exception in place of a reply fails that request alone.

        Cancelled if it takes longer than the policy's deadline.
        """


class BlockingEngine(Protocol):
    """The same as a plain function, which is called in a thread of its own, always the same one."""

    def generate(self, requests: Sequence[TokenRequest]) -> Sequence[TokenReply | Exception]: ...
