# ruff: noqa: A005 a benchmark is called by the name of its file
"""SCHED: the scheduler against other rules in one simulated world, and what it costs itself.

The world (environments, engine, trainer) is modelled and runs on virtual time; our side is the real scheduler on a
real store. See `scheduling/`.
"""

import asyncio
import itertools
import logging
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from multiprocessing import get_context

from goals import Goal, LeftOut, Line
from report import Report, main
from scheduling.cells import N_STEPS, PEERS, PLAIN, US, Cell, figures_of_cell
from scheduling.figures import WARM_UP, Figures, mean, quantile
from scheduling.overhead import overhead
from scheduling.picture import picture
from scheduling.tables import METHOD, PICTURE, heavy_rows
from scheduling.tables import tables as tables_of
from scheduling.workload import WORKLOADS, bound

__all__ = ["GOOD", "LEFT_OUT", "METHOD", "pictures", "run", "tables"]

LIMITS = (1, 2, 3, 5, None)
FRONTIER = (
    (2, 1.0),
    (3, 1.0),
    (5, 1.0),
    (5, 2.0),
    *((None, ahead) for ahead in (0.1, 0.25, 0.5, 1.0, 1.25)),
)
"""Further settings of ours on the heavy workload: the hard maximum, and how many batches ahead."""

BEYOND_HEAVY = (
    "model of batch barrier",
    "model of ROLL 32x8",
    "model of AReaL eta=1",
    "model of AReaL eta=2",
    "model of prime-rl",
    PLAIN,
)
MEAN_LIMIT = 1.5
EQUAL_MEAN = 0.1
"""Rows are compared if their hard maximum is the same, or their means differ by no more and ours keeps theirs too."""

WITH_COLLECTOR = "us_per_event_with_collector"

FLOORS = {1: 40.0, 2: 53.0, 3: 65.0, 5: 88.0, None: 97.0}
GOOD = (
    *(
        Goal(
            text=f"≥ {floor:g} % of X* on heavy, {'without a hard maximum' if limit is None else f'at most {limit}'}",
            case=Cell(system=US, workload="heavy", limit=limit).case,
            metric="pct_of_bound",
            at_least=floor,
        )
        for limit, floor in FLOORS.items()
    ),
    Goal(text=f"≥ 60 % at mean ≤ {MEAN_LIMIT:g}", metric="best_pct_of_bound", at_least=60.0),
    Goal(
        text="at most a point of X* behind the plain rule at the same hard maximum",
        metric="points_behind_plain",
        at_most=1.0,
    ),
    Goal(text="hard maximum kept in every run", metric="staleness_over_max", at_most=0.0),
    Goal(text="length bias within 1 ± 0.02", metric="length_bias_from_1", at_most=0.02),
    Goal(text="waste ≤ 3 %", metric="waste_pct", at_most=3.0),
    Goal(text="no deadlock ever", metric="deadlocks", at_most=0.0),
    Goal(text="faults cost ≤ 3 points, each of its own X*", metric="points_lost_of_own_bound", at_most=3.0),
    Goal(text="< 50 µs of the scheduler's own for each turn", metric="us_per_event", at_most=50.0),
    Goal(text="the same with its part of the garbage collection", metric=WITH_COLLECTOR, at_most=50.0),
)
LEFT_OUT = (
    LeftOut(
        case="heavy max=* ahead=*",
        metric="pct_of_bound",
        reason="not what the configuration advises, but points of the frontier",
    ),
    LeftOut(
        case="[!h]*",
        metric="pct_of_bound",
        reason="no floor is known for these workloads; judged beside the plain rule",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much is run: how many seeds for each workload, from `first_seed` on; a workload without any is left out."""

    seeds: Mapping[str, int]
    peer_seeds: Mapping[str, int]
    frontier_seeds: int
    first_seed: int = 0
    limits: Sequence[int | None] = LIMITS
    n_steps: int = N_STEPS
    warm_up: int = WARM_UP
    n_live: int = 10_000
    live_steps: int = 3
    n_processes: int = 2


FULL = Sizes(
    seeds=dict.fromkeys(WORKLOADS, 3) | {"heavy": 5, "faults": 5, "filter": 5},
    peer_seeds=dict.fromkeys(WORKLOADS, 3) | {"heavy": 5, "faults": 5, "filter": 5},
    frontier_seeds=5,
)
QUICK = Sizes(
    seeds=dict.fromkeys(WORKLOADS, 1) | {"heavy": 3, "faults": 3, "filter": 3, "mix": 3},
    peer_seeds=dict.fromkeys(WORKLOADS, 1) | {"heavy": 3, "faults": 3, "filter": 3, "mix": 3},
    frontier_seeds=3,
)


def cells_of(sizes: Sizes) -> Iterator[Cell]:
    """All runs, ours first: they take longest."""

    def seeds(n: int) -> range:
        return range(sizes.first_seed, sizes.first_seed + n)

    for workload, n_seeds in sizes.seeds.items():
        for limit, seed in itertools.product(sizes.limits, seeds(n_seeds)):
            yield Cell(system=US, workload=workload, limit=limit, seed=seed)
    for (limit, ahead), seed in itertools.product(FRONTIER, seeds(sizes.frontier_seeds)):
        yield Cell(system=US, workload="heavy", limit=limit, ahead=ahead, seed=seed)
    for workload, n_seeds in sizes.peer_seeds.items():
        for (system, limit), seed in itertools.product(PEERS, seeds(n_seeds)):
            if workload in ("heavy", "faults") or system in BEYOND_HEAVY:
                yield Cell(system=system, workload=workload, limit=limit, seed=seed)


def run_cells(report: Report, sizes: Sizes) -> dict[Cell, Figures]:
    cells = [replace(cell, n_steps=sizes.n_steps, warm_up=sizes.warm_up) for cell in cells_of(sizes)]
    if sizes.n_processes == 1:
        return {cell: figures_of_cell(cell) for cell in cells}
    done: dict[Cell, Figures] = {}
    with ProcessPoolExecutor(sizes.n_processes, get_context("spawn"), initializer=_quiet) as pool:
        asked = {pool.submit(figures_of_cell, cell): cell for cell in cells}
        for future in as_completed(asked):
            cell, figures = asked[future], future.result()
            done[cell] = figures
            how = figures.deadlock or f"{100 * figures.rate / bound(WORKLOADS[cell.workload]).rate:.1f} % of X*"
            report.say(f"{len(done)}/{len(cells)} {cell.system}, {cell.case}, seed {cell.seed}: {how}")
    return {cell: done[cell] for cell in cells}


def _quiet() -> None:
    """The modelled endpoint gives no token ids, which each run would warn of."""
    logging.getLogger("outrider.train").setLevel(logging.ERROR)


def tell(report: Report, case: str, system: str, workload: str, runs: Sequence[Figures]) -> None:
    """The figures of all seeds of a case: means of rates, sums of what can be added up, the worst of the rest."""
    best = bound(WORKLOADS[workload]).rate
    rates = [run.rate for run in runs]
    report.add(case, system, "trajectories_per_second", statistics.mean(rates), "1/s")
    report.add(case, system, "pct_of_bound", 100 * statistics.mean(rates) / best, "%")
    report.add(case, system, "pct_of_bound_least", 100 * min(rates) / best, "%")
    report.add(case, system, "pct_of_bound_most", 100 * max(rates) / best, "%")
    n_stuck = sum(run.deadlock is not None for run in runs)
    report.add(case, system, "deadlocks", n_stuck, f"of {len(runs)} runs")
    report.add(case, system, "steps_done", min(run.n_steps for run in runs), "steps")
    moving = [run for run in runs if run.n_trained and run.deadlock is None]
    if not moving:
        return
    ages: Counter[int] = sum((run.staleness for run in moving), Counter())
    tokens: Counter[int] = sum((run.token_staleness for run in moving), Counter())
    waits = [wait for run in moving for wait in run.waits]
    report.add(case, system, "staleness_mean", mean(ages), "versions")
    report.add(case, system, "staleness_max", max(ages), "versions")
    report.add(case, system, "token_staleness_mean", mean(tokens), "versions")
    report.add(case, system, "token_staleness_max", max(tokens), "versions")
    report.add(case, system, "trainer_idle_pct", 100 * statistics.mean(run.idle for run in moving), "%")
    report.add(case, system, "waste_pct", 100 * statistics.mean(run.waste for run in moving), "%")
    if WORKLOADS[workload].filtered:
        report.add(case, system, "filtered_pct", 100 * statistics.mean(run.filtered for run in moving), "%")
    trained = sum(run.n_turns_trained for run in moving) / sum(run.n_trained for run in moving)
    offered = sum(run.n_turns_offered for run in moving) / sum(run.n_offered for run in moving)
    report.add(case, system, "length_bias", trained / offered, "x")
    report.add(case, system, "get_batch_p50_seconds", quantile(waits, 0.5), "s")
    report.add(case, system, "get_batch_p99_seconds", quantile(waits, 0.99), "s")


def conclude(report: Report, runs: Mapping[Cell, Figures]) -> None:
    """What follows from several cases: what the goals are about, and how we compare."""
    over: Counter[str] = Counter()
    for cell, figures in runs.items():
        if cell.system == US and cell.limit is not None:
            over[cell.case] = max(over[cell.case], figures.staleness_most - cell.limit, 0)
    for case, most in over.items():
        report.add(case, US, "staleness_over_max", most, "versions")
    for metric, found in points_lost(runs).items():
        for case, lost in found.items():
            report.add(case, US, metric, statistics.mean(lost), "points")
    moving = {cell.case: cell for cell, run in runs.items() if cell.system == US and run.n_trained and not run.deadlock}
    for case in moving:
        report.add(case, US, "length_bias_from_1", abs(report.value(case, US, "length_bias") - 1), "x")
    fresh = [
        report.value(case, US, "pct_of_bound")
        for case, cell in moving.items()
        if cell.workload == "heavy" and report.value(case, US, "staleness_mean") <= MEAN_LIMIT
    ]
    if fresh:
        report.add(f"heavy mean<={MEAN_LIMIT:g}", US, "best_pct_of_bound", max(fresh), "%")
    for case, lost in points_behind(runs).items():
        report.add(case, US, "points_behind_plain", statistics.mean(lost), "points")
    compare(report, runs)


def compare(report: Report, runs: Mapping[Cell, Figures]) -> None:
    """Each other row with ours of the same hard maximum, and with our best of an equal mean that keeps it."""
    moving = {(one.case, one.system): one for one, run in runs.items() if run.n_trained and not run.deadlock}
    ours = [cell for (_, system), cell in moving.items() if system == US]
    for (case, them), cell in moving.items():
        if them == US:
            continue
        mean_of_them = report.value(case, them, "staleness_mean")
        near = [
            one
            for one in ours
            if one.workload == cell.workload
            and abs(report.value(one.case, US, "staleness_mean") - mean_of_them) <= EQUAL_MEAN
            and (cell.limit is None or (one.limit is not None and one.limit <= cell.limit))
        ]
        best = sorted(near, key=lambda one: report.value(one.case, US, "pct_of_bound"))[-1:]
        same = [
            one
            for one in ours
            if one.workload == cell.workload and one.ahead is None and one.limit == cell.limit is not None
        ]
        for one in dict.fromkeys((*same, *best)):
            report.ratio(one.case, "pct_of_bound", of=US, against=them, against_case=case)


def points_behind(runs: Mapping[Cell, Figures]) -> dict[str, list[float]]:
    """How much more of X* the plain rule reached with the same seeds, by case."""
    behind: dict[str, list[float]] = defaultdict(list)
    for cell, figures in runs.items():
        plain = replace(cell, system=PLAIN)
        if cell.system == US and plain in runs:
            behind[cell.case].append(100 * (runs[plain].rate - figures.rate) / bound(WORKLOADS[cell.workload]).rate)
    return behind


def points_lost(runs: Mapping[Cell, Figures]) -> dict[str, dict[str, list[float]]]:
    """How much better we did with the same seeds without faults, by metric and case.

    Faults take slots and the engine's work whatever the scheduler does, which its own bound counts and the other not.
    """
    heavy, faults = bound(WORKLOADS["heavy"]).rate, bound(WORKLOADS["faults"]).rate
    lost: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for cell, figures in runs.items():
        without = replace(cell, workload="heavy")
        if cell.system == US and cell.workload == "faults" and without in runs:
            before = runs[without].rate / heavy
            lost["points_lost_of_own_bound"][cell.case].append(100 * (before - figures.rate / faults))
            lost["points_lost_of_heavy_bound"][cell.case].append(100 * (before - figures.rate / heavy))
    return lost


def measure(report: Report, sizes: Sizes) -> None:
    runs = run_cells(report, sizes)
    report.add("seeds", US, "first_seed", sizes.first_seed, "n")
    for name in dict.fromkeys(cell.workload for cell in runs):
        limits = bound(WORKLOADS[name])
        for metric in ("rate", "by_slots", "by_engine", "by_trainer"):
            report.add(name, "bound", f"bound_{metric.removeprefix('by_')}", getattr(limits, metric), "1/s")
    seeds: dict[tuple[str, str, str], list[Figures]] = defaultdict(list)
    for cell, figures in runs.items():
        seeds[cell.case, cell.system, cell.workload].append(figures)
    for (case, system, workload), found in seeds.items():
        tell(report, case, system, workload, found)
    conclude(report, runs)
    if sizes.n_live:
        report.say(f"what the scheduler costs with {sizes.n_live:,} live")
        for metric, value in asyncio.run(overhead(sizes.n_live, sizes.live_steps)).items():
            unit = "us" if metric.startswith("us_") else "s" if metric.endswith("seconds") else "n"
            report.add(f"heavy live={sizes.n_live}", US, metric, value, unit)
    report.publish()


def tables(lines: Sequence[Line]) -> list[str]:
    """The section in the results."""
    return tables_of(lines, GOOD)


def pictures(lines: Sequence[Line]) -> dict[str, str]:
    """The files that belong to the section."""
    return {PICTURE: picture(heavy_rows(lines))}


def run(report: Report, quick: bool) -> None:
    measure(report, replace(QUICK if quick else FULL, first_seed=report.seed))


if __name__ == "__main__":
    sys.exit(main("sched", run, sys.argv[1:], draws=True))
