"""Policies that follow scripts: they need no network, and the same conversation gets the same answer everywhere."""

import asyncio
import math
import random
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from urllib.parse import parse_qsl

import msgspec
from msgspec import Struct

from outrider.core.chat import Message, ToolSpec
from outrider.core.clock import Clock, SystemClock, sleep
from outrider.core.errors import InvalidInput, PolicyError, boundary
from outrider.policy.protocol import ChatPolicy, Completion, FinishReason, Sampling, Usage
from outrider.policy.scripted.protocol import Script

PREFIX = "builtin:"

GUESSING: Mapping[str, float] = {"solver": 0.0, "random": 1.0, "noisy": 0.3}
"""The policies there are, and how often each guesses instead of knowing."""

_CHARACTERS_PER_TOKEN = 4


class ScriptOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What may stand behind the question mark. `latency` is how many seconds an answer takes, as a model's would."""

    p: float = 0.0
    latency: float = 0.0
    seed: int = 0


class ScriptedPolicy(ChatPolicy):
    """Asks the first script that understands the conversation; with probability `p` for a guess.

    Of the sampling only the seed counts. Tokens are counted roughly, four characters each.
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
        with boundary(PolicyError, "policy.complete"):
            message = self._answer(messages, tools, None if sampling is None else sampling.seed, session)
        usage = Usage(prompt_tokens=sum(map(_tokens, messages)), completion_tokens=_tokens(message))
        reason = FinishReason.TOOL_CALLS if message.tool_calls else FinishReason.STOP
        return Completion(message=message, finish_reason=reason, usage=usage, model=self._name)

    async def check(self) -> None: ...

    async def close(self) -> None: ...

    def _answer(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], seed: int | None, session: str
    ) -> Message:
        script = self._script_for(messages, tools)
        if self._options.p <= 0:
            return script.solve(messages, tools)
        rng = random.Random(repr((self._options.seed, session, seed, len(messages))))
        if rng.random() < self._options.p:
            return script.guess(messages, tools, rng)
        return script.solve(messages, tools)

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
        options = msgspec.convert({"p": GUESSING[name], **given}, ScriptOptions, strict=False)
    except msgspec.ValidationError as exc:
        raise InvalidInput(f"{model!r}: {exc}") from exc
    if not 0 <= options.p <= 1:
        raise InvalidInput(f"{model!r}: p is {options.p:g}; give a probability, from 0 to 1")
    if not (math.isfinite(options.latency) and options.latency >= 0):
        raise InvalidInput(f"{model!r}: latency is {options.latency:g}; give seconds, 0 or more")
    return options


def _nearest(name: str, names: Sequence[str] | Mapping[str, float]) -> str:
    near = get_close_matches(name, names, n=1)
    return f"did you mean {near[0]}?" if near else f"there are {', '.join(names)}"


def _tokens(message: Message) -> int:
    calls = sum(len(call.name) + len(call.arguments) for call in message.tool_calls)
    return (len(message.content) + len(message.reasoning) + calls) // _CHARACTERS_PER_TOKEN + 1
