"""The lines of a run, by case, system and metric."""

from collections.abc import Iterable, Iterator, Sequence

from goals import Line
from report import readable


class Found:
    """Figures that may be missing: a short round does not measure all."""

    def __init__(self, lines: Iterable[Line]) -> None:
        self._values: dict[tuple[str, str, str], float] = {}
        self._ratios: dict[tuple[str, str, str, str], float] = {}
        for line in lines:
            if line["metric"] == "ratio":
                self._ratios[line["case"], line["of"], line["system"], line["against"]] = line["value"]
            elif line["value"] is not None:
                self._values[line["case"], line["system"], line["metric"]] = line["value"]

    def value(self, case: str, system: str, metric: str) -> float | None:
        return self._values.get((case, system, metric))

    def quotient(self, case: str, metric: str, system: str, by: str) -> float | None:
        """How many times as large it is for `system` as for `by`: round by round, if they took turns."""
        taken = self._ratios.get((case, metric, by, system))
        if taken:
            return 1 / taken
        over, under = self.value(case, system, metric), self.value(case, by, metric)
        return over / under if over is not None and under else None

    def cases(self, *beginnings: str, metric: str = "wall_seconds") -> list[str]:
        return list(
            dict.fromkeys(case for case, _, name in self._values if name == metric and case.startswith(beginnings))
        )

    def systems(self, case: str, metric: str = "wall_seconds") -> list[str]:
        return [system for name, system, found in self._values if (name, found) == (case, metric)]


def shown(value: float | None, form: str = "") -> str:
    if value is None:
        return ""
    return format(value, form) if form else readable(value)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield "|---" * len(head) + "|"
    for row in rows:
        yield f"| {' | '.join(row)} |"
