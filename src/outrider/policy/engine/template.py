"""How a conversation is written for a model, message by message, and how its reply is read.

The ids of a conversation are those of its messages, one after the other, so a message is tokenised once and a longer
conversation only appends.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec
from msgspec import Struct

from outrider.core.chat import Message, Role, ToolCall, ToolSpec
from outrider.core.decoding import from_json
from outrider.core.errors import PolicyError, PolicyUnusable

_BEFORE_TOOLS = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
"""
_AFTER_TOOLS = """
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call>"""


@dataclass(frozen=True, slots=True)
class Mark:
    """A special token. Without an id it is what the tokenizer makes of the text, which must be one id."""

    text: str
    id: int | None = None


Piece = str | Mark


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolForm:
    """What stands before and after the tools on offer, a call, and a result; by default in the form of Hermes and Qwen.

    A tool is one line of JSON. A call is a JSON object with `name` and `arguments`, the arguments as the model wrote
    them. A result is its text: results stand in the order of their calls, whose ids are not shown.
    """

    offer: tuple[str, str] = (_BEFORE_TOOLS, _AFTER_TOOLS)
    call: tuple[str, str] = ("<tool_call>\n", "\n</tool_call>")
    result: tuple[str, str] = ("<tool_response>\n", "\n</tool_response>")

    def offered(self, tools: Sequence[ToolSpec]) -> str:
        lines = [json.dumps({"type": "function", "function": _function(tool)}, ensure_ascii=False) for tool in tools]
        return "\n".join(lines).join(self.offer)

    def called(self, call: ToolCall) -> str:
        name = json.dumps(call.name, ensure_ascii=False)
        return f'{{"name": {name}, "arguments": {call.arguments}}}'.join(self.call)

    def read(self, text: str, n_before: int) -> tuple[str, tuple[ToolCall, ...]]:
        """The text without its calls, and the calls. One that cannot be read stays in the text."""
        opening, closing = (re.escape(part.strip()) for part in self.call)
        rest: list[str] = []
        calls: list[ToolCall] = []
        end = 0
        for found in re.finditer(f"{opening}(.*?){closing}", text, re.DOTALL):
            call = _call_in(found[1], f"call_{n_before}_{len(calls)}")
            if call is not None:
                calls.append(call)
                rest.append(text[end : found.start()])
                end = found.end()
        if not calls:
            return text, ()
        first, *others = *rest, text[end:]
        return "\n".join([first.removesuffix("\n"), *filter(None, map(str.strip, others))]), tuple(calls)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatTemplate:
    """What stands before and after each message, by who speaks; the reply is asked for with what precedes the model's.

    A reply ends where `after` begins, if that is a mark, and with any of `stop_ids`. `beginning` stands before the
    first message. `think` marks reasoning; without it a reply keeps it in its text, and `reasoning` is not shown.
    The text of a mark, or of anything `reserved`, that stands in a message is tokenised as plain text.
    """

    before: Mapping[Role, tuple[Piece, ...]]
    after: tuple[Piece, ...]
    beginning: tuple[Piece, ...] = ()
    tools: ToolForm | None = None
    think: tuple[str, str] | None = None
    stop_ids: tuple[int, ...] = ()
    reserved: tuple[str, ...] = ("<|endoftext|>",)

    @property
    def end(self) -> Mark | None:
        return self.after[0] if self.after and isinstance(self.after[0], Mark) else None

    def marks(self) -> Iterator[Mark]:
        for pieces in (self.beginning, *self.before.values(), self.after):
            yield from (piece for piece in pieces if isinstance(piece, Mark))

    def with_tools(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Sequence[Message]:
        """The messages with the tools in the system's, which comes first."""
        if not tools:
            return messages
        offered = self._form().offered(tools)
        if messages and messages[0].role is Role.SYSTEM:
            first = msgspec.structs.replace(messages[0], content=f"{messages[0].content}\n\n{offered}")
            return (first, *messages[1:])
        return (Message(role=Role.SYSTEM, content=offered), *messages)

    def pieces(self, message: Message) -> tuple[Piece, ...]:
        """A message from its beginning to the next one's."""
        if message.role not in self.before:
            raise PolicyUnusable(f"the chat template has no form for a message of the {message.role}", stage="template")
        if message.images:
            raise PolicyError("the conversation has a picture, and this engine reads text alone", stage="template")
        return (*self.before[message.role], self._said(message), *self.after)

    def read(self, text: str, n_before: int) -> Message:
        """The message in a reply. Its calls are named after the number of messages before it."""
        reasoning, calls = "", tuple[ToolCall, ...]()
        if self.think is not None:
            opening, closing = self.think
            thought, found, said = text.partition(closing.strip())
            if found and thought.lstrip().startswith(opening.strip()):
                reasoning = thought.lstrip().removeprefix(opening.strip()).strip("\n")
                text = said.lstrip("\n")
        if self.tools is not None:
            text, calls = self.tools.read(text, n_before)
        return Message(role=Role.ASSISTANT, content=text, reasoning=reasoning, tool_calls=calls)

    def _said(self, message: Message) -> str:
        text = message.content
        if message.role is Role.TOOL and self.tools is not None:
            return text.join(self.tools.result)
        if message.tool_calls:
            text = "\n".join([*filter(None, [text]), *map(self._form().called, message.tool_calls)])
        if message.reasoning and self.think is not None:
            text = message.reasoning.join(self.think) + text
        return text

    def _form(self) -> ToolForm:
        if self.tools is None:
            raise PolicyUnusable(
                "the chat template says nothing about tools; give it a ToolForm, or use the agent `react`",
                stage="template",
            )
        return self.tools


def chatml(
    start: Mark = Mark("<|im_start|>"),  # noqa: B008 a frozen value
    end: Mark = Mark("<|im_end|>"),  # noqa: B008
    *,
    tools: ToolForm | None = ToolForm(),  # noqa: B008
    think: tuple[str, str] | None = None,
    stop_ids: tuple[int, ...] = (),
) -> ChatTemplate:
    """`<|im_start|>role`, a new line, the text, `<|im_end|>`, a new line: Qwen's form and that of many others."""
    before = {role: (start, f"{role}\n") for role in Role}
    return ChatTemplate(before=before, after=(end, "\n"), tools=tools, think=think, stop_ids=stop_ids)


class _WrittenCall(Struct):
    name: str
    arguments: msgspec.Raw = msgspec.Raw(b"{}")


def _call_in(text: str, id: str) -> ToolCall | None:
    """Arguments stay as they are written, but for those that are a text that holds JSON."""
    try:
        written = from_json(text, _WrittenCall)
        arguments = bytes(written.arguments).decode()
        inside = from_json(arguments) if arguments.startswith('"') else arguments
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    return ToolCall(id=id, name=written.name, arguments=inside)


def _function(tool: ToolSpec) -> dict[str, object]:
    return {"name": tool.name, "description": tool.description, "parameters": msgspec.to_builtins(tool.parameters)}
