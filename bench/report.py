"""What a benchmark has measured: samples by case, system and metric, told as JSON lines or as a table.

`add` the same figure once per round; its value is the median of the rounds. `ratio` compares round by round, so that
both sides of a quotient were taken side by side. `publish` prints what is new; nothing is written anywhere else.
"""

import argparse
import json
import secrets
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TextIO

from rich.console import Console
from rich.table import Table

from goals import UNAVAILABLE

N_SEEDS = 1_000_000
"""As many as a figure tells apart."""


@dataclass(frozen=True, slots=True)
class Key:
    """What a sample is a sample of."""

    case: str
    system: str
    metric: str


class Report:
    """The figures of one benchmark. Progress and warnings go to standard error."""

    def __init__(self, bench: str, *, as_json: bool = False, out: TextIO = sys.stdout, seed: int = 0) -> None:
        self.bench = bench
        self.seed = seed
        """The first of the seeds of a benchmark that draws its work at random."""
        self.tells_spread = False
        """Whether lines of several samples carry the least and the most of them."""
        self._as_json = as_json
        self._out = out
        self._began = time.monotonic()
        self._samples: dict[Key, list[float]] = defaultdict(list)
        self._units: dict[Key, str] = {}
        self._lines: list[dict[str, Any]] = []
        self._pending: list[Callable[[], list[dict[str, Any]]]] = []

    @property
    def lines(self) -> list[dict[str, Any]]:
        """What was published so far."""
        return list(self._lines)

    def add(self, case: str, system: str, metric: str, value: float, unit: str) -> None:
        """One sample; the value told in the end is the median of all samples of this case, system and metric."""
        key = Key(case, system, metric)
        if key not in self._samples:
            self._units[key] = unit
            self._pending.append(lambda: [self._line(key, self.value(case, system, metric), unit, **self._spread(key))])
        self._samples[key].append(value)

    def value(self, case: str, system: str, metric: str) -> float:
        """The median so far."""
        return statistics.median(self._samples[Key(case, system, metric)])

    def ratio(self, case: str, metric: str, *, of: str, against: str, against_case: str | None = None) -> None:
        """How many times as large `metric` is for `of` as for `against`; nothing if one side was not measured."""
        ours, theirs = Key(case, of, metric), Key(against_case or case, against, metric)

        def lines() -> list[dict[str, Any]]:
            value = self._quotient(ours, theirs)
            if value is None:
                return []
            name = against if against_case is None else f"{against} {against_case}"
            return [self._line(Key(case, of, "ratio"), value, "x", against=name, of=metric)]

        self._pending.append(lines)

    def quotients(self, case: str, metric: str, *, of: str, against: str) -> list[float]:
        """Round by round, how many times as large `metric` is for `of` as for `against`."""
        mine, other = (self._samples.get(Key(case, system, metric), []) for system in (of, against))
        return [a / b for a, b in zip(mine, other, strict=True)]

    def missing(self, case: str, system: str, reason: str) -> None:
        """A system that could not run a case, or those of a pattern, and why: the goals about them are not met."""
        self.say(f"{system}: {reason}")
        self._pending.append(lambda: [self._line(Key(case, system, UNAVAILABLE), None, "", reason=reason)])

    def note(self, case: str, system: str, metric: str, text: str) -> None:
        """What was seen where there is no figure."""
        self._pending.append(lambda: [self._line(Key(case, system, metric), None, "", reason=text)])

    def publish(self) -> None:
        """Print what was added since the last time."""
        pending, self._pending = self._pending, []
        lines = [line for make in pending for line in make()]
        self._lines += lines
        if self._as_json:
            for line in lines:
                print(json.dumps(line), file=self._out, flush=True)
        elif lines:
            self._print_table(lines)

    def say(self, text: str) -> None:
        print(f"bench {self.bench} {time.monotonic() - self._began:5.0f} s: {text}", file=sys.stderr, flush=True)

    def _quotient(self, ours: Key, theirs: Key) -> float | None:
        mine, other = self._samples.get(ours, []), self._samples.get(theirs, [])
        if not mine or not other:
            return None
        if len(mine) != len(other):  # not taken in rounds
            return statistics.median(mine) / statistics.median(other)
        return statistics.median(a / b for a, b in zip(mine, other, strict=True))

    def _spread(self, key: Key) -> dict[str, float]:
        samples = self._samples[key]
        if not self.tells_spread or len(samples) == 1:
            return {}
        return {"least": float(f"{min(samples):.6g}"), "most": float(f"{max(samples):.6g}")}

    def _line(self, key: Key, value: float | None, unit: str, **more: Any) -> dict[str, Any]:
        line = {"bench": self.bench, "case": key.case, "system": key.system, "metric": key.metric}
        return line | {"value": value if value is None else float(f"{value:.6g}"), "unit": unit} | more

    def _print_table(self, lines: list[dict[str, Any]]) -> None:
        table = Table("case", "system", "metric", "value", "unit", "against")
        for line in lines:
            value = line.get("reason", "") if line["value"] is None else readable(line["value"])
            against = f"{line['of']} of {line['against']}" if "against" in line else ""
            table.add_row(line["case"], line["system"], line["metric"], value, line["unit"], against)
        Console(file=self._out, width=None if self._out.isatty() else 160).print(table)


def readable(value: float) -> str:
    """A figure with three significant digits, and no exponent."""
    if value == 0:
        return "0"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{Decimal(f'{value:.3g}'):f}"


def main(bench: str, run: Callable[[Report, bool], None], argv: list[str], *, draws: bool = False) -> int:
    """The command line of one benchmark. One that `draws` its work at random gets a new seed in every run."""
    parser = argparse.ArgumentParser(prog=f"outrider bench {bench}")
    parser.add_argument("--json", action="store_true", help="one JSON object a line instead of tables")
    parser.add_argument("--quick", action="store_true", help="a short round with small sizes")
    if draws:
        text = "the first seed, to repeat a run that printed it; drawn anew by default"
        parser.add_argument("--seed", type=int, default=secrets.randbelow(N_SEEDS), help=text)
    options = parser.parse_args(argv)
    report = Report(bench, as_json=options.json, seed=options.seed if draws else 0)
    if draws:
        report.say(f"seed {report.seed}; repeat this run with --seed {report.seed}")
    try:
        run(report, options.quick)
    finally:
        report.publish()
    return 0
