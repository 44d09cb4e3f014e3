"""What this host tells of its processes."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def host_seconds() -> tuple[float, float]:
    """CPU seconds since the boot of this host: busy ones, and all."""
    fields = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    idle = fields[3] + fields[4]
    ticks = os.sysconf("SC_CLK_TCK")
    return (sum(fields) - idle) / ticks, sum(fields) / ticks


def family(pid: int) -> list[int]:
    """The process and all below it."""
    found = [pid]
    for one in found:
        with suppress(OSError):
            for thread in Path(f"/proc/{one}/task").iterdir():
                found.extend(map(int, (thread / "children").read_text().split()))
    return found


def memory_mb(pid: int) -> float:
    """The proportional share of the memory of a process and all below it."""
    total = 0
    for one in family(pid):
        with suppress(OSError):
            rollup = Path(f"/proc/{one}/smaps_rollup").read_text()
            total += sum(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
    return total / 1024


def command_lines() -> Iterator[bytes]:
    """Of all processes that run."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            yield path.read_bytes()
