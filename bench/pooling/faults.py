"""Thousands of leases of fake machines with everything going wrong: the world of the property tests, counted."""

import sys
from collections import Counter
from pathlib import Path

from outrider.testing import run_virtual

sys.path.append(str(Path(__file__).parents[2] / "tests"))
from pool_world import World, Wrong

LIMIT_SECONDS = 3e6
"""Of virtual time."""


def count_wrongs(seed: int, n_leases: int) -> tuple[int, Counter[Wrong]]:
    """How many leases were given, and what happened that must never happen."""
    world = World(seed, n_leases)
    run_virtual(world.run(), limit_seconds=LIMIT_SECONDS)
    return world.n_leases, world.wrongs
