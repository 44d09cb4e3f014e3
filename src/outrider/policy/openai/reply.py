"""A server's answer: the fields we read of it, and the completion they make. Unknown fields are ignored."""

import json
from array import array
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from outrider.core.chat import Message, Role, ToolCall
from outrider.core.decoding import from_json
from outrider.core.errors import PolicyError
from outrider.policy.protocol import Completion, FinishReason, Tokens, Usage

VERSION_HEADER = "x-policy-version"
"""A server in training may say which version of the policy answered, as a whole number."""

MAX_COUNT = 2**53
MAX_DIGITS = 15


class MalformedReply(PolicyError):
    """The server answered with something that is no completion. Asked again, it may do better."""


class EmptyReply(MalformedReply):
    """The model said nothing and called nothing, and gave no reason for it."""


class Function(Struct):
    """A function call; some servers give its arguments as an object instead of a string."""

    name: str | None = None
    arguments: str | dict[str, Any] | None = None


class Call(Struct):
    """A tool call, or in a stream a piece of one."""

    index: int | None = None
    id: str | None = None
    function: Function | None = None


class Part(Struct):
    """A piece of content, where a server gives a list of them."""

    text: str | None = None


class Said(Struct):
    """A message, or in a stream a piece of one."""

    content: str | list[Part] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[Call] | None = None

    @property
    def text(self) -> str:
        if isinstance(self.content, list):
            return "".join(part.text or "" for part in self.content)
        return self.content or self.refusal or ""

    @property
    def thought(self) -> str:
        return self.reasoning_content or self.reasoning or ""


class TokenLogprob(Struct):
    """One token's log-probability."""

    logprob: float


class Logprobs(Struct):
    """Those of all tokens of a choice."""

    content: list[TokenLogprob] | None = None


class MetaInfo(Struct):
    """SGLang's: log-probability, token id and text of each token; the version of the weights."""

    output_token_logprobs: list[tuple[float, int, str | None]] | None = None
    weight_version: str | int | None = None


class Choice(Struct):
    """One answer; `message` in a whole reply, `delta` in a stream."""

    index: int = 0
    message: Said | None = None
    delta: Said | None = None
    finish_reason: str | None = None
    logprobs: Logprobs | None = None
    token_ids: list[int] | None = None
    response_token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    meta_info: MetaInfo | None = None


class TokenDetails(Struct):
    """How many tokens of the prompt the server had already."""

    cached_tokens: int | None = None


class Counts(Struct):
    """The tokens that were used."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: TokenDetails | None = None


class Reply(Struct):
    """A whole answer, or one piece of a stream."""

    choices: list[Choice] | None = None
    usage: Counts | None = None
    model: str | None = None
    prompt_token_ids: list[int] | None = None
    object: str | None = None
    error: Any = None


def decode(body: bytes) -> Reply:
    """Raises `MalformedReply` unless it is JSON of the right types. Bytes that are no UTF-8 become marks."""
    try:
        return from_json(body, Reply)
    except (ValueError, RecursionError) as exc:
        if isinstance(exc, msgspec.ValidationError):
            raise MalformedReply(f"an answer of the wrong form: {exc}") from exc
    try:
        return from_json(_repaired(body), Reply)
    except (ValueError, RecursionError) as exc:
        raise MalformedReply(f"an answer that is not JSON: {glimpse(body)}") from exc


def glimpse(body: bytes, length: int = 200) -> str:
    """The beginning of a body, on one line, for a message."""
    text = " ".join(body[: 4 * length].decode(errors="replace").split())
    return repr(text if len(text) <= length else f"{text[:length]}…")


def completion_of(reply: Reply, headers: Mapping[str, str]) -> Completion:
    """The completion in a whole reply; raises `MalformedReply` if there is none."""
    if not reply.choices:
        raise MalformedReply("an answer without choices")
    choice = reply.choices[0]
    if choice.message is None:
        raise MalformedReply("an answer without a message")
    calls = tuple(_tool_call(call, number) for number, call in enumerate(choice.message.tool_calls or ()))
    message = Message(
        role=Role.ASSISTANT, content=choice.message.text, reasoning=choice.message.thought, tool_calls=calls
    )
    finish_reason = _finish_reason(choice.finish_reason, has_calls=bool(calls))
    if not message.content and not calls and finish_reason in (FinishReason.STOP, FinishReason.TOOL_CALLS):
        raise EmptyReply("an empty completion: no text and no tool call")
    return Completion(
        message=message,
        finish_reason=finish_reason,
        usage=_usage(reply.usage),
        tokens=_tokens(choice, reply.prompt_token_ids),
        model=reply.model or "",
        policy_version=_version(headers, choice.meta_info),
    )


def _tool_call(call: Call, number: int) -> ToolCall:
    function = call.function or Function()
    arguments = function.arguments
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments or {}, ensure_ascii=False)
    return ToolCall(id=call.id or f"call_{number}", name=function.name or "", arguments=arguments)


def _finish_reason(given: str | None, *, has_calls: bool) -> FinishReason:
    """Names that only some servers use count as what they mean; unknown ones as a plain end."""
    match given:
        case "abort" | "error" | "insufficient_system_resource":
            raise MalformedReply(f"the server broke off the answer ({given})")
        case "length" | "max_tokens" | "model_length":
            return FinishReason.LENGTH
        case "content_filter" | "safety":
            return FinishReason.CONTENT_FILTER
        case _:
            return FinishReason.TOOL_CALLS if has_calls else FinishReason.STOP


def _usage(counts: Counts | None) -> Usage:
    if counts is None:
        return Usage()
    details = counts.prompt_tokens_details
    return Usage(
        prompt_tokens=_count(counts.prompt_tokens),
        completion_tokens=_count(counts.completion_tokens),
        cached_tokens=_count(None if details is None else details.cached_tokens),
    )


def _count(given: int | None) -> int:
    return min(max(given or 0, 0), MAX_COUNT)


def _tokens(choice: Choice, prompt_ids: list[int] | None) -> Tokens | None:
    ids = choice.token_ids or choice.response_token_ids or ()
    logprobs: Iterable[float] = ()
    if choice.meta_info is not None and choice.meta_info.output_token_logprobs is not None:
        rows = choice.meta_info.output_token_logprobs
        ids, logprobs = [row[1] for row in rows], [row[0] for row in rows]
    elif choice.logprobs is not None:
        logprobs = [token.logprob for token in choice.logprobs.content or ()]
    prompt = prompt_ids or choice.prompt_token_ids or ()
    if not (ids or logprobs or prompt):
        return None
    try:
        return Tokens(
            prompt_ids=_packed("i", prompt), completion_ids=_packed("i", ids), logprobs=_packed("f", logprobs)
        )
    except OverflowError as exc:
        raise MalformedReply(f"a token id that is not a 32-bit number: {exc}") from exc


def _packed(kind: str, values: Iterable[float]) -> bytes:
    """Little-endian, four bytes each."""
    packed: array[Any] = array(kind, values)
    if _IS_BIG_ENDIAN:
        packed.byteswap()
    return packed.tobytes()


_IS_BIG_ENDIAN = array("h", [1]).tobytes() != b"\x01\x00"


def _version(headers: Mapping[str, str], meta: MetaInfo | None) -> int:
    """From the header, else from SGLang's `weight_version` if that is a number."""
    for text in (headers.get(VERSION_HEADER), None if meta is None else meta.weight_version):
        if text is not None and str(text).isdecimal() and len(str(text)) <= MAX_DIGITS:
            return int(text)
    return 0


def _repaired(body: bytes) -> bytes:
    """JSON again, with U+FFFD for bytes that are no UTF-8 and a question mark for half characters."""
    return json.dumps(json.loads(body.decode("utf-8-sig", "replace")), ensure_ascii=False).encode(errors="replace")
