"""FrozenLake: cross the ice from a random start to a random goal without falling into a hole."""

import random
from collections import deque
from dataclasses import dataclass
from typing import Annotated

from msgspec import Struct

from outrider.core.bounds import Reward, Share, Within, check_bounds
from outrider.core.errors import InvalidInput
from outrider.env.games.config import GameConfig, check_glyphs
from outrider.env.games.game import Game, GameEnvironments, Move
from outrider.env.games.grid import Direction, pick

Cell = tuple[int, int]

MAX_DRAWS = 20_000
"""How many maps are drawn before a configuration is taken for impossible."""


class FrozenLakeGlyphs(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One character for each thing a cell can show."""

    player: str = "P"
    frozen: str = "_"
    hole: str = "O"
    goal: str = "G"
    player_in_hole: str = "X"
    player_on_goal: str = "√"

    def __post_init__(self) -> None:
        check_glyphs(self)


class FrozenLakeRewards(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`step` is given for each move, the others where it ends."""

    step: Reward = 0.0
    hole: Reward = 0.0
    goal: Reward = 1.0

    def __post_init__(self) -> None:
        check_bounds(self)


class FrozenLakeConfig(GameConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`p_frozen` is the chance of a cell to bear; on slippery ice two of three moves go off to a side."""

    size: Annotated[int, Within(2, 100)] = 4
    p_frozen: Share = 0.8
    is_slippery: bool = False
    invalid_action_penalty: Reward = -0.01
    glyphs: FrozenLakeGlyphs = FrozenLakeGlyphs()
    rewards: FrozenLakeRewards = FrozenLakeRewards()


@dataclass(frozen=True, slots=True, kw_only=True)
class Lake:
    """A map: the goal can be reached from the start."""

    size: int
    start: Cell
    goal: Cell
    holes: frozenset[Cell]

    def after(self, cell: Cell, direction: Direction) -> Cell:
        """Where a move from `cell` leads; the shore stops it."""
        row, column = cell[0] + direction.offset[0], cell[1] + direction.offset[1]
        return (row, column) if 0 <= row < self.size and 0 <= column < self.size else cell

    def n_moves(self) -> int | None:
        """The length of the shortest way to the goal; None: there is none."""
        distances = {self.start: 0}
        queue = deque([self.start])
        while queue and self.goal not in distances:
            cell = queue.popleft()
            for direction in Direction:
                there = self.after(cell, direction)
                if there not in distances and there not in self.holes:
                    distances[there] = distances[cell] + 1
                    queue.append(there)
        return distances.get(self.goal)


def draw_lake(rng: random.Random, config: FrozenLakeConfig) -> Lake:
    """A map whose goal can be reached within `max_steps`, if nobody slips."""
    cells = [(row, column) for row in range(config.size) for column in range(config.size)]
    for _ in range(MAX_DRAWS):
        start = pick(rng, cells)
        goal = pick(rng, cells)
        holes = frozenset(cell for cell in cells if rng.random() >= config.p_frozen) - {start, goal}
        lake = Lake(size=config.size, start=start, goal=goal, holes=holes)
        n_moves = lake.n_moves()
        if n_moves and (config.max_steps is None or n_moves <= config.max_steps):
            return lake
    raise InvalidInput(
        f"FrozenLake: of {MAX_DRAWS} maps with size {config.size} and p_frozen {config.p_frozen}, none could be "
        f"crossed within max_steps {config.max_steps}; raise p_frozen or max_steps"
    )


class FrozenLake(Game):
    """One lake being crossed. `rng` decides where slippery ice leads."""

    def __init__(self, lake: Lake, config: FrozenLakeConfig, rng: random.Random) -> None:
        self._lake = lake
        self._config = config
        self._rng = rng
        self._player = lake.start

    def move(self, direction: Direction) -> Move:
        if self._config.is_slippery:
            direction = pick(self._rng, (direction, *direction.sides))
        there = self._lake.after(self._player, direction)
        is_effective = there != self._player
        self._player = there
        rewards = self._config.rewards
        if there == self._lake.goal:
            return Move(reward=rewards.step + rewards.goal, is_effective=is_effective, outcome="reached the goal")
        if there in self._lake.holes:
            return Move(reward=rewards.step + rewards.hole, is_effective=is_effective, outcome="fell into a hole")
        return Move(reward=rewards.step, is_effective=is_effective)

    @property
    def is_won(self) -> bool:
        return self._player == self._lake.goal

    def grid(self) -> str:
        cells = range(self._lake.size)
        return "\n".join("".join(self._glyph((row, column)) for column in cells) for row in cells)

    def _glyph(self, cell: Cell) -> str:
        glyphs = self._config.glyphs
        is_here = cell == self._player
        if cell == self._lake.goal:
            return glyphs.player_on_goal if is_here else glyphs.goal
        if cell in self._lake.holes:
            return glyphs.player_in_hole if is_here else glyphs.hole
        return glyphs.player if is_here else glyphs.frozen


class FrozenLakeEnvironments(GameEnvironments[FrozenLakeConfig]):
    """The tag `FrozenLake`."""

    Config = FrozenLakeConfig

    def rules(self) -> str:
        rules = "You are crossing a frozen lake. Reach the goal, and do not step into a hole."
        if self.config.is_slippery:
            rules += (
                " The ice is slippery: one move in three goes where you want; the others go to one of the two sides "
                "at right angles to it."
            )
        return rules

    def legend(self) -> tuple[tuple[str, str], ...]:
        glyphs = self.config.glyphs
        return (
            (glyphs.player, "you"),
            (glyphs.frozen, "ice"),
            (glyphs.hole, "hole"),
            (glyphs.goal, "goal"),
            (glyphs.player_in_hole, "you in a hole"),
            (glyphs.player_on_goal, "you on the goal"),
        )

    def draw(self, rng: random.Random) -> Game:
        return FrozenLake(draw_lake(rng, self.config), self.config, rng)
