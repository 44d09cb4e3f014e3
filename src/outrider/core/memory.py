"""How much memory there is left."""

from pathlib import Path

from outrider.core.errors import InvalidInput

_MIB = 2**20
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


def check_room(n: int, what: str, each_bytes: int) -> None:
    """Raise `InvalidInput`, with the arithmetic, if there is no memory for so many, as far as is known."""
    free = available_bytes()
    if free is not None and n * each_bytes > free:
        raise InvalidInput(
            f"{n} {what} of {each_bytes // _MIB} MiB need {n * each_bytes // _MIB} MiB of memory, and "
            f"{free // _MIB} MiB are free: {free // each_bytes} would fit"
        )
