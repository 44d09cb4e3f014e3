"""A plain byte tokenizer: with it the built-in policies give exact token ids, as a model's server would.

A text is its UTF-8 bytes, one token each; marks with ids from 256 on give it structure. Rendering only appends: a
prompt ends with the mark that opens an answer, a completion is the answer up to its end mark. So the next prompt begins
with both of them, token by token, for as long as the history is kept.
"""

import re
from array import array
from collections.abc import Mapping, Sequence
from enum import IntEnum
from hashlib import blake2b
from types import MappingProxyType

import msgspec

from outrider.core.chat import Image, Message, Role, ToolSpec
from outrider.core.errors import InvalidInput
from outrider.policy.protocol import Tokens

_ENCODING = "utf-32-le"
"""A character for each token, so that Python's own codec packs them: four bytes each, the lowest first."""

_BYTES_PER_TOKEN = 4


class Mark(IntEnum):
    """The tokens that are no bytes."""

    SYSTEM = 256
    USER = 257
    ASSISTANT = 258
    TOOL = 259
    END = 260
    REASONING = 261
    IMAGE = 262
    CALL = 263
    NAME = 264
    ARGUMENTS = 265
    ANSWERS = 266
    OFFER = 267


VOCABULARY = max(Mark) + 1
"""How many ids there are."""

_OPENING: Mapping[Role, Mark] = MappingProxyType({role: Mark[role.name] for role in Role})
_PIECES = re.compile(f"([{chr(min(Mark))}-{chr(max(Mark))}])")


def n_tokens(packed: bytes) -> int:
    return len(packed) // _BYTES_PER_TOKEN


def prompt_ids(messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> bytes:
    """What a model is shown, packed: the tools on offer, the messages, and the mark that asks for an answer."""
    offers = "".join(f"{chr(Mark.OFFER)}{_bytes(_schema(tool))}{chr(Mark.END)}" for tool in tools)
    said = "".join(chr(_OPENING[message.role]) + _body(message) for message in messages)
    return (offers + said + chr(Mark.ASSISTANT)).encode(_ENCODING)


def completion_ids(reply: Message) -> bytes:
    """What a model answers, packed, with the mark that ends it."""
    return _body(reply).encode(_ENCODING)


def tokens_of(
    messages: Sequence[Message], reply: Message, *, tools: Sequence[ToolSpec] = (), logprob: float | None = None
) -> Tokens:
    """The tokens of one call. The reply's whole `logprob` stands on its first token; None: nobody knows it."""
    completion = completion_ids(reply)
    logprobs = b""
    if logprob is not None:
        logprobs = _little_endian(array("f", [logprob])) + bytes(len(completion) - _BYTES_PER_TOKEN)
    return Tokens(prompt_ids=prompt_ids(messages, tools), completion_ids=completion, logprobs=logprobs)


def decode(packed: bytes) -> str:
    """The text of packed ids, marks written as `<|name|>`. A character that was cut in two is shown as U+FFFD."""
    try:
        pieces = _PIECES.split(packed.decode(_ENCODING))
        return "".join(_shown(piece) for piece in pieces)
    except UnicodeError as exc:
        raise InvalidInput(f"these are no token ids of the byte tokenizer, which go up to {max(Mark)}: {exc}") from exc


def _shown(piece: str) -> str:
    if _PIECES.fullmatch(piece):
        return f"<|{Mark(ord(piece)).name.lower()}|>"
    return piece.encode("latin-1").decode(errors="replace")


def _body(message: Message) -> str:
    """All that is said, and its end. Each part but the content begins with its mark, so no two messages look alike."""
    parts = [_bytes(message.content)]
    if message.reasoning:
        parts += chr(Mark.REASONING), _bytes(message.reasoning)
    for image in message.images:
        parts += chr(Mark.IMAGE), _bytes(_likeness(image))
    for call in message.tool_calls:
        parts += chr(Mark.CALL), _bytes(call.id), chr(Mark.NAME), _bytes(call.name)
        parts += chr(Mark.ARGUMENTS), _bytes(call.arguments)
    if message.tool_call_id is not None:
        parts += chr(Mark.ANSWERS), _bytes(message.tool_call_id)
    return "".join([*parts, chr(Mark.END)])


def _bytes(text: str) -> str:
    """A character for each byte. Half characters become what they become in the record, so that ids stay the same."""
    return text.encode(errors="replace").decode("latin-1")


def _schema(tool: ToolSpec) -> str:
    return msgspec.json.Encoder(order="deterministic").encode((tool.name, tool.description, tool.parameters)).decode()


def _likeness(image: Image) -> str:
    """What stands for a picture: its kind and its digest. It tells pictures apart and does not bring them back."""
    return f"{image.media_type} {blake2b(image.data, digest_size=8).hexdigest()}"


def _little_endian(values: "array[float]") -> bytes:
    if array("h", [1]).tobytes() != b"\x01\x00":
        values.byteswap()
    return values.tobytes()
