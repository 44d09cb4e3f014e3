"""Server-sent events, read as they come, and put together to the reply they are the pieces of."""

import json

from outrider.core.lines import LineSplitter
from outrider.policy.openai.reply import (
    Call,
    Choice,
    Counts,
    Function,
    Logprobs,
    MalformedReply,
    Reply,
    Said,
    TokenLogprob,
    decode,
)

DONE = b"[DONE]"


class EventReader:
    """Splits bytes into the data of events, whatever the pieces in which they arrive."""

    def __init__(self) -> None:
        self._lines = LineSplitter()
        self._data: list[bytes] = []

    @property
    def n_pending(self) -> int:
        """Bytes of an event that is not whole yet."""
        return self._lines.n_pending + sum(map(len, self._data))

    def feed(self, piece: bytes) -> list[bytes]:
        """The events that this piece completes."""
        events = []
        for line in self._lines.feed(piece):
            text = line.removesuffix(b"\r")
            if text.startswith(b"data:"):
                self._data.append(text[5:].removeprefix(b" "))
            elif not text and self._data:
                events.append(b"\n".join(self._data))
                self._data.clear()
        return events


class Assembly:
    """The reply so far. It is whole only once the model has said why it ended."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._thought: list[str] = []
        self._calls: list[_PartialCall] = []
        self._finish_reason: str | None = None
        self._logprobs: list[TokenLogprob] = []
        self._token_ids: list[int] = []
        self._prompt_ids: list[int] | None = None
        self._usage: Counts | None = None
        self._model: str | None = None
        self._uses_reasoning = False
        self.error: bytes | None = None
        self.is_done = False

    def add(self, event: bytes) -> None:
        if event == DONE:
            self.is_done = True
            return
        piece = decode(event)
        if piece.error is not None or piece.object == "error":
            self.error = event
            return
        self._usage = piece.usage or self._usage
        self._model = piece.model or self._model
        self._prompt_ids = piece.prompt_token_ids or self._prompt_ids
        for choice in piece.choices or ():
            if choice.index == 0:
                self._add_choice(choice)

    def reply(self) -> Reply:
        """Raises `MalformedReply` if the stream ended before the answer did."""
        if self._finish_reason is None:
            raise MalformedReply("a stream that ended before the answer did")
        thought = "".join(self._thought)
        said = Said(
            content="".join(self._text),
            reasoning=thought if self._uses_reasoning else None,
            reasoning_content=None if self._uses_reasoning else thought,
            tool_calls=[call.whole() for call in self._calls],
        )
        choice = Choice(
            message=said,
            finish_reason=self._finish_reason,
            logprobs=Logprobs(content=self._logprobs) if self._logprobs else None,
            token_ids=self._token_ids or None,
        )
        return Reply(choices=[choice], usage=self._usage, model=self._model, prompt_token_ids=self._prompt_ids)

    def _add_choice(self, choice: Choice) -> None:
        said = choice.delta
        if said is not None:
            self._text.append(said.text)
            if said.thought:
                self._thought.append(said.thought)
                self._uses_reasoning = said.reasoning_content is None
            for call in said.tool_calls or ():
                self._add_call(call)
        if choice.logprobs is not None and choice.logprobs.content:
            self._logprobs.extend(choice.logprobs.content)
        if choice.token_ids:
            self._token_ids.extend(choice.token_ids)
        self._finish_reason = choice.finish_reason or self._finish_reason

    def _add_call(self, call: Call) -> None:
        found = next((known for known in reversed(self._calls) if known.is_continued_by(call)), None)
        if found is None:
            found = _PartialCall(call.index)
            self._calls.append(found)
        found.add(call)


class _PartialCall:
    """A tool call of which more may come."""

    def __init__(self, index: int | None) -> None:
        self._index = index
        self._id: str | None = None
        self._name = ""
        self._arguments: list[str] = []

    def is_continued_by(self, piece: Call) -> bool:
        """Pieces of one call share an index. Where it is left out, or 0 for all, a new id or name is a new call."""
        if piece.index != self._index or (piece.id and self._id and piece.id != self._id):
            return False
        names_another = piece.function is not None and bool(piece.function.name) and bool(self._name)
        return piece.index is not None or bool(piece.id) or not names_another

    def add(self, piece: Call) -> None:
        self._id = self._id or piece.id
        function = piece.function or Function()
        self._name = self._name or function.name or ""
        arguments = function.arguments
        if arguments is not None:
            self._arguments.append(arguments if isinstance(arguments, str) else json.dumps(arguments))

    def whole(self) -> Call:
        arguments = "".join(self._arguments) or "{}"
        return Call(id=self._id, function=Function(name=self._name, arguments=arguments))
