"""The time that overlapping spans cover together."""

from bisect import bisect_left, bisect_right
from datetime import UTC, datetime

GAP_SECONDS = 1.0
"""Shorter gaps are closed, which bounds how many spans are kept."""


class Spans:
    """Spans in unix seconds, merged as they come."""

    def __init__(self) -> None:
        self._begins: list[float] = []
        self._ends: list[float] = []

    def add(self, begin: float, end: float) -> None:
        end = max(begin, end)
        first = bisect_left(self._ends, begin - GAP_SECONDS)
        last = bisect_right(self._begins, end + GAP_SECONDS)
        if first < last:
            begin, end = min(begin, self._begins[first]), max(end, self._ends[last - 1])
        self._begins[first:last] = [begin]
        self._ends[first:last] = [end]

    @property
    def covered(self) -> float:
        """Seconds that lie in any span."""
        return sum(self._ends) - sum(self._begins)

    @property
    def first_at(self) -> datetime | None:
        return datetime.fromtimestamp(self._begins[0], UTC) if self._begins else None

    @property
    def last_at(self) -> datetime | None:
        return datetime.fromtimestamp(self._ends[-1], UTC) if self._ends else None
