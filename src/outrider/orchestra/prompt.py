"""Prompts with places to fill in: parsed once, filled in one pass, and every other brace is plain text."""

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import NamedTuple

from outrider.core.errors import InvalidInput

PLACES = ("question", "opening", "context", "observation", "round", "step")
"""The places that every prompt may have."""

_BRACED = re.compile(r"(?P<doubled>\{\{(?P<mentioned>[^\W\d]\w*+)\}\})|\{(?P<named>[^\W\d]\w*+)\}")
_NEAR = 0.75
"""How alike a name must be to that of a place to be taken for a slip: `qestion` and `setp` are, `answer` is not."""


class Piece(NamedTuple):
    """A stretch of fixed text, or the name of a place."""

    text: str
    is_place: bool


class Prompt:
    """A template, such as `Question: {question}`.

    Only the names in `PLACES` and those given are places; all other braces (JSON, LaTeX, code) stand for themselves and
    are not escaped. A name that is nearly a place is refused. Doubled braces around a place, or around what would be
    refused, write it: `{{question}}` writes `{question}`. What is filled in is never parsed again.
    """

    __slots__ = ("pieces", "places", "text")

    def __init__(self, text: str, *, places: Iterable[str] = ()) -> None:
        known = dict.fromkeys((*PLACES, *places))
        for name in known:
            if not name.isidentifier():
                raise InvalidInput(f"{name!r} cannot be a place of a prompt; name it by one word, such as {{notes}}")
        self.text = text
        self.pieces = tuple(_pieces(text, tuple(known)))
        self.places = frozenset(piece.text for piece in self.pieces if piece.is_place)

    def __repr__(self) -> str:
        return f"Prompt({self.text!r})"

    def filled(self, values: Mapping[str, str]) -> tuple[str, ...]:
        """The pieces, each place with its value, so that each can be counted alone. More values do no harm."""
        missing = sorted(self.places.difference(values))
        if missing:
            raise InvalidInput(f"the prompt has a place {{{missing[0]}}}, and there is no value for it")
        return tuple(values[piece.text] if piece.is_place else piece.text for piece in self.pieces)

    def render(self, values: Mapping[str, str]) -> str:
        return "".join(self.filled(values))


def _pieces(text: str, known: tuple[str, ...]) -> list[Piece]:
    """The text split at its places; neighbouring fixed text is one piece."""
    pieces: list[Piece] = []
    fixed: list[str] = []
    at = 0

    def end_fixed() -> None:
        if whole := "".join(fixed):
            pieces.append(Piece(whole, is_place=False))
        fixed.clear()

    for match in _BRACED.finditer(text):
        name = match["mentioned"] or match["named"]
        near = _near(name, known)
        if near is None:
            continue
        fixed.append(text[at : match.start()])
        at = match.end()
        if match["doubled"]:
            fixed.append(f"{{{name}}}")
        elif near == name:
            end_fixed()
            pieces.append(Piece(name, is_place=True))
        else:
            raise InvalidInput(
                f"a prompt has no place {{{name}}}; did you mean {{{near}}}? "
                f"To have {{{name}}} in the text, write {{{{{name}}}}}"
            )
    fixed.append(text[at:])
    end_fixed()
    return pieces


def _near(name: str, known: tuple[str, ...]) -> str | None:
    """The place of this name, or else the one that it is most like."""
    if name in known:
        return name
    folded = {place.casefold(): place for place in known}
    near = get_close_matches(name.casefold(), folded, n=1, cutoff=_NEAR)
    return folded[near[0]] if near else None
