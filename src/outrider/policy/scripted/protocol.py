"""A script: knows how to answer one kind of conversation, from its text alone, as a model would have to."""

import random
from collections.abc import Sequence
from typing import Protocol

from outrider.core.chat import Message, ToolSpec


class Script(Protocol):
    """One domain's know-how. It holds no state: all it knows stands in the messages."""

    def understands(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> bool:
        """Whether this conversation is of the script's domain."""

    def solve(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        """The next message of one who knows how."""

    def guess(self, messages: Sequence[Message], tools: Sequence[ToolSpec], rng: random.Random) -> Message:
        """The next message of one who keeps to the form and does not know how."""
