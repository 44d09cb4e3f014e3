import random

import pytest

from outrider.core.errors import InvalidInput
from outrider.env.games.grid import Direction
from outrider.env.games.sokoban import (
    LargerSokobanEnvironments,
    SimpleSokobanEnvironments,
    Sokoban,
    SokobanConfig,
    SokobanDifferentGridVocabEnvironments,
    SokobanGlyphs,
)
from outrider.env.games.sokoban_level import Level, Room, draw_level

UP, DOWN, LEFT, RIGHT = Direction


def room(*rows: str) -> Sokoban:
    """A game from a drawing in the standard glyphs."""
    width = len(rows[0])
    cells = dict(enumerate("".join(rows)))
    drawn = Room(
        height=len(rows),
        width=width,
        floor=frozenset(cell for cell, glyph in cells.items() if glyph != "#"),
        targets=frozenset(cell for cell, glyph in cells.items() if glyph in "O√S"),
    )
    boxes = tuple(cell for cell, glyph in cells.items() if glyph in "X√")
    (player,) = (cell for cell, glyph in cells.items() if glyph in "PS")
    return Sokoban(Level(room=drawn, boxes=boxes, player=player, n_moves=0), SokobanConfig())


def test_the_grid_shows_where_everything_is():
    rows = ("#######", "#PX_O_#", "#_√_O_#", "#######")
    assert room(*rows).grid() == "\n".join(rows)


def test_walking_costs_a_step():
    game = room("####", "#P_#", "#XO#", "####")
    move = game.move(RIGHT)
    assert (move.reward, move.is_effective, move.outcome) == (-0.1, True, "")
    assert game.grid() == "####\n#_P#\n#XO#\n####"


@pytest.mark.parametrize(
    ("rows", "direction"),
    [
        (("####", "#P_#", "#XO#", "####"), UP),
        (("####", "#P_#", "#XO#", "####"), DOWN),
        (("#####", "#PXX#", "#OO_#", "#####"), RIGHT),
        (("#####", "#PX√#", "#OO_#", "#####"), RIGHT),
    ],
    ids=["a wall", "a box at the wall", "two boxes", "a box before one on its target"],
)
def test_what_cannot_move_stays_and_the_step_is_paid(rows: tuple[str, ...], direction: Direction):
    game = room(*rows)
    move = game.move(direction)
    assert (move.reward, move.is_effective, move.outcome) == (-0.1, False, "")
    assert game.grid() == "\n".join(rows)


def test_a_box_on_a_target_pays_and_one_off_it_costs():
    game = room("#######", "#PXO__#", "#_X__O#", "#######")
    assert game.move(RIGHT).reward == pytest.approx(0.9)
    assert game.grid() == "#######\n#_P√__#\n#_X__O#\n#######"
    assert game.move(RIGHT).reward == pytest.approx(-1.1)
    assert game.grid() == "#######\n#__SX_#\n#_X__O#\n#######"


def test_a_box_from_target_to_target_neither_pays_nor_costs():
    game = room("#######", "#P√OX_#", "#######")
    assert game.move(RIGHT).reward == pytest.approx(-0.1)


def test_the_last_box_solves_the_room():
    game = room("######", "#_PXO#", "#√___#", "######")
    assert not game.is_won
    move = game.move(RIGHT)
    assert (move.reward, move.is_effective, move.outcome) == (pytest.approx(10.9), True, "solved it")
    assert game.is_won


def test_the_tags_differ_as_their_names_say():
    simple, larger = SimpleSokobanEnvironments.Config(), LargerSokobanEnvironments.Config()
    other = SokobanDifferentGridVocabEnvironments.Config()
    assert (simple.dim_room, simple.num_boxes, simple.search_depth, simple.max_steps) == ((6, 6), 1, 300, 10)
    assert (larger.dim_room, larger.num_boxes, larger.search_depth, larger.max_steps) == ((10, 10), 2, 10, 10)
    assert (other.dim_room, other.num_boxes, other.search_depth) == ((6, 6), 1, 30)
    assert {*SokobanDifferentGridVocabEnvironments(other).draw(random.Random(0)).grid()} <= set("W.GCBA@\n")


@pytest.mark.parametrize("search_depth", [1, 2, 5])
def test_the_search_depth_bounds_how_far_a_level_is_from_its_solution(search_depth: int):
    for seed in range(50):
        level = draw_level(random.Random(seed), height=6, width=6, n_boxes=1, search_depth=search_depth, max_moves=None)
        assert level is not None
        assert 1 <= level.n_moves <= search_depth


def test_a_room_too_small_for_its_boxes_is_refused_with_what_to_change():
    games = SimpleSokobanEnvironments(SokobanConfig(num_boxes=8))
    with pytest.raises(InvalidInput, match=r"no room of 6 by 6 with 8 boxes .* take fewer boxes"):
        games.draw(random.Random(0))


async def test_an_impossible_configuration_is_found_before_a_run():
    with pytest.raises(InvalidInput, match="within search_depth 300 and max_steps 1"):
        await SimpleSokobanEnvironments(SokobanConfig(num_boxes=2, max_steps=1)).check()
    await SimpleSokobanEnvironments(SokobanConfig()).check()


def test_glyphs_that_cannot_be_told_apart_are_refused():
    with pytest.raises(ValueError, match="must all differ"):
        SokobanGlyphs(wall="X")
