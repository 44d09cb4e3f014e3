"""Sokoban levels by reverse play: from the solved room, boxes are pulled away, so every level can be solved.

A cell is a number, row by row. The room has a wall all around, so that a step from a floor cell stays in the room.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from outrider.env.games.grid import Direction, pick, shuffled

State = tuple[int, tuple[int, ...]]
"""The player's cell and the boxes' cells, sorted."""

MAX_DRAWS = 1_000
"""How many rooms are drawn before a configuration is taken for impossible."""

BEAM = 40
"""How many states of one depth reverse play goes on from."""

_DIRECTIONS = tuple(Direction)

P_TURN = 0.35
STEPS_PER_SIDE = 1.7

_BRUSHES = (
    ((0, -1), (0, 0), (0, 1)),
    ((-1, 0), (0, 0), (1, 0)),
    ((0, -1), (0, 0), (1, 0)),
    ((0, -1), (0, 0), (1, -1), (1, 0)),
    ((0, 0), (0, 1), (1, 0)),
)
"""What one step of the digger opens up, as rows and columns around it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What does not move."""

    height: int
    width: int
    floor: frozenset[int]
    targets: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """What can move, where it starts. `n_moves` moves are enough to solve it."""

    room: Room
    boxes: tuple[int, ...]
    player: int
    n_moves: int


def draw_level(
    rng: random.Random, *, height: int, width: int, n_boxes: int, search_depth: int, max_moves: int | None
) -> Level | None:
    """A level with no box on a target, solvable within `max_moves`; None: many rooms were drawn, and none had one.

    `search_depth` is how many moves reverse play takes back at most.
    """
    depth = search_depth if max_moves is None else min(search_depth, max_moves)
    for _ in range(MAX_DRAWS):
        floor = _dig(rng, height, width)
        if len(floor) <= 2 * n_boxes:
            continue
        targets = frozenset(shuffled(rng, floor)[:n_boxes])
        if found := list(_take_back(rng, frozenset(floor), targets, width, depth)):
            n_moves, (player, boxes) = pick(rng, _far(found))
            room = Room(height=height, width=width, floor=frozenset(floor), targets=targets)
            return Level(room=room, boxes=boxes, player=player, n_moves=n_moves)
    return None


def _far(found: list[tuple[int, State]]) -> list[tuple[int, State]]:
    """The farther half of the way, so that few levels are a push or two."""
    farthest = max(n_moves for n_moves, _ in found)
    return [state for state in found if 2 * state[0] >= farthest]


def _dig(rng: random.Random, height: int, width: int) -> list[int]:
    """The floor of a room: what a digger opens who walks at random through solid rock. It hangs together."""
    inside = [(row, column) for row in range(1, height - 1) for column in range(1, width - 1)]
    row, column = pick(rng, inside)
    direction = pick(rng, _DIRECTIONS)
    floor = set()
    for _ in range(int(STEPS_PER_SIDE * (height + width))):
        down, right = direction.offset
        while rng.random() < P_TURN or not (0 < row + down < height - 1 and 0 < column + right < width - 1):
            down, right = (direction := pick(rng, _DIRECTIONS)).offset
        row, column = row + down, column + right
        for down, right in pick(rng, _BRUSHES):
            if 0 < row + down < height - 1 and 0 < column + right < width - 1:
                floor.add((row + down) * width + column + right)
    return sorted(floor)


def _take_back(
    rng: random.Random, floor: frozenset[int], targets: frozenset[int], width: int, depth: int
) -> Iterator[tuple[int, State]]:
    """States with no box on a target from which the solved room is so many moves away, at most `depth`."""
    solved = tuple(sorted(targets))
    frontier: list[State] = []
    for player in sorted(floor - targets):
        # The last move of a solution is a push, so the first one taken back is a pull.
        frontier += [state for state in _before((player, solved), floor, width) if state[1] != solved]
    seen = set(frontier)
    for n_moves in range(1, depth + 1):
        if len(frontier) > BEAM:
            # States with more boxes pulled away first: they are what is looked for.
            order = sorted((sum(box in targets for box in state[1]), rng.random(), state) for state in frontier)
            frontier = [state for _, _, state in order[:BEAM]]
        yield from ((n_moves, state) for state in frontier if targets.isdisjoint(state[1]))
        following = []
        for state in frontier:
            for before in _before(state, floor, width):
                if before not in seen:
                    seen.add(before)
                    following.append(before)
        frontier = following


def _before(state: State, floor: frozenset[int], width: int) -> Iterator[State]:
    """The states from which one move leads to `state`."""
    player, boxes = state
    for back in (-width, width, -1, 1):
        origin = player + back
        if origin not in floor or origin in boxes:
            continue
        yield origin, boxes
        if player - back in boxes:
            yield origin, tuple(sorted(player if box == player - back else box for box in boxes))
