"""What a team has said about a sample: entries, who may see them, and which of them fit into a budget of tokens.

- Entries are only added. Text is joined when it is read, and an entry is shown whole or not at all.
- A view depends on the entries and on what was asked, never on other views.
- An eviction is an order in which entries go. They go one by one until the rest fits; none comes back to fill a gap.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import takewhile
from typing import assert_never

SEPARATOR = "\n\n"
"""What stands between two entries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What an agent said in one call. `visible_to` names others who may see it; `None` stands for everybody.

    `round` counts from 0, though readers see it counted from 1. `n_tokens` counts the text alone, `ids` are its tokens
    where they are known.
    """

    author: str
    round: int
    text: str
    n_tokens: int
    call_id: str
    visible_to: frozenset[str] | None = None
    ids: tuple[int, ...] | None = None

    @property
    def heading(self) -> str:
        return f"[{self.author}, round {self.round + 1}]\n"


class Eviction(StrEnum):
    """Which entries go first when not all fit."""

    OLDEST = "oldest"
    """The oldest."""

    LONGEST = "longest"
    """The one of most tokens; among equals the older."""

    NEWEST_OF_AUTHOR = "newest_of_author"
    """The oldest of those that their author has followed up; once each author has but one, the oldest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What one reader sees: `entries` and `dropped` both in the order in which they were added."""

    entries: tuple[Entry, ...]
    dropped: tuple[Entry, ...]
    n_tokens: int

    @property
    def parts(self) -> tuple[str, ...]:
        """What is read, not yet joined: the texts are those of the entries, not copies."""
        parts = [part for entry in self.entries for part in (SEPARATOR, entry.heading, entry.text)]
        return tuple(parts[1:])

    @property
    def text(self) -> str:
        return "".join(self.parts)


class TeamContext:
    """The entries of one sample, in the order in which they were added."""

    __slots__ = ("_entries",)

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self._entries = list(entries)

    def append(self, entry: Entry) -> None:
        self._entries.append(entry)

    def extend(self, entries: Iterable[Entry]) -> None:
        self._entries.extend(entries)

    def copy(self) -> "TeamContext":
        """The same entries; what is added to one from now on does not show in the other."""
        return TeamContext(self._entries)

    def since(self, other: "TeamContext") -> tuple[Entry, ...]:
        """What was added here since one of the two was copied from the other, whatever was added there."""
        pairs = zip(self, other, strict=False)
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] is pair[1], pairs))
        return tuple(self._entries[shared:])

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries)

    def visible(self, reader: str, *, reads: Collection[str] | None = None) -> tuple[Entry, ...]:
        """What `reader` may see of the authors it reads, `None` for all. Its own it may always see."""
        return tuple(
            entry
            for entry in self._entries
            if (reads is None or entry.author in reads)
            and (entry.visible_to is None or reader in entry.visible_to or reader == entry.author)
        )

    def view(
        self,
        reader: str,
        *,
        reads: Collection[str] | None = None,
        budget: int | None = None,
        eviction: Eviction = Eviction.OLDEST,
        count: Callable[[str], int],
    ) -> View:
        """What `reader` sees within `budget` tokens, headings and separators included.

        Texts are counted once, when they are said: `n_tokens` is taken at its word, and `count` is asked for headings
        and the separator alone. What must fit is the sum, which no tokenizer exceeds that needs at most as many tokens
        for a whole as for its parts.
        """
        seen = self.visible(reader, reads=reads)
        between = count(SEPARATOR)
        sizes = [between + count(entry.heading) + entry.n_tokens for entry in seen]
        n_tokens = sum(sizes)
        gone: set[int] = set()
        if budget is not None:
            for index in _order(eviction, seen):
                if n_tokens - between <= budget:
                    break
                gone.add(index)
                n_tokens -= sizes[index]
        entries = tuple(entry for index, entry in enumerate(seen) if index not in gone)
        return View(
            entries=entries,
            dropped=tuple(seen[index] for index in sorted(gone)),
            n_tokens=n_tokens - between if entries else 0,
        )


def _order(eviction: Eviction, entries: tuple[Entry, ...]) -> list[int]:
    """The places of all entries, in the order in which they go."""
    places = list(range(len(entries)))
    match eviction:
        case Eviction.OLDEST:
            return places
        case Eviction.LONGEST:
            return sorted(places, key=lambda place: -entries[place].n_tokens)
        case Eviction.NEWEST_OF_AUTHOR:
            newest = {entry.author: place for place, entry in enumerate(entries)}
            return sorted(places, key=lambda place: newest[entries[place].author] == place)
        case _:
            assert_never(eviction)
