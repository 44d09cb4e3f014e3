"""The section of SCHED in the results: a table for each workload, the frontier, and what the scheduler costs."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from goals import Goal, Line
from report import readable
from scheduling.cells import US

PICTURE = "sched.svg"

COLUMNS = {
    "trajectories_per_second": "traj/s",
    "pct_of_bound": "% of X*",
    "pct_of_bound_least": "least",
    "pct_of_bound_most": "most",
    "good": "good",
    "met": "met",
    "staleness_mean": "staleness mean",
    "staleness_max": "max",
    "token_staleness_mean": "per token mean",
    "token_staleness_max": "max",
    "trainer_idle_pct": "trainer idle %",
    "waste_pct": "waste %",
    "filtered_pct": "filtered %",
    "length_bias": "length bias",
    "get_batch_p50_seconds": "get_batch p50 s",
    "get_batch_p99_seconds": "p99 s",
    "steps_done": "steps",
    "deadlocks": "deadlocks",
}
FRONTIER = (
    "pct_of_bound",
    "staleness_mean",
    "staleness_max",
    "token_staleness_mean",
    "token_staleness_max",
    "length_bias",
    "waste_pct",
)
COMPARED = ("staleness_mean", "staleness_max", "length_bias", "waste_pct")
METHOD = (
    "Each row is the mean over the seeds of its runs, with the least and the most of them beside the rate; "
    "staleness is over all trajectories of all of them, its maximum that of any run. Every rule sees the same "
    "trajectories for the same seed, and a member that is run again takes as long as the first time: only its faults "
    "are drawn anew. `model of …` is a rule of that project written by us into the same simulated "
    "world, without any overhead of its own; the rows of `outrider` are its own scheduler and store. `max` is the "
    "hard maximum of the staleness that a rule keeps; ROLL 36x8 and 32x(8+1) have 288 slots, all others 256. AReaL "
    "admits groups by a sum over all of them, which bounds the mean and no trajectory; `by groups` holds the slots of "
    "a group until its last member ends. prime-rl keeps all slots busy and drops groups that have become too old: read "
    "its rows with their length bias and waste. Waste is the model's work that nobody trains on, without what the "
    "filter drops. On filter the model of ROLL is faster than ROLL's own queue was seen to be, for a reason that is "
    "not known. Exceptions are retried in all models, though ROLL ends its run at the first one. A run that comes "
    "to a standstill counts as a rate of 0. X* is what is expected of a workload, its own faults and what its filter "
    "drops counted, so a lucky run may come out above it. In faults every tenth step resets take five times as "
    "long: how long such a burst is, is our choice."
)
COMPARED_TEXT = (
    "Only rows of the same hard maximum, or of mean staleness that differs by 0.1 at most where ours keeps the hard "
    "maximum of the other, if it has one. What a rate is bought with, bias or waste, stands beside it."
)

COST = """
Real time, with the modelled seconds at a hundredth. `us_per_event` is the processor time, for each turn, of the
scheduler's own tasks and all they call, the store included; Python's garbage collector is told by itself, since it
looks through all that is live, the model's part too."""

Row = dict[str, float]


def tables(lines: Sequence[Line], goals: Sequence[Goal]) -> list[str]:
    """The whole section below the goals."""
    rows = _rows(lines)
    workloads = list(dict.fromkeys(case.partition(" max=")[0] for case, _ in rows))
    parts = ["", f"![Throughput against staleness]({PICTURE})"]
    parts += [
        f"\nThe first seed was {line['value']:.0f}, drawn when the run began; `--seed {line['value']:.0f}` repeats it."
        for line in lines
        if line["metric"] == "first_seed"
    ]
    for workload in workloads:
        found = {key: row for key, row in rows.items() if key[0].startswith(f"{workload} max=")}
        parts += _workload(workload, found, lines, goals)
    parts += _compared(lines, rows)
    parts += _frontier(heavy_rows(lines))
    parts += _cost(lines)
    return parts


def heavy_rows(lines: Iterable[Line]) -> dict[tuple[str, str], Row]:
    """The figures on the heavy workload, by case and system, least stale first."""
    rows = {key: row for key, row in _rows(lines).items() if key[0].startswith("heavy max=") and not row["deadlocks"]}
    return dict(sorted(rows.items(), key=lambda item: item[1]["staleness_mean"]))


def _rows(lines: Iterable[Line]) -> dict[tuple[str, str], Row]:
    rows: dict[tuple[str, str], Row] = defaultdict(dict)
    for line in lines:
        if " max=" in line["case"] and line["metric"] in COLUMNS:
            rows[line["case"], line["system"]][line["metric"]] = line["value"]
    return rows


def _workload(
    workload: str, rows: Mapping[tuple[str, str], Row], lines: Sequence[Line], goals: Sequence[Goal]
) -> list[str]:
    known = [name for name in COLUMNS if name in ("good", "met") or any(name in row for row in rows.values())]
    bounds = {line["metric"]: line["value"] for line in lines if line["case"] == workload}
    parts = ["", f"### {workload}", ""]
    if "bound_rate" in bounds:
        named = ", ".join(f"{name} {bounds[f'bound_{name}']:.2f}" for name in ("slots", "engine", "trainer"))
        parts += [f"X* = {bounds['bound_rate']:.2f} trajectories a second ({named}).", ""]
    parts += _head(["case", "system", *(COLUMNS[name] for name in known)])
    for (case, system), row in sorted(rows.items(), key=_ours_first):
        cells = {name: _cell(name, value) for name, value in row.items()}
        goal = next((one for one in goals if system == US and one.metric == "pct_of_bound" and one.case == case), None)
        if goal is not None:
            cells["good"] = f"≥ {goal.at_least:g}"
            cells["met"] = "yes" if goal.met(row["pct_of_bound"]) else "**no**"
        parts.append(f"| {case} | {system} | {' | '.join(cells.get(name, '') for name in known)} |")
    return parts


def _ours_first(item: tuple[tuple[str, str], Row]) -> tuple[bool, str, str]:
    (case, system), _ = item
    return system != US, system, case


def _compared(lines: Sequence[Line], rows: Mapping[tuple[str, str], Row]) -> list[str]:
    """Ours beside each other row that it may be compared with."""
    parts = ["", "### How many times their throughput ours is", "", COMPARED_TEXT, ""]
    names = ["staleness mean", "max", "length bias", "waste %"]
    parts += _head(["ours", *names, "against", *names, "ratio"])
    keys = {f"{system} {case}": (case, system) for case, system in rows}
    for line in lines:
        if line["metric"] == "ratio":
            ours, theirs = rows[line["case"], line["system"]], rows[keys[line["against"]]]
            cells = [[_cell(name, row[name]) for name in COMPARED] for row in (ours, theirs)]
            told = [line["case"], *cells[0], line["against"], *cells[1], f"{line['value']:.2f}"]
            parts.append(f"| {' | '.join(told)} |")
    return parts


def _frontier(rows: Mapping[tuple[str, str], Row]) -> list[str]:
    """Every rule and setting on the heavy workload."""
    parts = ["", "### Frontier: throughput against staleness (heavy)", ""]
    parts += _head(["case", "system", *(COLUMNS[name] for name in FRONTIER)])
    for (case, system), row in rows.items():
        parts.append(f"| {case} | {system} | {' | '.join(_cell(name, row[name]) for name in FRONTIER)} |")
    return parts


def _cost(lines: Sequence[Line]) -> list[str]:
    found = [line for line in lines if " live=" in line["case"]]
    if not found:
        return []
    parts = ["", "### What the scheduler costs", COST, ""]
    parts += _head(["case", "metric", "value", "unit"])
    parts += [f"| {line['case']} | {line['metric']} | {readable(line['value'])} | {line['unit']} |" for line in found]
    return parts


def _head(names: Sequence[str]) -> list[str]:
    return [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]


def _cell(name: str, value: float) -> str:
    if name in ("staleness_max", "token_staleness_max", "steps_done", "deadlocks"):
        return f"{value:.0f}"
    if name.endswith("_pct") or name.startswith("pct_"):
        return f"{value:.1f}"
    return f"{value:.2f}"
