"""POOL: N rollouts on M machines, ours against a model of AgentFlow's manager; resets, costs, and what faults leave.

The desktops, their resets and the faults done to them are real; see `pooling/`.
"""

import asyncio
import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from goals import Goal, Line
from outrider.core.errors import InvalidInput
from outrider.pool.providers.desktop import DesktopProvider
from pooling import warm
from pooling.abuse import Abuse
from pooling.faults import count_wrongs
from pooling.kinds import KINDS, NotHere, time_kind
from pooling.load import DESKTOPS, Load, Outcome, run_cloud, run_load
from pooling.picture import picture
from pooling.systems import ANEW, IN_RELEASE, LOCK, US
from pooling.tables import METHOD, PICTURE, load_rows
from pooling.tables import tables as tables_of
from report import Report, main

__all__ = ["GOOD", "METHOD", "pictures", "run", "tables"]

N_ROLLOUTS, N_MACHINES = 32, 8
SHORT, LONG, CLOUD = 2.0, 8.0, 300.0
"""Medians of hold times, in seconds."""

N_ABUSED = 4
FAULTS, ABUSE = "fake machines with faults", "desktops with faults"
METRIC_OF = {"leak": "leaks", "dirty hand-out": "dirty_handouts", "double use": "double_uses", "other": "other_wrongs"}
COMPARED = ("utilisation_pct", "wait_p50_seconds", "wait_p95_seconds", "startup_seconds")

GOOD = (
    Goal(text="≥ 95 % utilisation", case="* hold=*", metric="utilisation_pct", at_least=95.0),
    Goal(text="warm acquire ≤ 5 ms (p50)", case="warm *", metric="acquire_ms", at_most=5.0),
    Goal(text="the same (p95)", case="warm *", metric="acquire_p95_ms", at_most=5.0),
    Goal(text="the same (p99)", case="warm *", metric="acquire_p99_ms", at_most=5.0),
    Goal(text="10,000 fault-injected leases", case=FAULTS, metric="leases", at_least=10_000),
    Goal(text="hundreds of them on real desktops", case=ABUSE, metric="leases", at_least=300),
    Goal(text="0 leaks", case="* with faults", metric="leaks", at_most=0.0),
    Goal(text="0 dirty hand-outs", case="* with faults", metric="dirty_handouts", at_most=0.0),
    Goal(text="0 double uses", case="* with faults", metric="double_uses", at_most=0.0),
    Goal(text="nothing else that must never happen", case=FAULTS, metric="other_wrongs", at_most=0.0),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much is run."""

    short_rounds: int
    short_leases: int
    long_rounds: int
    long_leases: int
    long_systems: Sequence[str]
    ablations: Sequence[str]
    cloud_rounds: int
    cloud_leases: int
    n_warm: int
    kinds: Sequence[str]
    n_resets: int
    n_seeds: int
    leases_per_seed: int
    abused_leases: int
    n_rollouts: int = N_ROLLOUTS
    n_machines: int = N_MACHINES

    def load(self, n_leases: int, median_seconds: float, machines: str = DESKTOPS) -> Load:
        return Load(
            n_rollouts=self.n_rollouts,
            n_machines=self.n_machines,
            n_leases=n_leases,
            median_seconds=median_seconds,
            machines=machines,
        )


FULL = Sizes(
    short_rounds=3,
    short_leases=40,
    long_rounds=3,
    long_leases=40,
    long_systems=(US, LOCK),
    ablations=(IN_RELEASE, ANEW),
    cloud_rounds=5,
    cloud_leases=160,
    n_warm=500,
    kinds=tuple(KINDS),
    n_resets=10,
    n_seeds=10,
    leases_per_seed=1000,
    abused_leases=320,
)
QUICK = Sizes(
    short_rounds=3,
    short_leases=40,
    long_rounds=1,
    long_leases=40,
    long_systems=(US, LOCK),
    ablations=(),
    cloud_rounds=3,
    cloud_leases=160,
    n_warm=300,
    kinds=tuple(KINDS),
    n_resets=3,
    n_seeds=10,
    leases_per_seed=1000,
    abused_leases=320,
)


def measure_desktops(report: Report, sizes: Sizes) -> None:
    """Ours and theirs one after the other in each round, with the same hold times."""
    short = sizes.load(sizes.short_leases, SHORT)
    for seed in range(sizes.short_rounds):
        for system in (US, LOCK, *(sizes.ablations if seed == 0 else ())):
            tell_load(report, short, system, asyncio.run(run_load(system, short, seed)))
    long = sizes.load(sizes.long_leases, LONG)
    for seed, system in product(range(sizes.long_rounds), sizes.long_systems):
        tell_load(report, long, system, asyncio.run(run_load(system, long, seed)))
    compare(report, short, long)


def measure_cloud(report: Report, sizes: Sizes) -> None:
    load = sizes.load(sizes.cloud_leases, CLOUD, machines="modelled VMs")
    for seed, system in product(range(sizes.cloud_rounds), (US, LOCK, *sizes.ablations)):
        tell_load(report, load, system, run_cloud(system, load, seed))
    compare(report, load)


def compare(report: Report, *loads: Load) -> None:
    for load, metric in product(loads, COMPARED):
        report.ratio(load.case, metric, of=US, against=LOCK)
    report.publish()


def tell_load(report: Report, load: Load, system: str, outcome: Outcome) -> None:
    report.say(f"{load.case}, {system}: {100 * outcome.utilisation:.1f} % used")

    def add(metric: str, value: float | None, unit: str = "s") -> None:
        if value is not None:
            report.add(load.case, system, metric, value, unit)

    add("utilisation_pct", 100 * outcome.utilisation, "%")
    if outcome.utilisation_ceiling is not None:
        add("utilisation_ceiling_pct", 100 * outcome.utilisation_ceiling, "%")
    if outcome.utilisation_by_pool is not None:
        add("utilisation_by_pool_pct", 100 * outcome.utilisation_by_pool, "%")
    for name in ("p50", "p95", "p99"):
        add(f"wait_{name}_seconds", getattr(outcome.waits, name))
    add("startup_seconds", outcome.startup_seconds)
    add("release_p95_seconds", outcome.releases.p95)
    if outcome.handovers is not None:
        add("handover_p50_seconds", outcome.handovers.p50)
        add("handover_max_seconds", outcome.handovers.greatest)
    if outcome.resets is not None:
        add("reset_p50_seconds", outcome.resets.p50)
        add("reset_p95_seconds", outcome.resets.p95)
    add("run_seconds", outcome.seconds)
    if load.machines == DESKTOPS:
        add("host_busy_pct", 100 * outcome.host_busy, "%")


def measure_warm(report: Report, sizes: Sizes) -> None:
    report.say("what a warm acquire costs")
    for way, found in asyncio.run(warm.measure(sizes.n_warm)).items():
        quantiles = found.quantiles()
        assert quantiles is not None
        for metric, seconds in (("acquire_ms", quantiles.p50), ("acquire_p95_ms", quantiles.p95)):
            report.add(f"warm {way}", US, metric, 1000 * seconds, "ms")
        report.add(f"warm {way}", US, "acquire_p99_ms", 1000 * quantiles.p99, "ms")
    report.publish()


def measure_kinds(report: Report, sizes: Sizes) -> None:
    for name in sizes.kinds:
        report.say(f"making and resetting: {name}")
        case = f"machine {name}"
        try:
            timings = asyncio.run(time_kind(KINDS[name], sizes.n_resets))
        except NotHere as exc:
            report.missing(case, US, f"not run here: {exc}")
            continue
        report.add(case, US, "first_create_seconds", timings.first_create_seconds, "s")
        for metric in ("create_seconds", "reset_seconds", "bare_reset_seconds"):
            for seconds in getattr(timings, metric):
                report.add(case, US, metric, seconds, "s")
        if timings.memory_mb is not None:
            report.add(case, US, "memory_mb", timings.memory_mb, "MB")
    report.publish()


def measure_faults(report: Report, sizes: Sizes) -> None:
    """Sums over all seeds."""
    n_leases, wrongs = 0, dict.fromkeys(METRIC_OF, 0)
    for seed in range(sizes.n_seeds):
        report.say(f"{FAULTS}, seed {seed}: {sizes.leases_per_seed} leases")
        given, found = count_wrongs(seed, sizes.leases_per_seed)
        n_leases += given
        for wrong, n in found.items():
            wrongs[wrong if wrong in wrongs else "other"] += n
    report.add(FAULTS, US, "leases", n_leases, "n")
    report.add(FAULTS, US, "seeds", sizes.n_seeds, "n")
    for wrong, n in wrongs.items():
        report.add(FAULTS, US, METRIC_OF[wrong], n, "n")
    report.publish()


def measure_abuse(report: Report, sizes: Sizes) -> None:
    report.say(f"{ABUSE}: {sizes.abused_leases} leases of {N_ABUSED}")
    provider = DesktopProvider(width=320, height=320)
    abuse = Abuse(provider, n_machines=N_ABUSED, n_leases=sizes.abused_leases, seed=0)
    found = asyncio.run(abuse.run())
    for what in found.seen:
        report.say(f"seen by a holder who should not: {what}")
    report.add(ABUSE, US, "leases", found.n_leases, "n")
    report.add(ABUSE, US, "leaks", found.n_leaks, "n")
    report.add(ABUSE, US, "dirty_handouts", found.n_dirty, "n")
    report.add(ABUSE, US, "double_uses", found.n_double, "n")
    for fault, n in sorted(found.faults.items()):
        report.add(ABUSE, US, f"fault: {fault}", n, "n")
    report.publish()


def check_desktops(report: Report, sizes: Sizes) -> bool:
    try:
        asyncio.run(DesktopProvider().check(N_MACHINES))
    except InvalidInput as exc:
        loads = [sizes.load(sizes.short_leases, SHORT), sizes.load(sizes.long_leases, LONG)]
        for case in (*(load.case for load in loads), ABUSE):
            report.missing(case, US, f"not run here: {exc}")
        return False
    return True


def measure(report: Report, sizes: Sizes) -> None:
    has_desktops = check_desktops(report, sizes)
    if has_desktops:
        measure_desktops(report, sizes)
    measure_cloud(report, sizes)
    measure_warm(report, sizes)
    measure_kinds(report, sizes)
    measure_faults(report, sizes)
    if has_desktops:
        measure_abuse(report, sizes)


def tables(lines: Sequence[Line]) -> list[str]:
    """The section in the results."""
    return tables_of(lines)


def pictures(lines: Sequence[Line]) -> dict[str, str]:
    """The files that belong to the section."""
    return {PICTURE: picture(load_rows(lines))}


def run(report: Report, quick: bool) -> None:
    logging.getLogger("outrider.pool").setLevel(logging.CRITICAL)  # faults are what is wanted here
    measure(report, QUICK if quick else FULL)


if __name__ == "__main__":
    sys.exit(main("pool", run, sys.argv[1:]))
