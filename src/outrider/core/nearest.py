"""The names most like one that was typed."""

from collections.abc import Iterable
from difflib import SequenceMatcher, get_close_matches

LIKE = 0.6


def nearest(typed: str, names: Iterable[str], n: int = 1, *, cutoff: float = LIKE) -> list[str]:
    """At most `n` of the names, the most like first. One with the same letters in another order is the likeliest."""
    found = get_close_matches(typed, list(names), n=max(n, 5), cutoff=cutoff)

    def likeness(name: str) -> tuple[float, float]:
        return _shared(typed, name), SequenceMatcher(None, name, typed).ratio()

    return sorted(found, key=likeness, reverse=True)[:n]


def _shared(typed: str, name: str) -> float:
    """The share of letters that both have, wherever they stand: 1 for letters that changed places."""
    left = list(name)
    n_shared = 0
    for letter in typed:
        if letter in left:
            left.remove(letter)
            n_shared += 1
    return n_shared / max(len(typed), len(name), 1)
