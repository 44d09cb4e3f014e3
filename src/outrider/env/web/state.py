"""What a page shows, and what is new about it."""

from collections.abc import Sequence

from msgspec import Struct

_MAX_LINES = 6


class PageState(Struct, frozen=True, kw_only=True):
    """Where a page is and what it shows: its lines of text, and its fields with their values."""

    url: str = ""
    title: str = ""
    lines: Sequence[str] = ()
    loading: bool = False


def changes(before: PageState, after: PageState) -> list[str]:
    """What to tell beside the address: a new page is to be read; of an old one, the new lines are told."""
    if before.url.partition("#")[0] != after.url.partition("#")[0]:
        return ["this is a new page"]
    known = set(before.lines)
    new = [line for line in dict.fromkeys(after.lines) if line not in known]
    if not new:
        gone = known.difference(after.lines)
        return [f"{len(gone)} lines are gone"] if gone else ["nothing on it has changed"]
    more = [f"and {len(new) - _MAX_LINES} more lines"] if len(new) > _MAX_LINES else []
    return ["new on it:", *(f"  {line}" for line in new[:_MAX_LINES]), *more]
