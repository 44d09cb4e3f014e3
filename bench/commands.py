"""The `outrider` command as a user runs it: how long it takes, and its share of a processor while it idles."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cpu_time import process_cpu_seconds

OUTRIDER = Path(sys.executable).with_name("outrider")


@dataclass(frozen=True, slots=True)
class Ran:
    """What one command took, from its start to its end."""

    wall_seconds: float
    cpu_seconds: float


@contextmanager
def compiled() -> Iterator["Commands"]:
    """Commands that keep their bytecode for the block, also where the environment forbids to write any."""
    with tempfile.TemporaryDirectory(prefix="outrider-bytecode-") as folder:
        variables = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        yield Commands(variables | {"PYTHONPYCACHEPREFIX": folder})


class Commands:
    """Runs commands in one environment. The first run of each compiles what it imports, so it should not count."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.environment = environment

    def run(self, *arguments: str) -> Ran:
        """Run one to its end."""
        began = time.perf_counter()
        process = subprocess.Popen([OUTRIDER, *arguments], env=self.environment, stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            raise RuntimeError(f"outrider {' '.join(arguments)} ended with code {process.returncode}")
        return Ran(wall, usage.ru_utime + usage.ru_stime)

    @contextmanager
    def running(self, *arguments: str) -> Iterator[int]:
        """The process id of one that runs until the end of the block, once it has printed its first line."""
        process = subprocess.Popen([OUTRIDER, *arguments], env=self.environment, stdout=subprocess.PIPE)
        try:
            assert process.stdout is not None
            if not process.stdout.readline():
                raise RuntimeError(f"outrider {' '.join(arguments)} ended before it began")
            yield process.pid
        finally:
            process.terminate()
            process.communicate()


def share_of_processor(pid: int, seconds: float) -> float:
    """Of one processor, in percent, that this process alone takes for so long."""
    began, before = time.perf_counter(), process_cpu_seconds(pid)
    time.sleep(seconds)
    return (process_cpu_seconds(pid) - before) / (time.perf_counter() - began) * 100
