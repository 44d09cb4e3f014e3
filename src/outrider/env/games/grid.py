"""What grid games share: directions, and draws that come out the same in every process and version of Python."""

import random
from collections.abc import Sequence
from enum import StrEnum
from typing import TypeVar

T = TypeVar("T")


class Direction(StrEnum):
    """Where a move goes. The order is that of the action list an agent is shown."""

    UP = "up"
    DOWN = "down"
    LEFT = "left"
    RIGHT = "right"

    @property
    def offset(self) -> tuple[int, int]:
        """Rows and columns."""
        return _OFFSETS[self]

    @property
    def sides(self) -> tuple["Direction", "Direction"]:
        """The two directions at right angles to it."""
        if self in {Direction.UP, Direction.DOWN}:
            return (Direction.LEFT, Direction.RIGHT)
        return (Direction.UP, Direction.DOWN)


_OFFSETS = {Direction.UP: (-1, 0), Direction.DOWN: (1, 0), Direction.LEFT: (0, -1), Direction.RIGHT: (0, 1)}


def pick(rng: random.Random, items: Sequence[T]) -> T:
    """One of `items`. Only `random()` is promised to give the same in every version of Python; `choice` is not."""
    return items[int(rng.random() * len(items))]


def shuffled(rng: random.Random, items: Sequence[T]) -> list[T]:
    """All of `items` in a random order."""
    return [item for _, _, item in sorted((rng.random(), i, item) for i, item in enumerate(items))]
