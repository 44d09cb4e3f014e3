"""What `BENCH.md` calls good, as data that `results.py` checks against the figures.

A goal counts all cases of a metric and a system. If it names only some of them, every other one is in another goal of
that metric, or in a `LeftOut` with the reason, which the results tell; `uncounted` finds those that are in neither.
A goal is not met if one of its cases did not run.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

Line = Mapping[str, Any]
UNAVAILABLE = "unavailable"
"""The metric of a case that a system could not run; such a line has the reason, and its case may be a pattern."""

SIZE = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cases:
    """Figures of one metric and system; a ratio also names the metric it is `of`, and the peer it is `against`."""

    metric: str
    case: str = "*"
    of: str | None = None
    against: str | None = None
    system: str = "outrider"

    def is_about(self, line: Line) -> bool:
        """Whether the line is a figure of this metric and system, in whatever case."""
        return (
            line["value"] is not None
            and line["system"] == self.system
            and line["metric"] == self.metric
            and line.get("of") == self.of
            and (self.against is None or line.get("against") == self.against)
        )

    def holds(self, line: Line) -> bool:
        return self.is_about(line) and fnmatchcase(line["case"], self.case)


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal(Cases):
    """A bound that all of the cases are to keep. `{ended}` in the text stands for the number in `ended=2000000`."""

    text: str
    at_least: float | None = None
    at_most: float | None = None

    def title(self, lines: Iterable[Line]) -> str:
        """The text with the sizes that were measured."""
        cases = [line["case"] for line in self.lines(lines)]

        def sizes(match: re.Match[str]) -> str:
            size = re.compile(rf"\b{match[1]}=(\d+)")
            found = sorted({int(number) for case in cases for number in size.findall(case)})
            return " and ".join(f"{number:,}" for number in found) or f"many {match[1]}"

        return SIZE.sub(sizes, self.text)

    def not_run(self, lines: Iterable[Line]) -> list[Line]:
        """The cases of this goal that its system could not run."""
        return [
            line
            for line in lines
            if line["metric"] == UNAVAILABLE and line["system"] == self.system and _overlap(line["case"], self.case)
        ]

    def lines(self, lines: Iterable[Line]) -> list[Line]:
        """The figures that count, the worst one first."""
        return sorted(filter(self.holds, lines), key=lambda line: line["value"], reverse=self.at_least is None)

    def worst(self, lines: Iterable[Line]) -> float | None:
        """The figure furthest on the wrong side, or None if nothing was measured."""
        found = self.lines(lines)
        return found[0]["value"] if found else None

    def met(self, value: float) -> bool:
        return (self.at_least is None or value >= self.at_least) and (self.at_most is None or value <= self.at_most)


@cache
def _overlap(one: str, other: str) -> bool:
    """Whether two patterns of `*` and `?` can name the same case."""
    if not one or not other:
        return not (one + other).strip("*")
    if one[0] == "*":
        return _overlap(one[1:], other) or _overlap(one, other[1:])
    if other[0] == "*":
        return _overlap(other, one)
    return (one[0] == other[0] or "?" in (one[0], other[0])) and _overlap(one[1:], other[1:])


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut(Cases):
    """Cases that no goal of their metric counts, and why."""

    reason: str


def uncounted(goals: Sequence[Goal], left_out: Sequence[LeftOut], lines: Iterable[Line]) -> list[Line]:
    """Figures of a goal's metric and system that no goal counts and that are not left out for a reason."""
    known: Sequence[Cases] = (*goals, *left_out)
    return [
        line
        for line in lines
        if any(goal.is_about(line) for goal in goals) and not any(cases.holds(line) for cases in known)
    ]
