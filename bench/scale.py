"""SCALE: ten thousand rollouts live in one process, and a million through SQLite from end to end."""

import json
import subprocess
import sys
from pathlib import Path

from goals import Goal
from report import Report, main

SYSTEM = "outrider"
PROGRAM = Path(__file__).with_name("scale_load.py")

GOOD = (
    Goal(text="≤ 40 KB per live rollout", case="live *", metric="kb_per_rollout", at_most=40.0),
    Goal(text="≤ 1 ms CPU per turn", case="live *", metric="cpu_ms_per_turn", at_most=1.0),
    Goal(
        text="flat memory from a tenth of the rollouts to all of them",
        case="through sqlite *",
        metric="memory_growth",
        at_most=1.2,
    ),
)

UNITS = {
    "kb_per_rollout": "KB",
    "cpu_ms_per_turn": "ms",
    "loop_lag_p99_ms": "ms",
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
    n_live, n_through = (2_000, 20_000) if quick else (10_000, 1_000_000)
    for _ in range(1 if quick else 3):
        load(report, f"live FrozenLake n={n_live}", "live", "FrozenLake", str(n_live))
    load(report, f"through sqlite n={n_through}", "through", str(n_through))


if __name__ == "__main__":
    sys.exit(main("scale", run, sys.argv[1:]))
