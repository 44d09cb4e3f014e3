"""The scheduling benchmark: its engine and workloads, the models of other rules, and that a run repeats exactly."""

import asyncio
import io
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from outrider.testing import run_virtual

BENCH = Path(__file__).parents[2] / "bench"

REPLAY = """
import hashlib
from scheduling.cells import Cell, run_cell
figures, log = run_cell(Cell(system="outrider", workload="faults", limit=2, n_steps=2, warm_up=1), keeps_log=True)
print(len(log), figures.deadlock, hashlib.sha256(repr(log).encode()).hexdigest())
"""


def test_requests_share_the_engine_once_there_are_more_than_it_can_serve_at_full_speed(program):
    async def main():
        loop, ended = asyncio.get_running_loop(), []
        engine = program("scheduling.engine").Engine(2.0)

        def submit(name, work):
            return engine.submit(work, lambda: ended.append((name, round(loop.time(), 6))))

        submit("a", 1.0)
        await asyncio.sleep(0.5)  # alone, at full speed
        for name in "bcd":
            submit(name, 1.0)
        cancelled = submit("e", 1.0)
        await asyncio.sleep(0.5)  # five at 2/5
        done = engine.cancel(cancelled)
        await asyncio.sleep(10)
        return ended, done, engine.n_running

    ended, done, n_running = run_virtual(main())
    # a: 0.5 + 0.2 done at 1.0, 0.3 left at 2/4; then b, c, d have 0.5 left at 2/3
    assert ended == [("a", 1.6), ("b", 2.35), ("c", 2.35), ("d", 2.35)]
    assert done == pytest.approx(0.2)
    assert n_running == 0


def test_a_trajectory_takes_as_long_in_whatever_order_it_is_drawn(program):
    workload = program("scheduling.workload").WORKLOADS["faults"]
    keys = [(group, member, attempt) for group in range(5) for member in range(8) for attempt in range(2)]
    forwards = {key: workload.plan(*key) for key in keys}
    assert {key: workload.plan(*key) for key in reversed(keys)} == forwards
    assert len({plan.reset for plan in forwards.values()}) == len(keys)


@pytest.mark.parametrize("name", ["heavy", "gauss sigma=10", "mix"])
def test_the_bound_follows_from_what_trajectories_take_on_average(program, name):
    module = program("scheduling.workload")
    workload = module.WORKLOADS[name]
    plans = [workload.plan(group, 0, 0) for group in range(6000)]
    work = sum(work for plan in plans for work, _ in plan.turns) / len(plans)
    duration = work + sum(plan.reset + sum(env for _, env in plan.turns) for plan in plans) / len(plans)
    bound = module.bound(workload)
    assert bound.by_engine == pytest.approx(module.ENGINE_SPEED / work, rel=0.05)
    assert bound.by_slots == pytest.approx(module.SLOTS / duration, rel=0.05)


@pytest.mark.parametrize(
    ("system", "limit", "percent"),
    [("model of lock-step", 0, 5.0), ("model of batch barrier", 0, 19.0), ("model of ROLL 32x8", 1, 35.0)],
)
def test_the_models_reach_what_was_seen_of_the_rules_they_model(program, system, limit, percent):
    cells = program("scheduling.cells")
    figures = cells.figures_of_cell(cells.Cell(system=system, workload="heavy", limit=limit, seed=1, n_steps=14))
    best = program("scheduling.workload").bound(program("scheduling.workload").WORKLOADS["heavy"]).rate
    assert 100 * figures.rate / best == pytest.approx(percent, abs=5.0)
    assert max(figures.staleness) == limit
    assert figures.deadlock is None


def test_a_queue_that_waits_for_every_environment_stands_still_once_one_hangs(program):
    cells = program("scheduling.cells")
    figures = cells.figures_of_cell(cells.Cell(system="model of ROLL 32x8", workload="faults", limit=1))
    assert figures.deadlock is not None
    assert figures.rate == 0.0


def test_the_scheduler_does_the_same_at_the_same_time_in_every_run_with_the_same_seed():
    said = [
        subprocess.run(
            [sys.executable, "-c", REPLAY],
            check=True,
            capture_output=True,
            text=True,
            cwd=BENCH,
            env={**os.environ, "PYTHONPATH": str(BENCH), "PYTHONHASHSEED": hash_seed},
        ).stdout
        for hash_seed in ("1", "2")
    ]
    n_events, deadlock, _ = said[0].split()
    assert int(n_events) > 5000
    assert deadlock == "None"
    assert said[0] == said[1]


def test_a_tiny_round_of_the_sched_benchmark_measures_us_and_the_models(program):
    sched, report_module, results = program("sched"), program("report"), program("results")
    sizes = sched.Sizes(
        seeds={"heavy": 1},
        peer_seeds={"heavy": 1},
        frontier_seeds=0,
        limits=(2,),
        n_steps=2,
        warm_up=1,
        n_live=80,
        live_steps=1,
        n_processes=1,
    )
    report = report_module.Report("sched", as_json=True, out=io.StringIO())
    sched.measure(report, sizes)
    told = {(line["case"], line["system"], line["metric"]): line["value"] for line in report.lines}
    assert told["heavy max=2", "outrider", "staleness_max"] <= 2
    assert told["heavy max=2", "outrider", "staleness_over_max"] == 0
    assert told["heavy max=2", "outrider", "pct_of_bound"] > 0
    assert told["heavy live=80", "outrider", "us_per_event"] > 0
    section = results.section("sched", report.lines, "a test", datetime.now(UTC))
    assert "| heavy max=2 | outrider |" in section
    assert "| heavy max=1 | model of ROLL 32x8 |" in section
    assert "<svg" in sched.pictures(report.lines)["sched.svg"]
