"""What `BENCH.md` calls good, as data that `results.py` checks against the figures."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

Line = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """A bound for one metric in all cases that fit the pattern; a ratio also names the metric it is `of`.

    `against` picks the ratios against one peer, as their lines name it.
    """

    text: str
    case: str
    metric: str
    of: str | None = None
    against: str | None = None
    system: str = "outrider"
    at_least: float | None = None
    at_most: float | None = None

    def figures(self, lines: Iterable[Line]) -> list[float]:
        return [line["value"] for line in lines if line["value"] is not None and self._fits(line)]

    def worst(self, lines: Iterable[Line]) -> float | None:
        """The figure furthest on the wrong side, or None if nothing was measured."""
        figures = self.figures(lines)
        if not figures:
            return None
        return max(figures) if self.at_least is None else min(figures)

    def met(self, value: float) -> bool:
        return (self.at_least is None or value >= self.at_least) and (self.at_most is None or value <= self.at_most)

    def _fits(self, line: Line) -> bool:
        return (
            line["system"] == self.system
            and line["metric"] == self.metric
            and line.get("of") == self.of
            and (self.against is None or line.get("against") == self.against)
            and fnmatchcase(line["case"], self.case)
        )
