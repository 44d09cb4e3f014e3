"""Texts as token ids and back."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from outrider.policy.engine import cutting


class Tokenizer(Protocol):
    """Of one model. It adds nothing of its own: what begins and ends a message is the template's part."""

    def encode(self, text: str) -> Sequence[int]: ...

    def decode(self, ids: list[int]) -> str:
        """All of the text, special tokens included."""


@runtime_checkable
class PartwiseTokenizer(Tokenizer, Protocol):
    """One that knows where texts can be cut, so that what stands in many prompts is tokenised once."""

    def parts(self, text: str) -> Iterable[str]:
        """The text in parts whose ids, one after the other, are those of the whole."""


@dataclass(frozen=True, slots=True)
class HuggingFaceTokenizer:
    """A `tokenizers.Tokenizer`, or a tokenizer of `transformers`, as it is now: it must not be changed any more."""

    inner: Any
    _cut: int | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_cut", cutting.cut_of(self.inner))

    def encode(self, text: str) -> Sequence[int]:
        found = self.inner.encode(text, add_special_tokens=False)
        ids: Sequence[int] = getattr(found, "ids", found)
        return ids

    def decode(self, ids: list[int]) -> str:
        text: str = self.inner.decode(ids, skip_special_tokens=False)
        return text

    def parts(self, text: str) -> Iterable[str]:
        return (text,) if self._cut is None else cutting.parts(text, self._cut)
