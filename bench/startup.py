"""STARTUP: how long a program waits for `import outrider`, and a person for a command."""

import subprocess
import sys
import tempfile
from pathlib import Path

from baselines import AGENT_LIGHTNING, BaselineMissing
from commands import Commands, compiled
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
    Goal(text="import outrider ≤ 150 ms", metric="import_ms", at_most=150.0),
    Goal(text="outrider --help ≤ 300 ms", metric="command_ms", at_most=300.0),
    Goal(text="`--help` and `status` start in < 0.2 s CPU", metric="command_cpu_ms", at_most=200.0),
)


def import_once(report: Report, system: str, python: Path, module: str, commands: Commands) -> None:
    """One import in a process of its own, its bytecode compiled before."""
    command = [python, "-W", "ignore", "-c", IMPORT.format(module)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=commands.environment)
    wall, cpu = map(float, done.stdout.split())
    report.add("import", system, "import_ms", wall * 1000, "ms")
    report.add("import", system, "import_cpu_ms", cpu * 1000, "ms")


def command_once(report: Report, store: str, commands: Commands) -> None:
    """Commands that do next to nothing, so that their start is what they take."""
    for name, arguments in (("--help", ["--help"]), ("status", ["status", "--store", store])):
        ran = commands.run(*arguments)
        report.add(f"outrider {name}", SYSTEM, "command_ms", ran.wall_seconds * 1000, "ms")
        report.add(f"outrider {name}", SYSTEM, "command_cpu_ms", ran.cpu_seconds * 1000, "ms")


def run(report: Report, quick: bool) -> None:
    systems = [(SYSTEM, Path(sys.executable), "outrider")]
    try:
        systems.append((AGENT_LIGHTNING.system, AGENT_LIGHTNING.install(), "agentlightning"))
    except BaselineMissing as exc:
        report.missing("import", AGENT_LIGHTNING.system, str(exc))
    with tempfile.TemporaryDirectory(prefix="outrider-bench-") as folder, compiled() as commands:
        store = f"sqlite:///{folder}/some.db"
        commands.run("enqueue", "--store", store, "--test", "10")
        for one_round in range(1 + (3 if quick else 7)):
            into = report if one_round > 0 else Report("startup")
            for system, python, module in systems:
                import_once(into, system, python, module, commands)
            command_once(into, store, commands)
    report.ratio("import", "import_cpu_ms", of=SYSTEM, against=AGENT_LIGHTNING.system)


if __name__ == "__main__":
    sys.exit(main("startup", run, sys.argv[1:]))
