r"""Where the answer stands in a text: in `\boxed{…}`, in `<answer>…</answer>`, after "the answer is", or at the end."""

import re
from collections import deque
from typing import NamedTuple

_BRACES = re.compile(
    r"(?P<box>\\(?:boxed|fbox)\s*+\{)(?P<simple>[^{}\\]*+\})?+"
    r"|(?P<bare>\\(?:boxed|fbox)(?![A-Za-z])\s*+)"
    r"|(?:\\(?!boxed|fbox).)++|(?P<opened>\{++)|(?P<closed>\}++)",
    re.DOTALL,
)
"""A box, with its content if that has no braces; one without braces; or a run of escapes, of opening or of closing
braces."""

_BARE_BEGINS = re.compile(
    r"[-+]?(?:\.?\d|\\[A-Za-z$]|\$\d)|[(\[]\s*+[-+.\d\\A-Z]"
    r"|[A-Za-z](?![A-Za-z])(?=\s*+(?:\$|\\[)\]]|[.,;]?+\s*+\Z))"
)
"""What a box without braces may begin with, so that prose behind the word `boxed` is none."""

_BARE_PARTS = re.compile(
    r"(?P<opened>\{)|(?P<closed>\})|(?P<word>(?<!\s)\s++[A-Za-z]{2})|(?P<end>\$|\n|\\[)\]]|\\(?:boxed|fbox))|\\.",
    re.DOTALL,
)
"""Where a box without braces may end: at the end of the formula or line, before another box, or before a word."""

_OPENING_TAG = re.compile("<answer>", re.IGNORECASE)
_CLOSING_TAG = re.compile("</answer>", re.IGNORECASE)
_PHRASE = re.compile(r"\banswer\b[\s*_]*+(?:is\b[\s*_]*+:?|[:=])[\s*_]*+(\S[^\n]*)", re.IGNORECASE)
_EMPHASIS = "*_` \t"


class Extracted(NamedTuple):
    """An answer, and whether the agent marked it with a box or a tag, so that there is no doubt where it ends."""

    text: str
    marked: bool


def extract_answer(said: str) -> Extracted:
    """The answer in `said`. Of several marks the last counts; a box beats a tag, a tag beats a phrase."""
    if boxed := last_boxed(said):
        return Extracted(boxed, marked=True)
    if tagged := _last_tagged(said):
        return Extracted(_after_phrase(tagged) or tagged, marked=True)
    return Extracted(_after_phrase(said) or _last_line(said), marked=False)


def last_boxed(said: str) -> str:
    """What stands in the last box that is closed and not empty. Braces may nest, so may boxes: the inner one counts."""
    first = min((place for place in (said.find("\\boxed"), said.find("\\fbox")) if place >= 0), default=len(said))
    last, content = -1, ""
    depth = 0
    boxes: list[tuple[int, int]] = []
    """Where each open box begins, and how many braces are open around it."""
    for mark in _BRACES.finditer(said, first):
        match mark.lastgroup:
            case "simple" | "bare" as kind:
                if inside := mark["simple"][:-1].strip() if kind == "simple" else _bare(said, mark.end()):
                    last, content = mark.end(), inside
            case "box":
                boxes.append((mark.end(), depth))
                depth += 1
            case "opened":
                depth += mark.end() - mark.start()
            case "closed":
                left = max(depth - (mark.end() - mark.start()), 0)
                while boxes and boxes[-1][1] >= left:
                    start, outside = boxes.pop()
                    end = mark.start() + depth - outside - 1
                    if start > last and (inside := said[start:end].strip()):
                        last, content = start, inside
                depth = left
    return content


def _bare(said: str, start: int) -> str:
    r"""What a box without braces has from `start` on, such as `2` or `\frac{1}{2}`; empty if it is only the word."""
    if _BARE_BEGINS.match(said, start) is None:
        return ""
    depth, end = 0, len(said)
    for mark in _BARE_PARTS.finditer(said, start):
        match mark.lastgroup:
            case "opened":
                depth += 1
            case "closed" if depth:
                depth -= 1
            case "closed" | "end":
                end = mark.start()
                break
            case "word" if not depth:
                end = mark.start()
                break
    return "" if depth else said[start:end].strip().rstrip(".,;:")


def _last_tagged(said: str) -> str:
    """What stands after the last `<answer>`; its end may be missing, as it is when it was a stop word."""
    if "<" not in said or not (last := deque(_OPENING_TAG.finditer(said), maxlen=1)):
        return ""
    start = last[0].end()
    end = _CLOSING_TAG.search(said, start)
    return said[start : end.start() if end else None].strip()


def _after_phrase(said: str) -> str:
    last = deque(_PHRASE.finditer(said), maxlen=1)
    return _trimmed(last[0].group(1)) if last else ""


def _last_line(said: str) -> str:
    return _trimmed(said.strip().rpartition("\n")[2])


def _trimmed(text: str) -> str:
    """Without the marks of emphasis around it and the full stop after it."""
    text = text.strip(_EMPHASIS)
    if text.endswith(".") and not text.endswith(".."):
        text = text[:-1].rstrip(_EMPHASIS)
    return text
