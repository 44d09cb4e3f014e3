"""How much memory this host has left."""

from contextlib import suppress
from pathlib import Path


def free_bytes() -> int | None:
    """What programs may still take without swapping; None if the host does not tell."""
    with suppress(OSError, ValueError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None
