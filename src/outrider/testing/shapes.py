"""The shapes of what environments return, and what to fix where they are not kept."""

import math
from collections.abc import Mapping
from typing import Any

from outrider.core import wire
from outrider.core.chat import Message, Role, ToolSpec
from outrider.core.errors import InvalidInput
from outrider.core.turn import StepRecord, to_data
from outrider.env.protocol import Score, Step


class Unfit(Exception):
    """A rule that an environment breaks, and how to keep it."""


def check_observation(observation: object, method: str) -> None:
    """A tuple of messages that are not the assistant's and that the store can keep."""
    if not isinstance(observation, tuple) or not all(isinstance(item, Message) for item in observation):
        raise Unfit(
            f"{method} returned {observation!r:.100} as the observation; return a tuple of messages, "
            "such as (user('…'),)"
        )
    if any(message.role is Role.ASSISTANT for message in observation):
        raise Unfit(f"{method} speaks as the assistant; what an environment says are system, user and tool messages")
    _storable(StepRecord(observation=observation), f"the observation of {method}")


def check_step(step: object, action: Message) -> Step:
    """A `Step`, each of its fields of the right kind, each tool call answered."""
    if not isinstance(step, Step):
        raise Unfit(f"step returned {step!r:.100}; return outrider.env.Step(observation, reward, terminated, …)")
    check_observation(step.observation, "step")
    if not _is_finite(step.reward):
        raise Unfit(f"step returned the reward {step.reward!r}; return a finite number")
    for name in ("terminated", "truncated"):
        if not isinstance(getattr(step, name), bool):
            raise Unfit(f"step returned {getattr(step, name)!r} as {name}; return True or False")
    if not isinstance(step.info, Mapping):
        raise Unfit(f"step returned {step.info!r:.100} as info; return a mapping")
    _storable(dict(step.info), "the info of step")
    _storable(StepRecord(reward=step.reward), "the reward of step")
    asked = [call.id for call in action.tool_calls]
    answered = [message.tool_call_id for message in step.observation if message.role is Role.TOOL]
    if asked != answered:
        raise Unfit(
            f"tool calls {asked} were answered by tool messages for {answered}; answer each call by one message with "
            "its id, in their order, whether the tool is known or not: see outrider.env.tools.answer_calls"
        )
    return step


def check_tools(tools: object) -> None:
    """A tuple of tools with names of their own and schemas of objects."""
    if not isinstance(tools, tuple) or not all(isinstance(tool, ToolSpec) for tool in tools):
        raise Unfit(f"tools is {tools!r:.100}; it must be a tuple of ToolSpec, a property and not a method")
    names = [tool.name for tool in tools]
    if len(set(names)) < len(names):
        raise Unfit(f"two tools have the same name: {', '.join(names)}")
    for tool in tools:
        if tool.parameters.get("type") != "object":
            raise Unfit(f"the parameters of tool {tool.name!r} are no JSON schema of an object: add 'type': 'object'")


def check_score(score: object) -> None:
    """None, or a `Score` of finite numbers that the store can keep."""
    if score is None:
        return
    if not isinstance(score, Score):
        raise Unfit(f"score returned {score!r:.100}; return outrider.env.Score(reward=…) or None")
    if not _is_finite(score.reward):
        raise Unfit(f"score returned the reward {score.reward!r}; return a finite number")
    wrong = {name: value for name, value in score.metrics.items() if not _is_finite(value)}
    if wrong:
        raise Unfit(f"score returned the metrics {wrong}; a metric is a finite number")
    _storable(score.output, "the output of the score")


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _storable(value: Any, what: str) -> None:
    try:
        wire.encode(to_data(value) if isinstance(value, StepRecord) else value)
    except (InvalidInput, TypeError, ValueError) as exc:
        raise Unfit(f"{what} cannot be stored: {exc}") from exc
