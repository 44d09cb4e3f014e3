"""STARTUP: how long a program waits for `import outrider`, and a person for `outrider --help`."""

import subprocess
import sys
import time
from pathlib import Path

from baselines import AGENT_LIGHTNING, BaselineMissing
from goals import Goal
from report import Report, main

SYSTEM = "outrider"
IMPORT = """
import os, time
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else the baseline waits for a download
wall, cpu = time.perf_counter(), time.process_time()
import {}
print(time.perf_counter() - wall, time.process_time() - cpu)
"""

GOOD = (
    Goal(text="import outrider ≤ 150 ms", case="import", metric="import_ms", at_most=150.0),
    Goal(text="outrider --help ≤ 300 ms", case="outrider --help", metric="command_ms", at_most=300.0),
)


def import_once(report: Report, system: str, python: Path, module: str) -> None:
    """One import in a process of its own, its bytecode compiled before."""
    command = [python, "-W", "ignore", "-c", IMPORT.format(module)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    wall, cpu = map(float, done.stdout.split())
    report.add("import", system, "import_ms", wall * 1000, "ms")
    report.add("import", system, "import_cpu_ms", cpu * 1000, "ms")


def help_once(report: Report) -> None:
    began = time.perf_counter()
    subprocess.run([Path(sys.executable).with_name("outrider"), "--help"], check=True, capture_output=True)
    report.add("outrider --help", SYSTEM, "command_ms", (time.perf_counter() - began) * 1000, "ms")


def run(report: Report, quick: bool) -> None:
    systems = [(SYSTEM, Path(sys.executable), "outrider")]
    try:
        systems.append((AGENT_LIGHTNING.system, AGENT_LIGHTNING.install(), "agentlightning"))
    except BaselineMissing as exc:
        report.missing("import", AGENT_LIGHTNING.system, str(exc))
    warm_up = Report("startup")
    for system, python, module in systems:
        import_once(warm_up, system, python, module)
    for _ in range(3 if quick else 7):
        for system, python, module in systems:
            import_once(report, system, python, module)
        help_once(report)
    report.ratio("import", "import_cpu_ms", of=SYSTEM, against=AGENT_LIGHTNING.system)


if __name__ == "__main__":
    sys.exit(main("startup", run, sys.argv[1:]))
