"""The CPU time of processes that do not measure themselves, such as a database server and its backends, from /proc."""

import os
from pathlib import Path

PROC = Path("/proc")
TICKS = os.sysconf("SC_CLK_TCK")


def tree_cpu_seconds(root: int) -> float:
    """What `root` and its children have used so far; children that have ended count as long as `root` reaped them."""
    children = [pid for pid in _pids() if pid != root and _parent(pid) == root]
    return _reaped(root) + sum(_on_cpu(pid) for pid in [root, *children])


def family_cpu_seconds(root: int) -> float:
    """What `root`, its children, their children and so on have used so far, without those that have ended."""
    parents = {pid: _parent(pid) for pid in _pids()}
    family = {root}
    while more := {pid for pid, parent in parents.items() if parent in family and pid not in family}:
        family |= more
    return sum(_on_cpu(pid) for pid in family)


def process_cpu_seconds(pid: int) -> float:
    """What this process has used so far, without its children."""
    return _on_cpu(pid)


def _pids() -> list[int]:
    return [int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit()]


def _stat(pid: int) -> list[str]:
    """The fields after the command's name, which may hold spaces; empty for a process that has gone."""
    try:
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def _parent(pid: int) -> int:
    fields = _stat(pid)
    return int(fields[1]) if fields else 0


def _reaped(pid: int) -> float:
    fields = _stat(pid)
    return (int(fields[13]) + int(fields[14])) / TICKS if fields else 0.0


def _on_cpu(pid: int) -> float:
    """Exact to the nanosecond where the kernel keeps it (threads of the process that ended are not in it)."""
    try:
        tasks = list((PROC / str(pid) / "task").iterdir())
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9
    except (FileNotFoundError, ProcessLookupError):
        fields = _stat(pid)
        return (int(fields[11]) + int(fields[12])) / TICKS if fields else 0.0
