"""Runs the long tests and writes what they did to `bench/RESULTS.md`: `make soak`.

Arguments are passed on to pytest; with some of them only a part is run, which is printed and not written.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree as ET

from report import readable
from results import RESULTS, TITLE, commit, facts, replace_section

ROOT = Path(__file__).parent.parent
PYTEST = (sys.executable, "-m", "pytest", "-m", "soak", "-n", "2", "--timeout", "1800")
METHOD = (
    "Every run ends in the checker of `outrider.testing.history`, which compares all calls on the store, as their "
    "callers saw them, with what every engine promises. A death is a SIGKILL; a seed is one schedule of a whole system."
)

Notes = Mapping[str, Counter[str]]


def notes_of(text: str) -> Notes:
    """What the tests counted, by what they are about."""
    notes: dict[str, Counter[str]] = defaultdict(Counter)
    for line in text.splitlines():
        counts = json.loads(line)
        notes[counts.pop("what")].update({"runs": 1, **counts})
    return notes


def section(notes: Notes, outcome: str, seconds: float, how: str, when: datetime) -> str:
    names = ["runs", *sorted({name for counts in notes.values() for name in counts} - {"runs"})]
    rows = [
        [what, *(readable(counts[name]) if counts[name] else "" for name in names)] for what, counts in notes.items()
    ]
    parts = [
        "## SOAK",
        *facts(how, when),
        "",
        METHOD,
        "",
        f"{outcome} in {seconds / 60:.0f} minutes.",
        "",
        f"| | {' | '.join(name.replace('_', ' ') for name in names)} |",
        "|---" * (len(names) + 1) + "|",
        *(f"| {' | '.join(row)} |" for row in rows),
    ]
    return "\n".join(parts) + "\n"


def outcome_of(junit: Path) -> str:
    suite = ET.parse(junit).getroot().find("testsuite")
    assert suite is not None
    n_bad = sum(int(suite.get(name, 0)) for name in ("failures", "errors", "skipped"))
    return f"{int(suite.get('tests', 0)):,} tests, {n_bad} of them failed,"


def main(arguments: Sequence[str]) -> int:
    with tempfile.TemporaryDirectory(prefix="outrider-soak-") as folder:
        notes, junit = Path(folder, "notes"), Path(folder, "junit.xml")
        notes.touch()
        began = time.monotonic()
        command = [*PYTEST, f"--junitxml={junit}", *arguments]
        done = subprocess.run(command, cwd=ROOT, env={**os.environ, "OUTRIDER_SOAK_NOTES": str(notes)}, check=False)
        if not junit.exists():
            return done.returncode
        how = f"make soak at commit {commit()}"
        when, seconds = datetime.now(UTC), time.monotonic() - began
        new = section(notes_of(notes.read_text()), outcome_of(junit), seconds, how, when)
    print(new)
    if not arguments:
        text = RESULTS.read_text() if RESULTS.exists() else TITLE
        RESULTS.write_text(replace_section(text, "soak", new))
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
