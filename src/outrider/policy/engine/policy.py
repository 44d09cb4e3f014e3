"""The policy over an engine that takes and gives token ids."""

import math
from array import array
from collections.abc import Sequence
from copy import copy

import msgspec

from outrider.core.chat import Message, ToolSpec
from outrider.core.clock import Clock, SystemClock
from outrider.core.errors import ContextOverflow, InvalidInput, PolicyError, boundary
from outrider.policy.engine.calling import calls_of
from outrider.policy.engine.coalescer import STAGE, Coalescer
from outrider.policy.engine.packing import BYTES_PER_ID, pack_floats, pack_ids, unpack_ids
from outrider.policy.engine.protocol import BatchEngine, BlockingEngine, TokenReply, TokenRequest
from outrider.policy.engine.rendering import Prompt, Rendering
from outrider.policy.engine.statistics import EngineStatistics
from outrider.policy.engine.template import ChatTemplate, chatml
from outrider.policy.engine.tokenizer import Tokenizer
from outrider.policy.protocol import ChatPolicy, Completion, FinishReason, Probe, Sampling, Tokens, Usage

_DEFAULT = Sampling()


class EnginePolicy(ChatPolicy):
    """Writes conversations as token ids, each message once, and collects calls into batches for the engine.

    A batch goes `wait_seconds` after its first call, or with `max_batch` calls, once the engine is free. A batch that
    takes longer than `deadline_seconds` fails. More than `max_waiting` calls are refused. A reply has at most as many
    tokens as `max_context` leaves it. Of messages, of parts that a `PartwiseTokenizer` cuts them into, and of texts
    that were counted, `cache_messages` each are remembered.

    A completion always has its tokens. The engine stays its maker's to close.
    """

    def __init__(
        self,
        engine: BatchEngine | BlockingEngine,
        tokenizer: Tokenizer,
        template: ChatTemplate | None = None,
        *,
        max_batch: int = 256,
        wait_seconds: float = 0.005,
        max_waiting: int = 16_384,
        deadline_seconds: float = 600.0,
        max_context: int | None = None,
        model: str = "",
        cache_messages: int = 65_536,
        cache: bool = True,
        clock: Clock | None = None,
    ) -> None:
        _refuse_less_than(
            1, max_batch=max_batch, max_waiting=max_waiting, max_context=max_context, cache_messages=cache_messages
        )
        if not 0 <= wait_seconds < math.inf:
            raise InvalidInput(f"wait_seconds is {wait_seconds}; give seconds, 0 or more")
        if not 0 < deadline_seconds < math.inf:
            raise InvalidInput(f"deadline_seconds is {deadline_seconds}; give seconds, more than 0")
        self._max_context = max_context
        self._model = model
        self._rendering = Rendering(tokenizer, template or chatml(), cache_messages=cache_messages, caching=cache)
        self._coalescer = Coalescer(
            calls_of(engine),
            max_batch=max_batch,
            wait_seconds=wait_seconds,
            max_waiting=max_waiting,
            deadline_seconds=deadline_seconds,
            clock=clock or SystemClock(),
        )

    async def complete(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[ToolSpec] = (),
        sampling: Sampling | None = None,
        session: str = "",
    ) -> Completion:
        with boundary(PolicyError, "policy.tokenise"):
            prompt = self._rendering.prompt(messages, tools, session)
        request = TokenRequest(
            prompt_ids=unpack_ids(prompt.ids),
            sampling=self._bounded(sampling or _DEFAULT, len(prompt.ids) // BYTES_PER_ID),
            stop_ids=self._rendering.stop_ids,
        )
        reply, queue_seconds = await self._coalescer.ask(request)
        with boundary(PolicyError, STAGE):
            return self._completion(prompt, reply, queue_seconds)

    async def check(self, sampling: Sampling | None = None, probe: Probe | None = None) -> None: ...

    async def close(self) -> None:
        """Calls that are under way fail."""
        await self._coalescer.close()

    def count(self, text: str) -> int:
        """How many tokens a text has by itself."""
        return self._rendering.count(text)

    def caching(self, enabled: bool) -> "EnginePolicy":
        """The same engine and queue with an empty cache, or none. Closing either closes both."""
        if enabled == self._rendering.caching:
            return self
        other = copy(self)
        other._rendering = self._rendering.with_caching(enabled)  # noqa: SLF001 of the same class
        return other

    def statistics(self) -> EngineStatistics:
        """What was done so far; the batches are those of all that share the engine."""
        return EngineStatistics(
            sizes=dict(self._coalescer.sizes),
            n_failed=self._coalescer.n_failed,
            queue_seconds=self._coalescer.queue_seconds,
            engine_seconds=self._coalescer.engine_seconds,
            n_tokenised=self._rendering.n_tokenised,
            n_hits=self._rendering.n_hits,
        )

    def _bounded(self, sampling: Sampling, n_prompt: int) -> Sampling:
        if self._max_context is None:
            return sampling
        left = self._max_context - n_prompt
        if left < 1:
            raise ContextOverflow(
                f"the conversation has {n_prompt} tokens; the model reads {self._max_context}, reply included",
                stage=STAGE,
            )
        if sampling.max_tokens is not None and sampling.max_tokens <= left:
            return sampling
        return msgspec.structs.replace(sampling, max_tokens=left)

    def _completion(self, prompt: Prompt, reply: TokenReply, queue_seconds: float) -> Completion:
        ids = array("i", reply.ids)
        _refuse_nonsense(ids, reply.logprobs)
        message = self._rendering.reply(prompt, ids)
        reason = reply.finish_reason
        if message.tool_calls and reason is FinishReason.STOP:
            reason = FinishReason.TOOL_CALLS
        return Completion(
            message=message,
            finish_reason=reason,
            usage=Usage(prompt_tokens=len(prompt.ids) // BYTES_PER_ID, completion_tokens=len(ids)),
            tokens=Tokens(prompt_ids=prompt.ids, completion_ids=pack_ids(ids), logprobs=pack_floats(reply.logprobs)),
            model=self._model,
            policy_version=reply.policy_version,
            queue_seconds=queue_seconds,
        )


def _refuse_less_than(least: int, **settings: int | None) -> None:
    for name, value in settings.items():
        if value is not None and value < least:
            raise InvalidInput(f"{name} is {value}; it must be at least {least}")


def _refuse_nonsense(ids: Sequence[int], logprobs: Sequence[float]) -> None:
    if min(ids, default=0) < 0:
        raise PolicyError(f"the engine gave {min(ids)} as a token id", stage=STAGE)
    if len(logprobs) not in (0, len(ids)):
        raise PolicyError(f"the engine gave {len(logprobs)} log-probabilities for {len(ids)} tokens", stage=STAGE)
    if not math.isfinite(sum(logprobs)):
        raise PolicyError("the engine gave a log-probability that is not a finite number", stage=STAGE)
