"""A conversation as the JSON body of a chat completion, in the dialect of the server it goes to."""

from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from outrider.core.chat import Image, Message, Role, ToolSpec
from outrider.policy.openai.reply import Reply
from outrider.policy.protocol import Sampling

TOKEN_ID_FIELDS = ("return_token_ids", "return_prompt_token_ids", "return_meta_info")
"""They ask for exact tokens: the first is vLLM's, the others are SGLang's. Other servers ignore or refuse them."""

_ENCODER = msgspec.json.Encoder()
_SAMPLING = Sampling()


class Dialect(Struct, frozen=True, kw_only=True):
    """What one server is known to take. It starts with what most take, and learns from refusals."""

    gives_token_ids: bool = True
    streams_token_ids: bool = True
    """SGLang gives token ids, but not in a stream. They matter more than the stream."""

    has_stream_usage: bool = True
    has_max_tokens: bool = True
    """Newer models of OpenAI take `max_completion_tokens` alone, some other servers `max_tokens` alone."""

    reasoning_field: str | None = "reasoning_content"

    def after_refusal(self, text: str, request: "Request") -> "Dialect | None":
        """How to ask again after a 400 with this text, or None if asking otherwise would not help."""
        if request.sampling.logprobs and self.gives_token_ids and any(field in text for field in TOKEN_ID_FIELDS):
            if request.wants_stream and self.streams_token_ids and "stream" in text:
                return msgspec.structs.replace(self, streams_token_ids=False)
            return msgspec.structs.replace(self, gives_token_ids=False)
        if "stream_options" in text and self.has_stream_usage:
            return msgspec.structs.replace(self, has_stream_usage=False)
        if "max_completion_tokens" in text and "nsupported" in text and self.has_max_tokens:
            return msgspec.structs.replace(self, has_max_tokens=False)
        if self.reasoning_field is not None and self.reasoning_field in text and request.has_reasoning:
            return msgspec.structs.replace(self, reasoning_field=None)
        return None

    def after_reply(self, reply: Reply) -> "Dialect":
        """Reasoning goes back under the name it came by."""
        said = reply.choices[0].message if reply.choices else None
        if said is None or not said.reasoning or said.reasoning_content or self.reasoning_field != "reasoning_content":
            return self
        return msgspec.structs.replace(self, reasoning_field="reasoning")


class Request(Struct, frozen=True, kw_only=True):
    """What is asked, apart from whom."""

    model: str
    messages: Sequence[Message]
    tools: Sequence[ToolSpec] = ()
    sampling: Sampling = _SAMPLING
    wants_stream: bool = False
    extra: Mapping[str, Any] = {}
    """Fields that are put over those of the request as they are."""

    @property
    def has_reasoning(self) -> bool:
        return any(message.reasoning for message in self.messages)

    def is_streamed(self, dialect: Dialect) -> bool:
        asks_ids = self.sampling.logprobs and dialect.gives_token_ids
        return self.wants_stream and (dialect.streams_token_ids or not asks_ids)

    def body(self, dialect: Dialect) -> bytes:
        """The request in JSON. Half characters, which UTF-8 cannot carry, become question marks."""
        content = self._content(dialect)
        try:
            return _ENCODER.encode(content)
        except UnicodeEncodeError:
            return _ENCODER.encode(_whole_characters(msgspec.to_builtins(content)))

    def _content(self, dialect: Dialect) -> dict[str, Any]:
        sampling = self.sampling
        content: dict[str, Any] = {"model": self.model, "messages": _messages(self.messages, dialect)}
        if self.tools:
            content["tools"] = [{"type": "function", "function": tool} for tool in self.tools]
        if self.is_streamed(dialect):
            content["stream"] = True
            if dialect.has_stream_usage:
                content["stream_options"] = {"include_usage": True}
        if sampling is not _SAMPLING:
            content.update(_chosen(sampling, dialect))
        content.update(self.extra)
        return content


def _chosen(sampling: Sampling, dialect: Dialect) -> dict[str, Any]:
    """What of the sampling is not left to the server.

    `top_k` is no field of OpenAI's own; the servers that know it take it beside the others.
    """
    chosen = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "max_tokens" if dialect.has_max_tokens else "max_completion_tokens": sampling.max_tokens,
        "seed": sampling.seed,
        "stop": sampling.stop or None,
        "top_k": sampling.top_k,
        "reasoning_effort": sampling.reasoning_effort,
    }
    content = {name: value for name, value in chosen.items() if value is not None}
    if sampling.logprobs:
        content["logprobs"] = True
        if dialect.gives_token_ids:
            content.update(dict.fromkeys(TOKEN_ID_FIELDS, True))
    return content


def _messages(messages: Iterable[Message], dialect: Dialect) -> list[dict[str, Any]]:
    """The messages on the wire. A tool's pictures follow in a user message, since tool messages hold text alone."""
    out: list[dict[str, Any]] = []
    pictures: list[Image] = []
    for message in messages:
        if message.role is Role.TOOL:
            out.append({"role": "tool", "tool_call_id": message.tool_call_id or "", "content": message.content})
            pictures.extend(message.images)
            continue
        if pictures:
            out.append(_shown(pictures))
            pictures = []
        out.append(_message(message, dialect))
    if pictures:
        out.append(_shown(pictures))
    return out


def _message(message: Message, dialect: Dialect) -> dict[str, Any]:
    out: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.images:
        out["content"] = _parts(message.content, message.images)
    if message.tool_calls:
        out["content"] = message.content or None
        out["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    if message.reasoning and dialect.reasoning_field is not None:
        out[dialect.reasoning_field] = message.reasoning
    return out


def _shown(pictures: Sequence[Image]) -> dict[str, Any]:
    return {"role": "user", "content": _parts("What the tool calls above have shown:", pictures)}


def _parts(text: str, images: Sequence[Image]) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = [{"type": "text", "text": text}] if text else []
    for image in images:
        url = f"data:{image.media_type};base64,{b64encode(image.data).decode()}"
        parts.append({"type": "image_url", "image_url": {"url": url}})
    return parts


def _whole_characters(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    if isinstance(value, dict):
        return {_whole_characters(key): _whole_characters(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_whole_characters(item) for item in value]
    return value
