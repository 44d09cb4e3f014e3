"""How much of a conversation a model is shown: all of it, or what fits a budget of tokens."""

from collections.abc import Callable, Sequence

from outrider.core.chat import Message, Role, user
from outrider.core.errors import InvalidInput
from outrider.policy import Usage

CHARACTERS_PER_TOKEN = 4
MESSAGE_TOKENS = 4
"""What a message costs beside its text."""

IMAGE_TOKENS = 1_000

TARGET = 0.75
"""How much of the budget is left full after trimming, so that not every turn has to trim again."""

_SCALES = (0.25, 4.0)
"""How far a server's count of a text may be from our estimate."""

_LEARNT_FROM_TOKENS = 20
"""By how much a conversation must change before two counts of it tell anything about the scale."""


class History:
    """The view of a conversation that only grows. What was left out once stays out: each view continues the last.

    Tokens are estimated; each count of the server corrects what the estimate is multiplied by, and what comes on top
    of it, such as the tools.
    """

    def __init__(self, max_tokens: int | None = None) -> None:
        if max_tokens is not None and max_tokens < 1:
            raise InvalidInput(f"max_context_tokens is {max_tokens}; give 1 or more, or leave it out for no limit")
        self._max_tokens = max_tokens
        self._shown: tuple[Message, ...] = ()
        self._n_seen = 0
        self._estimate = 0
        self._scale = 1.0
        self._overhead = 0.0
        self._counted: tuple[int, int] | None = None

    def fit(self, messages: Sequence[Message]) -> Sequence[Message]:
        """What to show of `messages`, which begin with those given the last time."""
        if self._max_tokens is None:
            return messages
        new = messages[self._n_seen :]
        self._estimate += sum(map(estimated_tokens, new))
        self._shown = (*self._shown, *new)
        self._n_seen = len(messages)
        if self._overhead + self._scale * self._estimate > self._max_tokens:
            self._shown = trimmed(messages, (TARGET * self._max_tokens - self._overhead) / self._scale)
            self._estimate = sum(map(estimated_tokens, self._shown))
        return self._shown

    def learn(self, usage: Usage) -> None:
        """Take the server's count of what was last shown, which knows better."""
        tokens = usage.prompt_tokens
        if self._max_tokens is None or tokens <= 0:
            return
        if self._counted is not None:
            estimate, before = self._counted
            change = self._estimate - estimate
            if abs(change) >= _LEARNT_FROM_TOKENS:
                least, most = _SCALES
                self._scale = min(max((tokens - before) / change, least), most)
        self._counted = self._estimate, tokens
        self._overhead = tokens - self._scale * self._estimate


def estimated_tokens(message: Message) -> int:
    """Four characters a token; a picture a constant."""
    calls = sum(len(call.name) + len(call.arguments) for call in message.tool_calls)
    characters = len(message.content) + len(message.reasoning) + calls
    return MESSAGE_TOKENS + -(-characters // CHARACTERS_PER_TOKEN) + IMAGE_TOKENS * len(message.images)


def trimmed(
    messages: Sequence[Message], max_tokens: float, *, tokens: Callable[[Message], int] = estimated_tokens
) -> tuple[Message, ...]:
    """`messages` without the oldest, as few as it takes to fit, and a line that says so.

    System messages and the first of the user stay; a tool call and its results stay or go together, as does a reply
    with what it led to. The newest stay even if they alone are too long.
    """
    sizes = [tokens(message) for message in messages]
    least = total = sum(sizes)
    if total <= max_tokens:
        return tuple(messages)
    first_user = next((i for i, message in enumerate(messages) if message.role is Role.USER), None)
    kept: list[int] = []
    chosen: tuple[int, tuple[Message, ...]] = (0, ())
    begin = 0
    for cut in _cuts(messages):
        stay = [i for i in range(begin, cut) if messages[i].role is Role.SYSTEM or i == first_user]
        total -= sum(sizes[begin:cut]) - sum(sizes[i] for i in stay)
        kept += stay
        begin = cut
        if len(kept) == cut:
            continue
        marker = _marker(cut - len(kept))
        if total + tokens(marker) < least:
            least = total + tokens(marker)
            chosen = cut, (*(messages[i] for i in kept), marker)
        if least <= max_tokens:
            break
    cut, head = chosen
    return (*head, *messages[cut:])


def _cuts(messages: Sequence[Message]) -> list[int]:
    """Where the conversation may be cut, oldest place first: before a reply, and nowhere between a call and its answer.

    Before the first reply it may be cut anywhere.
    """
    first_reply = next((i for i, m in enumerate(messages) if m.role is Role.ASSISTANT), len(messages))
    called_at: dict[str, int] = {}
    earliest = list(range(len(messages)))  # the oldest message on which this one or a later one depends
    for i, message in enumerate(messages):
        called_at.update((call.id, i) for call in message.tool_calls)
        if message.role is Role.TOOL:
            earliest[i] = called_at.get(message.tool_call_id or "", i)
    for i in range(len(messages) - 2, -1, -1):
        earliest[i] = min(earliest[i], earliest[i + 1])
    return [
        i
        for i, message in enumerate(messages)
        if (message.role is Role.ASSISTANT or i <= first_reply) and i and earliest[i] >= i
    ]


def _marker(n_left_out: int) -> Message:
    return user(f"[{n_left_out} earlier message{'s' if n_left_out > 1 else ''} left out to save space]")
