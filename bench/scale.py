"""SCALE: many rollouts live in one process, and many through SQLite from end to end."""

import json
import subprocess
import sys
from pathlib import Path

from goals import Goal
from report import Report, main

SYSTEM = "outrider"
PROGRAM = Path(__file__).with_name("scale_load.py")

GOOD = (
    Goal(text="≤ 25 KB per live rollout, {n} at once", metric="kb_per_rollout", at_most=25.0),
    Goal(text="≤ 0.4 ms CPU per turn", metric="cpu_ms_per_turn", at_most=0.4),
    Goal(text="event loop behind by ≤ 100 ms (p99)", metric="loop_lag_p99_ms", at_most=100.0),
    Goal(text="flat memory from a tenth of {n} rollouts to all of them", metric="memory_growth", at_most=1.2),
)

UNITS = {
    "kb_per_rollout": "KB",
    "cpu_ms_per_turn": "ms",
    "loop_lag_p99_ms": "ms",
    "loop_lag_max_ms": "ms",
    "wall_seconds": "s",
    "rollouts_per_cpu_second": "1/s",
    "memory_growth": "x",
    "memory_mb": "MB",
}


def load(report: Report, case: str, *arguments: str) -> None:
    """One load in a process of its own, so that memory is its own."""
    report.say(case)
    done = subprocess.run([sys.executable, PROGRAM, *arguments], check=True, stdout=subprocess.PIPE, text=True)
    for metric, value in json.loads(done.stdout).items():
        report.add(case, SYSTEM, metric, value, UNITS[metric])


def run(report: Report, quick: bool) -> None:
    n_live, n_through = 10_000, 200_000 if quick else 1_000_000
    for _ in range(3):
        load(report, f"live FrozenLake n={n_live}", "live", "FrozenLake", str(n_live))
    load(report, f"through sqlite n={n_through}", "through", str(n_through))


if __name__ == "__main__":
    sys.exit(main("scale", run, sys.argv[1:]))
