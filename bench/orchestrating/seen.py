"""What we saw of Dr. MAS, on another day and not in this run: its own code, with a stand-in for the model's workers.

Batch 256. Its wall time is its CPU time and the modelled time of its calls, one after the other.
"""

from dataclasses import dataclass

SYSTEM = "Dr. MAS (seen by us, not in this run)"
BATCH = 256


@dataclass(frozen=True, slots=True)
class Seen:
    """Seconds."""

    cpu: float
    flat: float
    tail: float


SEEN = {
    ("critic", 0.85): Seen(3.0, 4.3, 8.8),
    ("critic", 0.25): Seen(3.4, 4.9, 9.4),
    ("episode", 0.85): Seen(10.4, 12.0, 18.2),
    ("episode", 0.25): Seen(18.5, 21.7, 37.6),
    ("math", 0.85): Seen(6.0, 7.4, 12.0),
    ("math", 0.25): Seen(5.9, 8.2, 15.1),
}
