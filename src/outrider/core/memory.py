"""How much memory there is left."""

from pathlib import Path

_CGROUP_FILES = ("memory.max", "memory.current")


def available_bytes() -> int | None:
    """What programs on this machine, or in the container it is, may still take; None if it does not say."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return None
    try:
        limit, used = (Path("/sys/fs/cgroup", name).read_text(encoding="ascii") for name in _CGROUP_FILES)
        return min(free, int(limit) - int(used))
    except (OSError, ValueError):  # no container, or one without a limit
        return free
