"""Policies that follow scripts: they need no network, and the same conversation gets the same answer everywhere."""

import asyncio
import math
import random
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Protocol, runtime_checkable
from urllib.parse import parse_qsl

import msgspec
from msgspec import Struct

from outrider.core.bounds import Seconds, Seed, Share, check_bounds
from outrider.core.chat import Message, ToolSpec
from outrider.core.clock import Clock, SystemClock, sleep
from outrider.core.decoding import convert
from outrider.core.errors import InvalidInput, PolicyError, boundary
from outrider.policy.protocol import ChatPolicy, Completion, FinishReason, Probe, Sampling, Tokens, Usage
from outrider.policy.scripted.protocol import Script
from outrider.policy.scripted.tokens import n_tokens, tokens_of

PREFIX = "builtin:"

GUESSING: Mapping[str, float] = {"solver": 0.0, "random": 1.0, "noisy": 0.3}
"""The policies there are, and how often each guesses instead of knowing."""

_CHARACTERS_PER_TOKEN = 4


class ScriptOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What may stand behind the question mark. `latency` is how many seconds an answer takes, as a model's would."""

    p: Share = 0.0
    latency: Seconds = 0.0
    seed: Seed = 0

    def __post_init__(self) -> None:
        check_bounds(self)


@runtime_checkable
class WeighedScript(Script, Protocol):
    """A script that knows how likely its guesses are."""

    def chance(self, messages: Sequence[Message], tools: Sequence[ToolSpec], message: Message) -> float:
        """The probability that `guess` says exactly this, whatever the generator draws."""


class ScriptedPolicy(ChatPolicy):
    """Asks the first script that understands the conversation; with probability `p` for a guess.

    Of the sampling only the seed and `logprobs` count. With `logprobs` a completion has the token ids of a byte
    tokenizer, and its usage counts them; without, four characters are counted as a token. The first token has the
    log-probability of the whole message, `p` times the chance that it is guessed, and `1 - p` if it is the solution;
    the other tokens are certain. If a script cannot tell the chance of its guesses, a policy that guesses gives none.
    """

    def __init__(
        self, scripts: Mapping[str, Script], *, name: str, options: ScriptOptions, clock: Clock | None = None
    ) -> None:
        self._scripts = scripts
        self._name = name
        self._options = options
        self._clock = clock or SystemClock()

    async def complete(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[ToolSpec] = (),
        sampling: Sampling | None = None,
        session: str = "",
    ) -> Completion:
        if self._options.latency > 0:
            await sleep(self._clock, self._options.latency)
        else:
            await asyncio.sleep(0)  # others get their turn, as with any model
        sampling = sampling or Sampling()
        tokens = None
        with boundary(PolicyError, "policy.complete"):
            script = self._script_for(messages, tools)
            message = self._answer(script, messages, tools, sampling.seed, session)
            if sampling.logprobs:
                logprob = self._logprob(script, messages, tools, message)
                tokens = tokens_of(messages, message, tools=tools, logprob=logprob)
        reason = FinishReason.TOOL_CALLS if message.tool_calls else FinishReason.STOP
        usage = _usage(messages, message, tokens)
        return Completion(message=message, finish_reason=reason, usage=usage, tokens=tokens, model=self._name)

    async def check(self, sampling: Sampling | None = None, probe: Probe | None = None) -> None: ...

    async def close(self) -> None: ...

    def _answer(
        self, script: Script, messages: Sequence[Message], tools: Sequence[ToolSpec], seed: int | None, session: str
    ) -> Message:
        if self._options.p <= 0:
            return script.solve(messages, tools)
        rng = random.Random(repr((self._options.seed, session, seed, len(messages))))
        if rng.random() < self._options.p:
            return script.guess(messages, tools, rng)
        return script.solve(messages, tools)

    def _logprob(
        self, script: Script, messages: Sequence[Message], tools: Sequence[ToolSpec], message: Message
    ) -> float | None:
        """The log-probability of saying `message`, whichever way it came about; None: the script cannot tell."""
        p = self._options.p
        if p <= 0:
            return 0.0
        if not isinstance(script, WeighedScript):
            return None
        chance = p * script.chance(messages, tools, message)
        if p < 1 and script.solve(messages, tools) == message:
            chance += 1 - p
        return math.log(min(chance, 1.0))

    def _script_for(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Script:
        for script in self._scripts.values():
            if script.understands(messages, tools):
                return script
        opening = messages[0].content[:80] if messages else ""
        offered = ", ".join(tool.name for tool in tools) or "none"
        raise PolicyError(
            f"{self._name} knows {', '.join(self._scripts) or 'nothing'}, but not this conversation, which begins "
            f"{opening!r} (tools: {offered}); use a model for it",
            stage="policy.complete",
        )


def options_of(model: str) -> ScriptOptions:
    """The options in `builtin:NAME?option=value&…`. Refuses names, options and values that there are not."""
    name, _, query = model.removeprefix(PREFIX).partition("?")
    if name not in GUESSING:
        raise InvalidInput(f"{model!r}: there is no builtin policy {name!r}; {_nearest(name, GUESSING)}")
    allowed = [option for option in ScriptOptions.__struct_fields__ if option != "p" or name == "noisy"]
    given = dict(parse_qsl(query, keep_blank_values=True))
    for option in given:
        if option not in allowed:
            raise InvalidInput(f"{model!r}: {name} has no option {option!r}; {_nearest(option, allowed)}")
    if query and not given:
        raise InvalidInput(f"{model!r}: write options as builtin:{name}?option=value&option=value")
    try:
        return convert({"p": GUESSING[name], **given}, ScriptOptions, strict=False)
    except (msgspec.ValidationError, InvalidInput) as exc:
        raise InvalidInput(f"{model!r}: {exc}") from exc


def _nearest(name: str, names: Sequence[str] | Mapping[str, float]) -> str:
    near = get_close_matches(name, names, n=1)
    return f"did you mean {near[0]}?" if near else f"there are {', '.join(names)}"


def _usage(messages: Sequence[Message], reply: Message, tokens: Tokens | None) -> Usage:
    if tokens is None:
        return Usage(prompt_tokens=sum(map(_estimate, messages)), completion_tokens=_estimate(reply))
    return Usage(prompt_tokens=n_tokens(tokens.prompt_ids), completion_tokens=n_tokens(tokens.completion_ids))


def _estimate(message: Message) -> int:
    calls = sum(len(call.name) + len(call.arguments) for call in message.tool_calls)
    return (len(message.content) + len(message.reasoning) + calls) // _CHARACTERS_PER_TOKEN + 1
