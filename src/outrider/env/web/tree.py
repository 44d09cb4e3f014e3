"""A page's accessibility tree as a model reads it: one element a line, `[e12] link "Prices" → /prices.html`."""

import re

_LINE = re.compile(r"^(?P<indent> *)- (?P<rest>.*)$")
_ELEMENT = re.compile(r'(?P<head>[a-z]+(?: "(?:[^"\\]|\\.)*")?)(?P<marks>(?: \[[^\]"]*\])+)(?P<rest>:.*)?', re.DOTALL)
_REF = re.compile(r" \[ref=(?P<ref>\w+)\]")
_NOISE = re.compile(r" \[(?:cursor=pointer|active|ref=\w+)\]")
_URL = "/url: "


def readable(snapshot: str) -> str:
    """Playwright's snapshot, shorter: the reference in front, a link's address behind it, no marks for the mouse."""
    lines: list[str] = []
    for line in snapshot.splitlines():
        found = _LINE.match(line)
        if found is None:  # a text of several lines
            lines.append(line)
            continue
        rest = _unquoted(found["rest"])
        if rest.startswith(_URL):
            if lines:
                lines[-1] = f"{lines[-1].removesuffix(':')} → {rest.removeprefix(_URL)}"
            continue
        lines.append(found["indent"] + _with_ref_first(rest))
    return "\n".join(lines)


def _unquoted(rest: str) -> str:
    """A key that YAML had to quote, without its quotes."""
    if not rest.startswith("'"):
        return rest
    end = re.search(r"(?<!')(?:'')*'(?!')", rest[1:])
    if end is None:
        return rest
    return rest[1 : end.end()].replace("''", "'") + rest[end.end() + 1 :]


def _with_ref_first(rest: str) -> str:
    """Only marks behind the name count: what stands in it, or in the text, is the page's own."""
    found = _ELEMENT.fullmatch(rest)
    ref = _REF.search(found["marks"]) if found else None
    if found is None or ref is None:
        return rest
    return f"[{ref['ref']}] {found['head']}{_NOISE.sub('', found['marks'])}{found['rest'] or ''}"


def bounded(piece: str, start: int, total: int) -> str:
    """A piece of a text of `total` characters, from `start`: whole lines, if it is cut, and a note on what is left."""
    if len(piece) == total:
        return piece or "(the page is empty)"
    if start + len(piece) < total and "\n" in piece:
        piece = piece[: piece.rindex("\n") + 1]
    end = start + len(piece)
    more = f"; read on with start={end}" if end < total else ""
    return f"{piece.rstrip()}\n(characters {min(start, total)} to {end} of {total}{more})"
