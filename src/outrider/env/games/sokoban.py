"""Sokoban: push every box onto a target."""

import random
from typing import Annotated

from msgspec import Struct

from outrider.core.bounds import Reward, Within, check_bounds
from outrider.core.errors import InvalidInput
from outrider.env.games.config import GameConfig, check_glyphs
from outrider.env.games.game import Game, GameEnvironments, Move
from outrider.env.games.grid import Direction
from outrider.env.games.sokoban_level import Level, draw_level

Side = Annotated[int, Within(4, 100)]


class SokobanGlyphs(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One character for each thing a cell can show."""

    wall: str = "#"
    floor: str = "_"
    target: str = "O"
    box_on_target: str = "√"
    box: str = "X"
    player: str = "P"
    player_on_target: str = "S"

    def __post_init__(self) -> None:
        check_glyphs(self)


class SokobanRewards(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`step` is given for each move, the others where a push brings them about."""

    step: Reward = -0.1
    box_on_target: Reward = 1.0
    box_off_target: Reward = -1.0
    solved: Reward = 10.0

    def __post_init__(self) -> None:
        check_bounds(self)


class SokobanConfig(GameConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`dim_room` is height and width with the walls; `search_depth` bounds how far a level is from being solved."""

    dim_room: tuple[Side, Side] = (6, 6)
    num_boxes: Annotated[int, Within(1, 20)] = 1
    search_depth: Annotated[int, Within(1, 1000)] = 300
    invalid_action_penalty: Reward = -0.15
    glyphs: SokobanGlyphs = SokobanGlyphs()
    rewards: SokobanRewards = SokobanRewards()


class LargerSokobanConfig(SokobanConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Two boxes in a larger room."""

    dim_room: tuple[Side, Side] = (10, 10)
    num_boxes: Annotated[int, Within(1, 20)] = 2
    search_depth: Annotated[int, Within(1, 1000)] = 10


class DifferentGridVocabConfig(SokobanConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The small room, written in other glyphs."""

    search_depth: Annotated[int, Within(1, 1000)] = 30
    glyphs: SokobanGlyphs = SokobanGlyphs(
        wall="W", floor=".", target="G", box_on_target="C", box="B", player="A", player_on_target="@"
    )


class Sokoban(Game):
    """One room being played."""

    def __init__(self, level: Level, config: SokobanConfig) -> None:
        self._room = level.room
        self._config = config
        self._player = level.player
        self._boxes = set(level.boxes)

    def move(self, direction: Direction) -> Move:
        rewards = self._config.rewards
        offset = direction.offset[0] * self._room.width + direction.offset[1]
        there, beyond = self._player + offset, self._player + 2 * offset
        is_push = there in self._boxes
        if there not in self._room.floor or (is_push and not self._is_free(beyond)):
            return Move(reward=rewards.step, is_effective=False)
        self._player = there
        if not is_push:
            return Move(reward=rewards.step, is_effective=True)
        self._boxes.remove(there)
        self._boxes.add(beyond)
        reward = rewards.step
        if beyond in self._room.targets and there not in self._room.targets:
            reward += rewards.box_on_target
        elif there in self._room.targets and beyond not in self._room.targets:
            reward += rewards.box_off_target
        if self.is_won:
            return Move(reward=reward + rewards.solved, is_effective=True, outcome="solved it")
        return Move(reward=reward, is_effective=True)

    def _is_free(self, cell: int) -> bool:
        return cell in self._room.floor and cell not in self._boxes

    @property
    def is_won(self) -> bool:
        return self._boxes == self._room.targets

    def grid(self) -> str:
        width = self._room.width
        rows = range(0, self._room.height * width, width)
        return "\n".join("".join(self._glyph(cell) for cell in range(start, start + width)) for start in rows)

    def _glyph(self, cell: int) -> str:
        glyphs = self._config.glyphs
        is_target = cell in self._room.targets
        if cell == self._player:
            return glyphs.player_on_target if is_target else glyphs.player
        if cell in self._boxes:
            return glyphs.box_on_target if is_target else glyphs.box
        if cell not in self._room.floor:
            return glyphs.wall
        return glyphs.target if is_target else glyphs.floor


class SimpleSokobanEnvironments(GameEnvironments[SokobanConfig]):
    """The tag `SimpleSokoban`."""

    Config = SokobanConfig

    def rules(self) -> str:
        return (
            "You are playing Sokoban. Push every box onto a target. You push a box by walking against it; "
            "it moves if the cell behind it is free. Boxes cannot be pulled."
        )

    def legend(self) -> tuple[tuple[str, str], ...]:
        glyphs = self.config.glyphs
        return (
            (glyphs.wall, "wall"),
            (glyphs.floor, "floor"),
            (glyphs.target, "target"),
            (glyphs.box_on_target, "box on a target"),
            (glyphs.box, "box"),
            (glyphs.player, "you"),
            (glyphs.player_on_target, "you on a target"),
        )

    def draw(self, rng: random.Random) -> Game:
        config = self.config
        height, width = config.dim_room
        level = draw_level(
            rng,
            height=height,
            width=width,
            n_boxes=config.num_boxes,
            search_depth=config.search_depth,
            max_moves=config.max_steps,
        )
        if level is None:
            raise InvalidInput(
                f"Sokoban: no room of {height} by {width} with {config.num_boxes} boxes was found that can be solved "
                f"within search_depth {config.search_depth} and max_steps {config.max_steps}; "
                "raise these or take fewer boxes"
            )
        return Sokoban(level, config)


class LargerSokobanEnvironments(SimpleSokobanEnvironments):
    """The tag `LargerSokoban`."""

    Config = LargerSokobanConfig


class SokobanDifferentGridVocabEnvironments(SimpleSokobanEnvironments):
    """The tag `SokobanDifferentGridVocab`."""

    Config = DifferentGridVocabConfig
