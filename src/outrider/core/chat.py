"""What models, agents and environments say to each other: chat messages, tool calls, and the tools on offer."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from msgspec import Struct


class Role(StrEnum):
    """Who speaks."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


class ToolCall(Struct, frozen=True, kw_only=True):
    """One call a model asks for. `arguments` is the JSON text as the model wrote it: it may be malformed."""

    id: str
    name: str
    arguments: str = "{}"


class Image(Struct, frozen=True, kw_only=True):
    """A picture in a message."""

    data: bytes
    media_type: str = "image/png"


class Message(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One message of a conversation. A `tool` message answers the call named by `tool_call_id`."""

    role: Role
    content: str = ""
    reasoning: str = ""
    images: tuple[Image, ...] = ()
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None


class ToolSpec(Struct, frozen=True, kw_only=True):
    """A tool a model may call. `parameters` is a JSON schema of one object."""

    name: str
    description: str
    parameters: Mapping[str, Any]


def system(content: str) -> Message:
    return Message(role=Role.SYSTEM, content=content)


def user(content: str, images: tuple[Image, ...] = ()) -> Message:
    return Message(role=Role.USER, content=content, images=images)


def assistant(content: str = "", tool_calls: tuple[ToolCall, ...] = ()) -> Message:
    return Message(role=Role.ASSISTANT, content=content, tool_calls=tool_calls)


def tool_result(call: ToolCall, content: str, images: tuple[Image, ...] = ()) -> Message:
    return Message(role=Role.TOOL, content=content, images=images, tool_call_id=call.id)
