"""The ReAct agent: thoughts and actions in plain text, for models that cannot call tools."""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from outrider.agent.actions import Action, FinalAnswer, Malformed, read_action
from outrider.agent.chat import MAX_TURNS, ChatAgent
from outrider.agent.context import Context
from outrider.agent.history import History
from outrider.agent.protocol import Result, StopReason
from outrider.core.chat import Message, Role, ToolCall, ToolSpec, assistant, system, user
from outrider.core.errors import ContextOverflow
from outrider.env import Observation
from outrider.policy import Sampling

INSTRUCTIONS = """
You can use these tools:
{tools}

Write in exactly this form, one action at a time, and then stop and wait for the observation:
Thought: what you think
Action: the name of one tool
Action Input: its arguments, as one JSON object

When you know the answer, write:
Thought: what you think
Final Answer: your answer"""

STOP = ("\nObservation:",)


class ReActAgent:
    """Describes the tools in the system message and reads what the model writes; mistakes are answered, and counted.

    In an environment without tools it is the chat agent. Settings as there.
    """

    def __init__(self, *, max_turns: int = MAX_TURNS, max_context_tokens: int | None = None) -> None:
        self._chat = ChatAgent(max_turns=max_turns, max_context_tokens=max_context_tokens)
        self._max_turns = max_turns
        self._max_context_tokens = max_context_tokens

    async def __call__(self, task: Any, ctx: Context) -> Result:
        tools = ctx.env.tools
        if not tools:
            return await self._chat(task, ctx)
        messages = instructed(ctx.opening, tools)
        history = History(self._max_context_tokens)
        n_malformed = 0
        stop_reason = StopReason.MAX_TURNS.value
        for number in range(self._max_turns):
            try:
                completion = await ctx.policy.complete(history.fit(messages), sampling=Sampling(stop=STOP))
            except ContextOverflow:
                stop_reason = StopReason.CONTEXT.value
                break
            history.learn(completion.usage)
            text = completion.message.content
            # A call that was not asked for would wait for an answer for ever: only the text goes on.
            messages.append(replace(completion.message, tool_calls=()))
            read = read_action(text, tools)
            if isinstance(read, Malformed):
                n_malformed += 1
                messages.append(user(f"Observation: error: {read.reason}"))
                continue
            step = await ctx.env.step(_said(read, text, number))
            messages.extend(_told(step.observation, read))
            if step.terminated or step.truncated:
                stop_reason = ""
                break
        return Result(stop_reason=stop_reason, metrics={"malformed_actions": float(n_malformed)})


def instructed(opening: Observation, tools: Sequence[ToolSpec]) -> list[Message]:
    """The opening, with the tools and the form to write in added to its system message."""
    described = "\n".join(
        f"- {tool.name}: {tool.description} Arguments: {msgspec.json.encode(tool.parameters).decode()}"
        for tool in tools
    )
    instructions = INSTRUCTIONS.format(tools=described)
    for i, message in enumerate(opening):
        if message.role is Role.SYSTEM:
            told = replace(message, content=message.content + "\n" + instructions)
            return [*opening[:i], told, *opening[i + 1 :]]
    return [system(instructions.lstrip()), *opening]


def _said(read: Action | FinalAnswer, text: str, number: int) -> Message:
    """What the model wrote, as the message that a model with tool calls would have written."""
    if isinstance(read, FinalAnswer):
        return assistant(read.text)
    return assistant(text, (ToolCall(id=f"action-{number}", name=read.name, arguments=read.arguments),))


def _told(observation: Observation, read: Action | FinalAnswer) -> list[Message]:
    """What the environment said, for a model that knows no tool messages."""
    note = " (Only your first action was carried out.)" if isinstance(read, Action) and read.n_more else ""
    return [
        user(f"Observation: {message.content}{note}", message.images) if message.role is Role.TOOL else message
        for message in observation
    ]
