"""Texts as token ids and back."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol


class Tokenizer(Protocol):
    """Of one model. It adds nothing of its own: what begins and ends a message is the template's part."""

    def encode(self, text: str) -> Sequence[int]: ...

    def decode(self, ids: list[int]) -> str:
        """All of the text, special tokens included."""


@dataclass(frozen=True, slots=True)
class HuggingFaceTokenizer:
    """A `tokenizers.Tokenizer`, or a tokenizer of `transformers`, as it is."""

    inner: Any

    def encode(self, text: str) -> Sequence[int]:
        found = self.inner.encode(text, add_special_tokens=False)
        ids: Sequence[int] = getattr(found, "ids", found)
        return ids

    def decode(self, ids: list[int]) -> str:
        text: str = self.inner.decode(ids, skip_special_tokens=False)
        return text
