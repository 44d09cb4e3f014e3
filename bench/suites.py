"""Runs the tests that `make test` leaves out, and writes what they did to `bench/RESULTS.md`.

It is what `make soak` and `make strangers` run. `OUTRIDER_SOAK_MINUTES` says about how long the soak lasts, on two
cores. Further arguments are passed on to pytest; with some of them only a part is run, which is printed and not
written. Nor is a run in which a test failed: its figures would be taken for those of a sound commit.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree as ET

from measured import changes, commit
from report import readable
from results import RESULTS, TITLE, facts, replace_section

ROOT = Path(__file__).parent.parent
MINUTES, DEFAULT_MINUTES = "OUTRIDER_SOAK_MINUTES", "30"
PYTEST = (sys.executable, "-m", "pytest", "--durations", "20", "-v")
NO_TESTS = 5
"""How pytest ends if there is none to run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """Tests that are run one call of pytest after the other, and what their section says of them."""

    calls: Sequence[Sequence[str]]
    method: str


SUITES = {
    "soak": Suite(
        calls=(
            ("-m", "(soak or hypothesis) and not alone", "-n", "2", "--dist", "worksteal", "--timeout", "900"),
            ("-m", "soak and alone", "-n", "0", "--timeout", "900"),
        ),
        method="Runs on a store end in the checker of `outrider.testing.history`, which compares all calls, as their "
        "callers saw them, with what every engine promises. A death is a SIGKILL; a seed is one schedule of a whole "
        "system.",
    ),
    "strangers": Suite(
        calls=(("-m", "strangers", "-n", "2"),),
        method="Model servers of others, in the newest versions of the package index, each in an environment of its "
        "own: preflight, runs, wrong models, keys and fields.",
    ),
}


@dataclass(slots=True)
class Note:
    """What the tests of one thing counted, and the versions that they ran with."""

    counts: Counter[str] = field(default_factory=Counter)
    versions: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of all tests. Those that were skipped count as bad: the machine of the results must skip none."""

    n_tests: int
    n_bad: int

    @property
    def is_green(self) -> bool:
        return self.n_tests > 0 and self.n_bad == 0

    def __str__(self) -> str:
        return f"{self.n_tests:,} tests, {'all passed' if self.is_green else f'**{self.n_bad} of them failed**'}."


def notes_of(text: str) -> dict[str, Note]:
    """By what the tests are about."""
    notes: dict[str, Note] = defaultdict(Note)
    for line in text.splitlines():
        said = json.loads(line)
        note = notes[said.pop("what")]
        note.versions |= said.pop("versions", {})
        note.counts.update({"runs": 1, **said})
    return dict(sorted(notes.items()))


def section(name: str, notes: Mapping[str, Note], outcome: Outcome, how: str, when: datetime) -> str:
    names = ["runs", *sorted({name for note in notes.values() for name in note.counts} - {"runs"})]
    rows = [
        [what, *(readable(note.counts[name]) if note.counts[name] else "" for name in names)]
        for what, note in notes.items()
    ]
    if any(note.versions for note in notes.values()):
        names.append("versions")
        for row, note in zip(rows, notes.values(), strict=True):
            row.append(", ".join(f"{package} {version}" for package, version in note.versions.items()))
    parts = [
        f"## {name.upper()}",
        *facts(how, when),
        "",
        SUITES[name].method,
        "",
        str(outcome),
        "",
        f"| | {' | '.join(name.replace('_', ' ') for name in names)} |",
        "|---" * (len(names) + 1) + "|",
        *(f"| {' | '.join(row)} |" for row in rows),
    ]
    return "\n".join(parts) + "\n"


def outcome_of(reports: Sequence[Path]) -> Outcome:
    """What the JUnit reports of the calls say."""
    suites = [ET.parse(report).getroot().find("testsuite") for report in reports]
    counts = [
        (int(suite.get("tests", 0)), sum(int(suite.get(name, 0)) for name in ("failures", "errors", "skipped")))
        for suite in suites
        if suite is not None
    ]
    return Outcome(n_tests=sum(n for n, _ in counts), n_bad=sum(n_bad for _, n_bad in counts))


def main(name: str, *arguments: str) -> int:
    if not arguments and (changed := changes()):
        print(f"only a commit is published; commit first. Changed: {', '.join(changed)}", file=sys.stderr)
        return 2
    began, at, codes, reports = time.monotonic(), commit(), [], []
    with tempfile.TemporaryDirectory(prefix=f"outrider-{name}-") as folder:
        notes = Path(folder, "notes")
        notes.touch()
        environment = {MINUTES: DEFAULT_MINUTES, **os.environ, f"OUTRIDER_{name.upper()}_NOTES": str(notes)}
        for number, call in enumerate(SUITES[name].calls):
            report = Path(folder, f"junit-{number}.xml")
            command = [*PYTEST, *call, f"--junitxml={report}", *arguments]
            codes.append(subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode)
            if report.exists():
                reports.append(report)
        outcome = outcome_of(reports)
        how = f"make {name} at commit {at}, in {(time.monotonic() - began) / 60:.0f} minutes"
        new = section(name, notes_of(notes.read_text()), outcome, how, datetime.now(UTC))
    print(new)
    if not outcome.is_green or not {*codes} <= {0, NO_TESTS}:
        print(f"not all is green: {RESULTS.name} is left as it was", file=sys.stderr)
        return 1
    if commit() != at:
        print(f"files were changed meanwhile: {RESULTS.name} is left as it was", file=sys.stderr)
        return 2
    if not arguments:
        text = RESULTS.read_text() if RESULTS.exists() else TITLE
        RESULTS.write_text(replace_section(text, name, new))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
