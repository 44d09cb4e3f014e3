r"""Reading a reply: the verdict of a verifier, the content of a tag, what stands in a box.

- What an agent thinks (`<think>…</think>`) it does not say: nothing in there counts. Where `</think>` has no opening,
  the opening stood in the prompt and all before it was thought; where a thought has no end, it goes on to the end.
- `<think>` in quotes or backticks is a mention. In a code block it is a thought: thoughts are found first.
- A tag is `<name>…</name>`, in any case and without attributes, and reaches back to the nearest opening.
- Every reader takes linear time, whatever the reply.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from outrider.core.errors import InvalidInput
from outrider.env.scoring.extraction import last_boxed

_THINK = re.compile(r"<(/?)think\s*+>", re.IGNORECASE)
_QUOTES = frozenset("\"'`“”„«»\u2018\u2019\u201a\u2039\u203a")


def _block(run: str, mark: str, info: str) -> str:
    """A fenced code block: a `run` of marks and what may follow it, up to its end or to that of the text."""
    end = rf"[ \t>]*+(?P={run}){mark}*+[^\S\n]*+$"
    return rf"(?P<{run}>{mark}{{3,}}+){info}$(?:\n(?!{end})[^\n]*+)*+(?:\n{end})?+"


_TICKS, _TILDES = _block("ticks", "`", r"[^`\n]*+"), _block("tildes", "~", r"[^\n]*+")
_CODE = re.compile(rf"^[ \t>]*+(?:{_TICKS}|{_TILDES})", re.MULTILINE)
_WORD = r"(?<![^\W_])(?:{})(?![^\W_])"
_MARKS = " .!,;:*_`\"'"
"""What may stand around the word in a verdict."""


class Outcome(StrEnum):
    """What a verdict that is not clear comes to."""

    APPROVE = "approve"
    REJECT = "reject"


class VerdictKind(StrEnum):
    """How a verdict came about."""

    CLEAR = "clear"
    """The last tag says yes or no."""

    MALFORMED = "malformed"
    """There is no tag that counts, the last one says neither, or the reply ends in the middle of a thought."""

    AMBIGUOUS = "ambiguous"
    """The last tag holds both a yes and a no, as in "yes or no"."""

    EXHAUSTED = "exhausted"
    """The rounds ran out before there was a verdict."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What was decided, and why. `said` is what stood in the tag that counted, if there was one."""

    approved: bool
    kind: VerdictKind
    said: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictRule:
    """How a verifier's reply is read, and what it comes to if it is not clear: no approval, unless one asks for it.

    The last tag counts, also of two in one line. A tag in a code block does not count, nor one with quotes or backticks
    directly around it: it is a mention. The tag must hold one of the words and nothing else; case, space, emphasis and
    a full stop do not matter.
    """

    tag: str = "verify"
    yes: tuple[str, ...] = ("yes", "approve", "approved", "accept", "accepted")
    no: tuple[str, ...] = ("no", "reject", "rejected", "refuse", "refused")
    malformed: Outcome = Outcome.REJECT
    ambiguous: Outcome = Outcome.REJECT
    exhausted: Outcome = Outcome.REJECT

    def __post_init__(self) -> None:
        _check_name(self.tag)
        _check_words(self.yes, self.no)
        if both := _folded(self.yes) & _folded(self.no):
            raise InvalidInput(f"{min(both)!r} cannot mean yes and no in a verdict; take it out of one of them")

    def __call__(self, text: str) -> Verdict:
        return self.read(text)

    def read(self, text: str) -> Verdict:
        aloud, is_thinking = _aloud(text)
        content = None if is_thinking else _last_tagged(_unfenced(aloud), self.tag, skip_quoted=True)
        if content is None:
            return self._unclear(VerdictKind.MALFORMED, self.malformed)
        yes, no = _folded(self.yes), _folded(self.no)
        said = " ".join(content.split())
        folded = said.casefold()
        if (word := folded.strip(_MARKS)) in yes | no:
            return Verdict(approved=word in yes, kind=VerdictKind.CLEAR, said=said)
        if _has_any(folded, yes) and _has_any(folded, no):
            return self._unclear(VerdictKind.AMBIGUOUS, self.ambiguous, said)
        return self._unclear(VerdictKind.MALFORMED, self.malformed, said)

    def out_of_rounds(self) -> Verdict:
        """The verdict on a sample whose rounds ran out without one."""
        return self._unclear(VerdictKind.EXHAUSTED, self.exhausted)

    def _unclear(self, kind: VerdictKind, outcome: Outcome, said: str = "") -> Verdict:
        return Verdict(approved=outcome is Outcome.APPROVE, kind=kind, said=said)


@dataclass(frozen=True, slots=True)
class Tag:
    """Reads what stands in the last such tag that is not in a thought; `None` if there is none or it is blank."""

    name: str

    def __post_init__(self) -> None:
        _check_name(self.name)

    def __call__(self, text: str) -> str | None:
        content = _last_tagged(_aloud(text)[0], self.name)
        return (content or "").strip() or None


@dataclass(frozen=True, slots=True)
class Boxed:
    r"""Reads what stands in the last `\boxed{…}` that is closed, not blank and not in a thought, or `None`."""

    def __call__(self, text: str) -> str | None:
        return last_boxed(_aloud(text)[0]) or None


def _aloud(text: str) -> tuple[str, bool]:
    """The text without its thoughts, and whether it ends within one."""
    parts: list[str] = []
    at, is_thinking = 0, False
    for mark in _THINK.finditer(text):
        start, end = mark.span()
        if text[start - 1] in _QUOTES and _is_quoted(text, start, end):
            continue
        if mark[1]:
            if not is_thinking:
                parts.clear()
            at, is_thinking = end, False
        elif not is_thinking:
            parts.append(text[at:start])
            is_thinking = True
    if not is_thinking:
        parts.append(text[at:])
    return "\n".join(parts), is_thinking


def _unfenced(text: str) -> str:
    """The text without its fenced code blocks; one that is not closed goes on to the end, as in Markdown."""
    return _CODE.sub("", text)


def _has_any(text: str, words: frozenset[str]) -> bool:
    """Whether one of the words stands in the text as a whole word."""
    single = [re.escape(word) for word in words if word in text and re.fullmatch(r"[^\W_]+", word)]
    return bool(single) and re.search(_WORD.format("|".join(single)), text) is not None


def _last_tagged(text: str, name: str, *, skip_quoted: bool = False) -> str | None:
    """What stands in the last such tag that is opened and closed."""
    found: str | None = None
    opening: re.Match[str] | None = None
    for mark in _tag(name).finditer(text):
        if not mark[1]:
            opening = mark
        elif opening is not None:
            if not (skip_quoted and _is_quoted(text, opening.start(), mark.end())):
                found = text[opening.end() : mark.start()]
            opening = None
    return found


def _is_quoted(text: str, start: int, end: int) -> bool:
    return start > 0 and end < len(text) and text[start - 1] in _QUOTES and text[end] in _QUOTES


@lru_cache(maxsize=256)
def _tag(name: str) -> re.Pattern[str]:
    return re.compile(rf"<(/?){re.escape(name)}\s*+>", re.IGNORECASE)


def _check_name(name: str) -> None:
    if not re.fullmatch(r"[^\W\d][\w.-]*", name):
        raise InvalidInput(f"{name!r} cannot be the name of a tag; write the name alone, such as 'verify'")


def _check_words(*sides: object) -> None:
    if any(isinstance(words, str) or not words for words in sides):
        raise InvalidInput('a verdict needs words for yes and for no, as tuples, such as yes=("yes",), no=("no",)')


def _folded(words: tuple[str, ...]) -> frozenset[str]:
    return frozenset(word.casefold() for word in words)
