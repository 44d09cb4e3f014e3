"""Levels, judged by solvers of their own that read the grid as it is shown: every one can be solved in time."""

import asyncio
import hashlib
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.core.chat import assistant
from outrider.core.task import Task
from outrider.env import Environment
from outrider.env.registry import environments_of
from soaking import examples

MOVES = {"Up": -1j, "Down": 1j, "Left": -1, "Right": 1}
"""Columns are real, rows imaginary."""

SOKOBAN = "#_O√XPS"
OTHER = "W.GCBA@"
LAKE = "P_OG"
GAMES = ("FrozenLake", "SimpleSokoban", "LargerSokoban", "SokobanDifferentGridVocab")


def grid_of(env: Environment, seed: int) -> list[str]:
    return asyncio.run(opened(env, seed))


async def opened(env: Environment, seed: int) -> list[str]:
    _, view = await env.reset(seed)
    return rows_in(view.content)


async def grids_of(tag: str, n_seeds: int) -> list[list[str]]:
    environments = environments_of(tag)
    return [await opened(environments.make(Task(task_id="t")), seed) for seed in range(n_seeds)]


def rows_in(text: str) -> list[str]:
    return [line for line in text.splitlines() if " " not in line]


def make(tag: str, **config: Any) -> Environment:
    return environments_of(tag, config).make(Task(task_id="t"))


def where(rows: list[str], glyphs: str) -> set[complex]:
    return {complex(x, y) for y, row in enumerate(rows) for x, glyph in enumerate(row) if glyph in glyphs}


def lake_solution(rows: list[str]) -> int | None:
    """The number of moves to the goal, by flooding."""
    player, _, hole, goal = LAKE
    (start,), (end,) = where(rows, player), where(rows, goal)
    safe = where(rows, player + "_" + goal)
    assert len(safe) + len(where(rows, hole)) == len(rows) ** 2
    flooded, n_moves = {start}, 0
    while end not in flooded:
        more = {cell + move for cell in flooded for move in MOVES.values()} & safe | flooded
        if more == flooded:
            return None
        flooded, n_moves = more, n_moves + 1
    return n_moves


def taxi_distance(a: complex, b: complex) -> int:
    return int(abs(a.real - b.real) + abs(a.imag - b.imag))


def sokoban_solution(rows: list[str], glyphs: str, limit: int) -> int | None:
    """The least number of moves that solves the room, found level by level; None: more than `limit`."""
    wall, _, target, placed, box, player, on_target = glyphs
    walls, targets = where(rows, wall), where(rows, target + placed + on_target)
    (start,) = where(rows, player + on_target)
    boxes = frozenset(where(rows, box + placed))
    reached = {(start, boxes)}
    seen = set(reached)
    for n_moves in range(limit + 1):
        if any(boxes == targets for _, boxes in reached):
            return n_moves
        following = set()
        for here, boxes in reached:
            for move in MOVES.values():
                there, now = here + move, boxes
                if there in boxes:
                    now = boxes - {there} | {there + move}
                    if len(now) < len(boxes) or there + move in walls:
                        continue
                if there not in walls and (there, now) not in seen and least(now, targets) < limit - n_moves:
                    following.add((there, now))
        seen |= following
        reached = following
    return None


def least(boxes: Iterable[complex], targets: set[complex]) -> int:
    return sum(min(taxi_distance(box, target) for target in targets) for box in boxes)


def test_the_solvers_can_say_no():
    assert lake_solution(["P_O", "_OG", "O_O"]) is None
    assert lake_solution(["PO", "_G"]) == 2
    assert sokoban_solution(["#####", "#PX_#", "#__O#", "#####"], SOKOBAN, limit=20) is None
    assert sokoban_solution(["#####", "#PXO#", "#####"], SOKOBAN, limit=1) == 1
    assert sokoban_solution(["######", "#PX_O#", "######"], SOKOBAN, limit=1) is None
    assert sokoban_solution(["######", "#_P__#", "#_X_O#", "#____#", "######"], SOKOBAN, limit=9) == 4


async def test_every_lake_can_be_crossed_in_time():
    n_moves = []
    for seed, rows in enumerate(await grids_of("FrozenLake", 3_000)):
        assert [len(row) for row in rows] == [4, 4, 4, 4]
        solution = lake_solution(rows)
        assert solution is not None, (seed, rows)
        n_moves.append(solution)
    assert min(n_moves) >= 1
    assert max(n_moves) <= 10


@pytest.mark.parametrize(
    ("tag", "glyphs", "side", "n_boxes", "n_seeds"),
    [
        ("SimpleSokoban", SOKOBAN, 6, 1, 2_000),
        ("SokobanDifferentGridVocab", OTHER, 6, 1, 1_000),
        ("LargerSokoban", SOKOBAN, 10, 2, 1_000),
    ],
)
async def test_every_room_can_be_solved_in_time_and_is_not_solved_yet(
    tag: str, glyphs: str, side: int, n_boxes: int, n_seeds: int
):
    for seed, rows in enumerate(await grids_of(tag, n_seeds)):
        assert [len(row) for row in rows] == [side] * side
        wall, _, target, placed, box, player, on_target = glyphs
        assert len(where(rows, box)) == n_boxes == len(where(rows, target + on_target))
        assert not where(rows, placed)
        assert len(where(rows, player + on_target)) == 1
        assert set(rows[0] + rows[-1] + "".join(row[0] + row[-1] for row in rows)) == {wall}
        solution = sokoban_solution(rows, glyphs, limit=10)
        assert solution is not None, (seed, rows)
        assert solution > 0


@given(
    height=st.integers(5, 12),
    width=st.integers(5, 12),
    num_boxes=st.integers(1, 2),
    max_steps=st.integers(6, 14),
    seed=st.integers(-(2**40), 2**40),
)
@settings(max_examples=examples(25))
def test_a_room_of_any_size_keeps_its_limit(height: int, width: int, num_boxes: int, max_steps: int, seed: int):
    rows = grid_of(make("SimpleSokoban", dim_room=[height, width], num_boxes=num_boxes, max_steps=max_steps), seed)
    assert (len(rows), len(rows[0])) == (height, width)
    assert sokoban_solution(rows, SOKOBAN, limit=max_steps) is not None


@given(size=st.integers(2, 9), p_frozen=st.floats(0.4, 1.0), max_steps=st.integers(1, 20), seed=st.integers(0, 2**40))
@settings(max_examples=examples(40))
def test_a_lake_of_any_size_keeps_its_limit(size: int, p_frozen: float, max_steps: int, seed: int):
    rows = grid_of(make("FrozenLake", size=size, p_frozen=p_frozen, max_steps=max_steps), seed)
    solution = lake_solution(rows)
    assert solution is not None
    assert 1 <= solution <= max_steps


@given(
    tag=st.sampled_from(["SimpleSokoban", "LargerSokoban"]),
    seed=st.integers(0, 2**31),
    actions=st.lists(st.sampled_from([*MOVES, "jump"]), max_size=40),
)
@settings(max_examples=examples(60))
def test_whatever_is_played_boxes_are_kept_and_nobody_stands_in_a_wall(tag: str, seed: int, actions: list[str]):
    asyncio.run(play_in_room(tag, seed, actions))


async def play_in_room(tag: str, seed: int, actions: list[str]) -> None:
    env = make(tag, max_steps=40, search_depth=12)
    _, view = await env.reset(seed)
    rows = rows_in(view.content)
    walls, targets, n_boxes = where(rows, "#"), where(rows, "O√S"), len(where(rows, "X√"))
    for action in actions:
        before = rows
        step = await env.step(assistant(f"<answer>{action}</answer>"))
        rows = rows_in(step.observation[-1].content)
        (player,) = where(rows, "PS")
        assert where(rows, "#") == walls
        assert where(rows, "O√S") == targets
        assert len(where(rows, "X√")) == n_boxes
        assert player not in walls
        (player_before,) = where(before, "PS")
        assert taxi_distance(player, player_before) == (1 if step.info["is_effective"] else 0)
        assert (rows != before) == step.info["is_effective"]
        assert step.terminated == (where(rows, "√") == targets)
        if step.terminated or step.truncated:
            break


@given(seed=st.integers(0, 2**31), actions=st.lists(st.sampled_from([*MOVES]), max_size=30), is_slippery=st.booleans())
@settings(max_examples=examples(60))
def test_whatever_is_played_the_lake_stays_and_the_end_is_told(seed: int, actions: list[str], is_slippery: bool):
    asyncio.run(play_on_lake(seed, actions, is_slippery))


async def play_on_lake(seed: int, actions: list[str], is_slippery: bool) -> None:
    env = make("FrozenLake", is_slippery=is_slippery, max_steps=30)
    _, view = await env.reset(seed)
    rows = rows_in(view.content)
    holes, goal = where(rows, "O"), where(rows, "G")
    for action in actions:
        before = where(rows, "P")
        step = await env.step(assistant(f"<answer>{action}</answer>"))
        rows = rows_in(step.observation[-1].content)
        (player,) = where(rows, "PX√")
        assert where(rows, "OX") == holes
        assert where(rows, "G√") == goal
        assert step.terminated == (player in holes | goal)
        assert step.reward == float(player in goal)
        assert is_slippery or player in {cell + MOVES[action] for cell in before} | before
        if step.terminated or step.truncated:
            break


LEVELS = {
    "FrozenLake": "e97cafc10d7e5281",
    "SimpleSokoban": "59fd5f6c4d3297ef",
    "LargerSokoban": "def37d0fd404120b",
    "SokobanDifferentGridVocab": "213cbd074d3b640a",
}
"""Digests of the first hundred levels. They must be the same in every process, on every machine and Python."""


@pytest.mark.parametrize("tag", GAMES)
async def test_a_seed_stands_for_the_same_level_for_ever(tag: str):
    grids = ["\n".join(rows) for rows in await grids_of(tag, 100)]
    assert len(set(grids)) > 90
    assert hashlib.sha256("\n\n".join(grids).encode()).hexdigest()[:16] == LEVELS[tag]
