"""Jumps of the wall clock, found by comparing it with the monotonic clock of the machine.

The times of a live attempt are wall time, so that people can read them, and its lease is compared with wall time. When
the wall clock jumps, the times of all live attempts are moved along with it, before anything else is done: what is
left of a lease stays what it was. A suspended machine is such a jump, for its monotonic clock stands still.
"""

import logging
import math
from pathlib import Path

from outrider.core.clock import Clock, wall_offset

_log = logging.getLogger(__name__)

JUMP_SECONDS = 0.5
"""A smaller difference is no jump."""


class HostClock:
    """The wall clock of this machine as far as a store has followed its jumps. It may be read from any thread."""

    def __init__(self, clock: Clock, offset: float = math.nan) -> None:
        self._clock = clock
        self._offset = offset

    @property
    def offset(self) -> float:
        """How far wall time is ahead of monotonic time by the times in the store."""
        return self._offset

    @property
    def has_jumped(self) -> bool:
        """Whether the wall clock is not where the store believes it to be, or nothing is known yet."""
        clock = self._clock
        return not abs(clock.time() - clock.monotonic() - self._offset) <= JUMP_SECONDS

    def measure(self) -> float:
        """How far wall time is ahead of monotonic time."""
        return wall_offset(self._clock)

    def follow(self, offset: float) -> None:
        """The times in the store are those of a wall clock that is so far ahead of monotonic time."""
        self._offset = offset

    def monotonic_of(self, at: float) -> float:
        """A moment of wall time in monotonic time."""
        return self._clock.monotonic() + at - self._clock.time()


def tell(whose: str, seconds: float) -> None:
    """A jump is worth a warning: timestamps from before it are in another time."""
    _log.warning(
        "%s jumped %s by %.1f s, or stood still in a suspended machine; leases go on as if it had not",
        *(whose, "forward" if seconds > 0 else "back", abs(seconds)),
    )


def host_identity() -> str:
    """Names what monotonic time counts from: this boot of this machine, in this time namespace."""
    parts = []
    for path in ("/proc/sys/kernel/random/boot_id", "/proc/self/ns/time"):
        try:
            parts.append(str(Path(path).readlink()) if "/ns/" in path else Path(path).read_text().strip())
        except OSError:
            parts.append("")
    return " ".join(parts)
