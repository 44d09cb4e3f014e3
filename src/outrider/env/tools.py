"""Tools of an environment: typed arguments, and an error message instead of a crash for a malformed call."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from outrider.core.chat import Image, Message, ToolCall, ToolSpec, tool_result
from outrider.core.decoding import from_json
from outrider.core.errors import ToolRefusal

A = TypeVar("A", bound=Struct)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOutput:
    """What a tool answers: text, and pictures for models that can see."""

    text: str
    images: tuple[Image, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A tool and what it does. `arguments` is the msgspec struct that the model's JSON must fit."""

    spec: ToolSpec
    arguments: type[Struct]
    function: Callable[[Any], Awaitable[str | ToolOutput]]


def tool(name: str, description: str, arguments: type[A], function: Callable[[A], Awaitable[str | ToolOutput]]) -> Tool:
    """A tool whose JSON schema is that of `arguments`; a field's `Meta(description=…)` tells the model what it is."""
    _, definitions = msgspec.json.schema_components([arguments])
    schema = definitions[arguments.__name__]
    parameters = {"type": "object", "properties": schema["properties"], "required": schema["required"]}
    spec = ToolSpec(name=name, description=description, parameters=parameters)
    return Tool(spec=spec, arguments=arguments, function=function)


async def answer_calls(calls: Sequence[ToolCall], tools: Sequence[Tool]) -> tuple[tuple[Message, ...], int]:
    """The answers to all calls, one after the other, in order, and how many of them were in error."""
    answers = []
    n_errors = 0
    for call in calls:
        try:
            output = await _call(call, tools)
        except ToolRefusal as exc:
            n_errors += 1
            output = ToolOutput(text=f"error: {exc}")
        answers.append(tool_result(call, output.text, output.images))
    return tuple(answers), n_errors


async def _call(call: ToolCall, tools: Sequence[Tool]) -> ToolOutput:
    found = next((tool for tool in tools if tool.spec.name == call.name), None)
    if found is None:
        names = [tool.spec.name for tool in tools]
        near = get_close_matches(call.name, names, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(names) or 'none'}"
        raise ToolRefusal(f"there is no tool {call.name!r}; {hint}")
    try:
        arguments = from_json(call.arguments or "{}", found.arguments)
    except (msgspec.DecodeError, UnicodeError) as exc:
        raise ToolRefusal(f"the arguments of {call.name} cannot be used: {exc}; call it again") from exc
    output = await found.function(arguments)
    return ToolOutput(text=output) if isinstance(output, str) else output
