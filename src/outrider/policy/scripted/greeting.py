"""The script for a greeting: what a client sends to see whether a server answers at all."""

import random
from collections.abc import Sequence

from outrider.core.chat import Message, Role, ToolSpec, assistant

_GREETINGS = frozenset({"hi", "hello"})


class GreetingScript:
    """Greets back."""

    def understands(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> bool:  # noqa: ARG002
        said = [message for message in messages if message.role is not Role.SYSTEM]
        return [message.role for message in said] == [Role.USER] and _is_greeting(said[0])

    def solve(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:  # noqa: ARG002
        return assistant("Hello")

    def guess(self, messages: Sequence[Message], tools: Sequence[ToolSpec], rng: random.Random) -> Message:  # noqa: ARG002
        return assistant("Hello")


def _is_greeting(message: Message) -> bool:
    return message.content.strip(" !.").lower() in _GREETINGS
