import random
from collections import Counter

import pytest

from outrider.core.errors import InvalidInput
from outrider.env.games.frozen_lake import (
    FrozenLake,
    FrozenLakeConfig,
    FrozenLakeGlyphs,
    FrozenLakeRewards,
    Lake,
    draw_lake,
)
from outrider.env.games.grid import Direction

LAKE = Lake(size=3, start=(0, 0), goal=(2, 2), holes=frozenset({(1, 1)}))
REWARDS = FrozenLakeRewards(step=-0.5, hole=-2.0, goal=4.0)


def lake(rewards: FrozenLakeRewards | None = None) -> FrozenLake:
    return FrozenLake(LAKE, FrozenLakeConfig(rewards=rewards or FrozenLakeRewards()), random.Random(0))


def test_the_grid_shows_where_everything_is():
    assert lake().grid() == "P__\n_O_\n__G"


def test_the_shore_stops_a_move():
    game = lake()
    move = game.move(Direction.UP)
    assert (move.is_effective, move.reward, move.outcome, game.grid()) == (False, 0.0, "", "P__\n_O_\n__G")


def test_the_goal_ends_the_game_and_pays():
    game = lake(REWARDS)
    for direction in (Direction.RIGHT, Direction.RIGHT, Direction.DOWN):
        assert game.move(direction).reward == -0.5
        assert not game.is_won
    move = game.move(Direction.DOWN)
    assert (move.reward, move.outcome, game.is_won) == (3.5, "reached the goal", True)
    assert game.grid() == "___\n_O_\n__√"


def test_a_hole_ends_the_game():
    game = lake(REWARDS)
    game.move(Direction.DOWN)
    move = game.move(Direction.RIGHT)
    assert (move.reward, move.outcome, game.is_won) == (-2.5, "fell into a hole", False)
    assert game.grid() == "___\n_X_\n__G"


def test_slippery_ice_leads_astray_to_either_side_as_often_as_ahead():
    config = FrozenLakeConfig(is_slippery=True)
    middle = Lake(size=3, start=(1, 1), goal=(2, 2), holes=frozenset())
    rng = random.Random(1)
    games = [FrozenLake(middle, config, rng) for _ in range(3_000)]
    for game in games:
        game.move(Direction.UP)
    ends = Counter(game.grid() for game in games)
    assert set(ends) == {"_P_\n___\n__G", "___\nP__\n__G", "___\n__P\n__G"}
    assert all(900 < count < 1100 for count in ends.values())


def test_where_slippery_ice_leads_depends_on_the_seed():
    config = FrozenLakeConfig(is_slippery=True)
    wide = Lake(size=30, start=(15, 15), goal=(0, 0), holes=frozenset())

    def walk(seed: int) -> str:
        game = FrozenLake(wide, config, random.Random(seed))
        for _ in range(10):
            game.move(Direction.UP)
        return game.grid()

    assert walk(1) == walk(1)
    assert len({walk(seed) for seed in range(10)}) > 5


def test_a_map_has_the_size_and_about_the_holes_that_were_asked_for():
    config = FrozenLakeConfig(size=8, p_frozen=0.7, max_steps=None)
    maps = [draw_lake(random.Random(seed), config) for seed in range(200)]
    assert {drawn.size for drawn in maps} == {8}
    share = sum(len(drawn.holes) for drawn in maps) / (200 * 64)
    assert 0.2 < share < 0.3  # maps with many holes are less often solvable
    assert len({drawn.start for drawn in maps}) > 30
    assert len({drawn.goal for drawn in maps}) > 30


@pytest.mark.parametrize("config", [FrozenLakeConfig(max_steps=1), FrozenLakeConfig(p_frozen=0.0, size=2)])
def test_even_narrow_limits_have_a_map(config: FrozenLakeConfig):
    drawn = draw_lake(random.Random(3), config)
    assert abs(drawn.start[0] - drawn.goal[0]) + abs(drawn.start[1] - drawn.goal[1]) == 1


def test_a_configuration_without_a_map_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("outrider.env.games.frozen_lake.MAX_DRAWS", 2)
    with pytest.raises(InvalidInput, match=r"size 50 and p_frozen 0.0, none .* raise p_frozen or max_steps"):
        draw_lake(random.Random(0), FrozenLakeConfig(size=50, p_frozen=0.0))


def test_glyphs_that_cannot_be_told_apart_are_refused():
    with pytest.raises(ValueError, match="must all differ"):
        FrozenLakeGlyphs(goal="O")
    with pytest.raises(ValueError, match="hole must be one visible character"):
        FrozenLakeGlyphs(hole=" ")
    with pytest.raises(ValueError, match="player must be one visible character"):
        FrozenLakeGlyphs(player="PP")


def test_rewards_are_finite():
    with pytest.raises(ValueError, match="goal is inf"):
        FrozenLakeRewards(goal=float("inf"))
