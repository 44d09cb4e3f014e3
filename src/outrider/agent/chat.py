"""The chat agent: ask the model, let the environment carry out what it says, show it what came of it, again."""

from typing import Any

import msgspec

from outrider.agent.context import Context
from outrider.agent.history import History
from outrider.agent.protocol import Result, StopReason
from outrider.core.chat import Message, tool_result
from outrider.core.decoding import from_json
from outrider.core.errors import InvalidInput
from outrider.policy import Completion, FinishReason

MAX_TURNS = 100


class ChatAgent:
    """For models that call tools, and for environments that take plain text.

    `max_context_tokens` bounds the conversation that the model is shown; what is oldest is left out.
    """

    def __init__(self, *, max_turns: int = MAX_TURNS, max_context_tokens: int | None = None) -> None:
        if max_turns < 1:
            raise InvalidInput(f"max_turns is {max_turns}; give 1 or more")
        History(max_context_tokens)
        self._max_turns = max_turns
        self._max_context_tokens = max_context_tokens

    async def __call__(self, task: Any, ctx: Context) -> Result:  # noqa: ARG002 the environment has put the task in words
        messages = list(ctx.opening)
        history = History(self._max_context_tokens)
        for _ in range(self._max_turns):
            tools = ctx.env.tools
            completion = await ctx.policy.complete(history.fit(messages), tools=tools)
            history.learn(completion.usage)
            messages.append(completion.message)
            if errors := _unusable_calls(completion, n_tools=len(tools)):
                messages.extend(errors)
                continue
            step = await ctx.env.step(completion.message)
            messages.extend(step.observation)
            if step.terminated or step.truncated:
                return Result()
        return Result(stop_reason=StopReason.MAX_TURNS)


def _unusable_calls(completion: Completion, *, n_tools: int) -> tuple[Message, ...]:
    """The answers to calls that the environment cannot carry out: it has no tools, or the message was cut off."""
    calls = completion.message.tool_calls
    if not calls:
        return ()
    if n_tools == 0:
        return tuple(tool_result(call, "error: there are no tools here; answer in plain text") for call in calls)
    if completion.finish_reason is FinishReason.LENGTH and not _is_json(calls[-1].arguments):
        text = "error: your message reached its limit of tokens inside a call; no call was made. Write less at once"
        return tuple(tool_result(call, text) for call in calls)
    return ()


def _is_json(text: str) -> bool:
    try:
        from_json(text)
    except (msgspec.DecodeError, UnicodeError):
        return False
    return True
