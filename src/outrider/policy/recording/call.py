"""One recorded call: by what it is found again, and what the model answered."""

import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from outrider.core.chat import Message, ToolSpec
from outrider.policy.protocol import Completion, Sampling

SCHEMA = 1
"""Raised when a line changes so that an older reader would misread it."""

MARK_CHARACTERS = 8
"""How much of a message's own digest is kept: enough to see which one differs."""


class Request(Struct, frozen=True, kw_only=True):
    """What was asked. `digest` stands for all of it; `messages` holds one mark for each, to tell requests apart."""

    digest: str
    messages: str
    tools: str
    sampling: Sampling

    @property
    def n_messages(self) -> int:
        return len(self.messages) // MARK_CHARACTERS


class RecordedCall(Struct, frozen=True, kw_only=True):
    """One line of a recording. Without a completion the conversation was too long, in the words of `overflow`."""

    schema: int = SCHEMA
    session: str
    request: Request
    completion: Completion | None = None
    overflow: str = ""


class RecordedLine(Struct, frozen=True, kw_only=True):
    """What finding a call again needs; the answer is read when it is asked for."""

    schema: int
    session: str
    request: Request


def request_of(messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling | None) -> Request:
    """The same in any process: equal values have equal digests, whatever the order of keys in a tool's schema."""
    encode = msgspec.json.Encoder(order="deterministic").encode
    digests = [_digest(encode(message)) for message in messages]
    of_tools = _digest(encode(tuple(tools)))
    chosen = sampling or Sampling()
    return Request(
        digest=_digest(encode((digests, of_tools, _choices(chosen)))),
        messages="".join(digest[:MARK_CHARACTERS] for digest in digests),
        tools=of_tools[:MARK_CHARACTERS],
        sampling=chosen,
    )


def _choices(sampling: Sampling) -> dict[str, Any]:
    """Only what was chosen, so that a setting of a later version does not make a request another one."""
    defaults = asdict(Sampling())
    return {name: value for name, value in asdict(sampling).items() if value != defaults[name]}


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()
