"""Chat completions as a server sees them: the request it gets, and the answer whole or in pieces."""

import re
import zlib
from base64 import b64decode
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

from outrider.core.chat import Image, Message, Role, ToolCall, ToolSpec
from outrider.policy.protocol import Completion, FinishReason, Sampling, Usage

CREATED = 1_750_000_000
_PIECE = re.compile(r"\s*\S+|\s+$")
_ARGUMENT_CHARACTERS = 8


class ModelRequest:
    """One call. `body` is the JSON as it came, `headers` have lower-case names; the rest is read from them."""

    def __init__(self, number: int, body: Mapping[str, Any], headers: Mapping[str, str]) -> None:
        self.number = number
        self.body = body
        self.headers = headers

    def read(self) -> None:
        """Raises ValueError, KeyError or TypeError if the request is not of the right form."""
        _ = self.messages, self.tools, self.sampling

    @property
    def model(self) -> str:
        return str(self.body.get("model"))

    @property
    def is_streamed(self) -> bool:
        return bool(self.body.get("stream"))

    @property
    def asks_token_ids(self) -> bool:
        return bool(self.body.get("return_token_ids"))

    @cached_property
    def messages(self) -> tuple[Message, ...]:
        return tuple(_message(message) for message in self.body["messages"])

    @cached_property
    def tools(self) -> tuple[ToolSpec, ...]:
        functions = [tool["function"] for tool in self.body.get("tools") or ()]
        return tuple(
            ToolSpec(name=each["name"], description=each.get("description", ""), parameters=each.get("parameters", {}))
            for each in functions
        )

    @cached_property
    def sampling(self) -> Sampling:
        body = self.body
        stop = body.get("stop") or ()
        return Sampling(
            temperature=body.get("temperature"),
            top_p=body.get("top_p"),
            max_tokens=body.get("max_completion_tokens") or body.get("max_tokens"),
            seed=body.get("seed"),
            stop=(stop,) if isinstance(stop, str) else tuple(stop),
            logprobs=bool(body.get("logprobs")),
            top_k=body.get("top_k"),
            reasoning_effort=body.get("reasoning_effort"),
        )

    @property
    def n_characters(self) -> int:
        return sum(len(message.content) for message in self.messages)


def _message(given: Mapping[str, Any]) -> Message:
    content = given.get("content") or ""
    parts: list[Any] = [{"type": "text", "text": content}] if isinstance(content, str) else content
    calls = [
        ToolCall(id=call["id"], name=call["function"]["name"], arguments=call["function"]["arguments"])
        for call in given.get("tool_calls") or ()
    ]
    return Message(
        role=Role(given["role"]),
        content="".join(part["text"] for part in parts if part["type"] == "text"),
        reasoning=given.get("reasoning_content") or given.get("reasoning") or "",
        images=tuple(_image(part["image_url"]["url"]) for part in parts if part["type"] == "image_url"),
        tool_calls=tuple(calls),
        tool_call_id=given.get("tool_call_id"),
    )


def _image(url: str) -> Image:
    head, _, data = url.partition(";base64,")
    return Image(data=b64decode(data, validate=True), media_type=head.removeprefix("data:"))


def pieces_of(text: str) -> list[str]:
    """The tokens of the test server: words with the blanks before them."""
    return _PIECE.findall(text)


def token_id(piece: str) -> int:
    return zlib.crc32(piece.encode(errors="replace")) % 50_000


def logprob(piece: str) -> float:
    return -(token_id(piece) % 1000) / 1000


def prompt_ids(request: ModelRequest) -> list[int]:
    return [token_id(piece) for message in request.messages for piece in pieces_of(message.content)]


def limited(completion: Completion, request: ModelRequest) -> Completion:
    """The completion with its usage counted, and cut where the request says so, as a model would be."""
    pieces = pieces_of(completion.message.content)
    most = request.sampling.max_tokens
    message, reason = completion.message, completion.finish_reason
    if most is not None and len(pieces) > most:
        pieces = pieces[:most]
        message = Message(role=Role.ASSISTANT, content="".join(pieces), reasoning=message.reasoning)
        reason = FinishReason.LENGTH
    elif message.tool_calls:
        reason = FinishReason.TOOL_CALLS
    usage = completion.usage
    if usage == Usage():
        n_called = sum(len(pieces_of(call.arguments)) + 1 for call in message.tool_calls)
        n_said = len(pieces) + len(pieces_of(message.reasoning)) + n_called
        usage = Usage(prompt_tokens=len(prompt_ids(request)), completion_tokens=n_said)
    return Completion(
        message=message,
        finish_reason=reason,
        usage=usage,
        model=request.model,
        policy_version=completion.policy_version,
    )


def whole(completion: Completion, request: ModelRequest) -> dict[str, Any]:
    """The answer in one piece."""
    message, pieces = completion.message, pieces_of(completion.message.content)
    said: dict[str, Any] = {"role": "assistant", "content": message.content or None}
    if message.reasoning:
        said["reasoning_content"] = message.reasoning
    if message.tool_calls:
        said["tool_calls"] = [_call(call, call.arguments) for call in message.tool_calls]
    choice: dict[str, Any] = {"index": 0, "message": said, "finish_reason": completion.finish_reason.value}
    answer = _head(request, "chat.completion") | {"choices": [choice], "usage": _usage(completion.usage)}
    if request.sampling.logprobs:
        choice["logprobs"] = {"content": [_logprob(piece) for piece in pieces]}
    if request.asks_token_ids:
        choice["token_ids"] = [token_id(piece) for piece in pieces]
        answer["prompt_token_ids"] = prompt_ids(request)
    if request.body.get("return_meta_info"):
        rows = [[logprob(piece), token_id(piece), piece] for piece in pieces]
        choice["meta_info"] = {"output_token_logprobs": rows, "weight_version": "default"}
    return answer


def chunks(completion: Completion, request: ModelRequest) -> Iterator[dict[str, Any]]:
    """The answer as the pieces of a stream."""
    message = completion.message
    head = _head(request, "chat.completion.chunk")
    first = head | {"choices": [_delta({"role": "assistant", "content": ""})]}
    yield first | {"prompt_token_ids": prompt_ids(request)} if request.asks_token_ids else first
    for piece in pieces_of(message.reasoning):
        yield head | {"choices": [_delta({"reasoning_content": piece})]}
    for piece in pieces_of(message.content):
        choice = _delta({"content": piece})
        if request.sampling.logprobs:
            choice["logprobs"] = {"content": [_logprob(piece)]}
        if request.asks_token_ids:
            choice["token_ids"] = [token_id(piece)]
        yield head | {"choices": [choice]}
    for index, call in enumerate(message.tool_calls):
        yield head | {"choices": [_delta({"tool_calls": [{"index": index, **_call(call, "")}]})]}
        for start in range(0, len(call.arguments), _ARGUMENT_CHARACTERS):
            part = {"index": index, "function": {"arguments": call.arguments[start : start + _ARGUMENT_CHARACTERS]}}
            yield head | {"choices": [_delta({"tool_calls": [part]})]}
    yield head | {"choices": [_delta({}, completion.finish_reason.value)]}
    if (request.body.get("stream_options") or {}).get("include_usage"):
        yield head | {"choices": [], "usage": _usage(completion.usage)}


def _head(request: ModelRequest, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{request.number}", "object": kind, "created": CREATED, "model": request.model}


def _delta(delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "finish_reason": finish_reason}


def _call(call: ToolCall, arguments: str) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def _logprob(piece: str) -> dict[str, Any]:
    return {"token": piece, "logprob": logprob(piece), "bytes": None, "top_logprobs": []}


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


def error_body(message: str, code: str | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": code}}
