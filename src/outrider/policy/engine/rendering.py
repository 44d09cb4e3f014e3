"""Conversations as token ids, each message tokenised once; replies as messages again.

Invariants:
- The ids of a prompt are those of its messages, one after the other, whether they come from the cache or not. A new
  message may have parts that others had before; a tokenizer that cannot say where they begin tokenises all of it.
- A reply that goes on in its own conversation has the ids that were sampled, also where the tokenizer would make others
  of its text: the next prompt begins with this prompt and its completion. That is kept apart from the cache, since it
  decides what is asked and not how fast.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from outrider.core.chat import Message, Role, ToolSpec
from outrider.core.errors import InvalidInput
from outrider.policy.engine.packing import BYTES_PER_ID, pack_ids
from outrider.policy.engine.recent import Recent
from outrider.policy.engine.template import ChatTemplate, Mark, Piece
from outrider.policy.engine.tokenizer import PartwiseTokenizer, Tokenizer

CACHE_BYTES = 256 * 2**20
"""How many bytes of ids are remembered; their texts take about as much again."""

NEVER = "(?!)"
"""What no text matches."""


class Prompt(NamedTuple):
    """What a model is asked. `place` stands for the conversation up to here, in this process."""

    ids: bytes
    place: int
    n_messages: int


class Said(NamedTuple):
    """A reply and the ids from where it was asked for to the next message."""

    message: Message
    ids: bytes


class Rendering:
    """Belongs to one event loop. Without `caching` every text is tokenised whenever it is needed."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate, *, cache_messages: int, caching: bool) -> None:
        self.n_tokenised = 0
        self.n_hits = 0
        self.caching = caching
        self._tokenizer = tokenizer
        self._parts_of = tokenizer.parts if caching and isinstance(tokenizer, PartwiseTokenizer) else None
        self._template = template
        self._cache_messages = cache_messages
        self._ids: Recent[Message, bytes] = Recent(cache_messages, CACHE_BYTES)
        self._parts: Recent[str, bytes] = Recent(cache_messages, CACHE_BYTES)
        self._counts: Recent[str, int] = Recent(cache_messages, CACHE_BYTES)
        self._said: Recent[int, Said] = Recent(cache_messages, CACHE_BYTES)
        self._mark_ids = {mark: self._mark_id(mark) for mark in template.marks()}
        texts = {mark.text for mark in self._mark_ids} | set(template.reserved) - {""}
        self._marks = re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True))) or NEVER)
        self._beginning = self._pack(template.beginning)
        self._asking = self._pack(template.before.get(Role.ASSISTANT, ()))
        self._ending = self._pack(template.after)
        self._ending_after_mark = self._pack(template.after[1:])
        self._end_id = None if template.end is None else self._mark_ids[template.end]
        ends = () if self._end_id is None else (self._end_id,)
        self.stop_ids = tuple(dict.fromkeys((*ends, *template.stop_ids)))

    def with_caching(self, caching: bool) -> "Rendering":
        """The same with an empty cache, or none; it goes on from the same replies."""
        other = Rendering(self._tokenizer, self._template, cache_messages=self._cache_messages, caching=caching)
        other._said = self._said
        return other

    def prompt(self, messages: Sequence[Message], tools: Sequence[ToolSpec], session: str) -> Prompt:
        place = hash(session)
        parts = [self._beginning]
        for message in self._template.with_tools(messages, tools):
            place = hash((place, message))
            said = self._said.get(place) if message.role is Role.ASSISTANT else None
            parts.append(said.ids if said is not None and said.message == message else self._ids_of(message))
        parts.append(self._asking)
        return Prompt(b"".join(parts), place, len(messages))

    def reply(self, prompt: Prompt, ids: Sequence[int]) -> Message:
        """The message that the model's `ids` spell; they are kept for the next prompt."""
        last = ids[-1] if ids else None
        text = self._tokenizer.decode(list(ids[:-1] if last in self.stop_ids else ids))
        message = self._template.read(text, prompt.n_messages)
        ending = self._ending_after_mark if ids and last == self._end_id else self._ending
        whole = self._asking + pack_ids(ids) + ending
        self._said.put(hash((prompt.place, message)), Said(message, whole), len(whole))
        return message

    def count(self, text: str) -> int:
        """How many tokens a text has by itself."""
        n_ids = self._counts.get(text) if self.caching else None
        if n_ids is not None:
            self.n_hits += 1
            return n_ids
        self.n_tokenised += 1
        n_ids = len(self._encode(text)) // BYTES_PER_ID
        if self.caching:
            self._counts.put(text, n_ids, len(text))
        return n_ids

    def _ids_of(self, message: Message) -> bytes:
        packed = self._ids.get(message) if self.caching else None
        if packed is not None:
            self.n_hits += 1
            return packed
        self.n_tokenised += 1
        packed = self._pack(self._template.pieces(message))
        if self.caching:
            self._ids.put(message, packed, len(packed))
        return packed

    def _pack(self, pieces: Iterable[Piece]) -> bytes:
        return b"".join(
            pack_ids((self._mark_ids[run],)) if isinstance(run, Mark) else self._encode(run) for run in _runs(pieces)
        )

    def _encode(self, text: str) -> bytes:
        """A mark that is written out is cut, so that no text can end its message. Half characters become `?`."""
        text = text if text.isascii() else text.encode(errors="replace").decode()
        cuts = [found.start() + 1 for found in self._marks.finditer(text)]
        return b"".join(self._spelled(text[begin:end]) for begin, end in pairwise((0, *cuts, len(text))))

    def _spelled(self, text: str) -> bytes:
        if self._parts_of is None:
            return pack_ids(self._tokenizer.encode(text))
        return b"".join(map(self._part, self._parts_of(text)))

    def _part(self, text: str) -> bytes:
        packed = self._parts.get(text)
        if packed is None:
            packed = pack_ids(self._tokenizer.encode(text))
            self._parts.put(text, packed, len(packed))
        return packed

    def _mark_id(self, mark: Mark) -> int:
        if mark.id is not None:
            return mark.id
        ids = self._tokenizer.encode(mark.text)
        if len(ids) != 1:
            raise InvalidInput(
                f"the tokenizer makes {len(ids)} tokens of {mark.text!r}, which the chat template takes for a special "
                "one: use the template of this model, or give the id, as Mark(text, id)"
            )
        return ids[0]


def _runs(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """Marks, and all the text between two of them in one, so that it is tokenised as in a whole conversation."""
    text = ""
    for piece in pieces:
        if isinstance(piece, Mark):
            if text:
                yield text
            text = ""
            yield piece
        else:
            text += piece
    if text:
        yield text
