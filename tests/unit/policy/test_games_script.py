"""The script for games plays from the text alone, as well as can be played."""

import random
import time
from typing import Any

import pytest

from outrider.core.chat import Message, Role, ToolSpec, assistant, system, user
from outrider.core.task import Task
from outrider.env import Score
from outrider.env.registry import environments_of
from outrider.policy.scripted.games import GamesScript

GAMES = ("FrozenLake", "SimpleSokoban", "LargerSokoban", "SokobanDifferentGridVocab")
SCRIPT = GamesScript()
ROOM = """You are playing Sokoban.

Legend of the grid:
# = wall
_ = floor
O = target
√ = box on a target
X = box
P = you
S = you on a target

Actions:
- Up: go one cell up
- Down: go one cell down
- Left: go one cell left
- Right: go one cell right

Answer each turn with one action in the form <answer>ACTION</answer>, for example: <answer>Up</answer>"""
LAKE = """Legend of the grid:
P = you
_ = ice
O = hole
G = goal

Actions:
- N: go one cell up
- S: go one cell down
- W: go one cell left
- E: go one cell right

Answer each turn with one action in the form <go>ACTION</go>, for example: <go>N</go>"""


async def play(tag: str, seed: int, *, rng: random.Random | None = None, **config: Any) -> Score:
    """One episode, solved, or guessed if there is an `rng`."""
    env = environments_of(tag, config).make(Task(task_id="t"))
    messages = list(await env.reset(seed))
    while True:
        assert SCRIPT.understands(messages, ())
        action = SCRIPT.guess(messages, (), rng) if rng else SCRIPT.solve(messages, ())
        step = await env.step(action)
        assert step.info["is_valid"]
        messages += [action, *step.observation]
        if step.terminated or step.truncated:
            score = await env.score()
            assert score is not None
            return score


def next_action(rules: str, *grid: str) -> str:
    return SCRIPT.solve([system(rules), user("\n".join(("Turn 1:", *grid, "Actions left: 9")))], ()).content


@pytest.mark.parametrize("tag", GAMES)
async def test_every_level_is_solved(tag: str):
    for seed in range(100):
        score = await play(tag, seed)
        assert score.metrics["success"] == 1.0, (tag, seed)
        assert score.metrics["n_effective"] == score.metrics["n_actions"]


@pytest.mark.parametrize("tag", GAMES)
async def test_a_guess_keeps_the_form_and_seldom_succeeds(tag: str):
    wins = [(await play(tag, seed, rng=random.Random(seed))).metrics["success"] for seed in range(60)]
    assert sum(wins) / len(wins) < 0.5


async def test_what_is_configured_otherwise_is_played_from_its_text():
    config = {
        "glyphs": {"wall": "=", "floor": "p", "target": "-", "box": "n", "player": "ö"},
        "actions": {"up": "n", "down": "s", "left": "w", "right": "move right"},
        "action_pattern": r"<think>.*?</think>\s*\((.*?)\)",
        "answer_example": "<think>ACTIONS</think> ({action})",
    }
    for seed in range(20):
        assert (await play("SimpleSokoban", seed, **config)).metrics["success"] == 1.0


async def test_slippery_ice_is_crossed_far_more_often_than_by_the_shortest_way():
    config = {"is_slippery": True, "max_steps": 30}
    seeds = range(30)
    careful = [(await play("FrozenLake", seed, **config)).metrics["success"] for seed in seeds]
    guessed = [(await play("FrozenLake", seed, rng=random.Random(seed), **config)).metrics["success"] for seed in seeds]
    assert sum(careful) >= 25
    assert sum(guessed) <= 15


async def test_harder_rooms_are_solved_too():
    for seed in range(5):
        score = await play("LargerSokoban", seed, num_boxes=3, max_steps=25, search_depth=25)
        assert score.metrics["success"] == 1.0, seed


@pytest.mark.parametrize(
    ("grid", "action"),
    [
        (("#####", "#PXO#", "#####"), "Right"),
        (("#####", "#OXP#", "#####"), "Left"),
        (("######", "#_O__#", "#_X__#", "#__P_#", "######"), "Left"),
        (("######", "#____#", "#PX_O#", "#____#", "######"), "Right"),
        (("#######", "#_____#", "#_XP_O#", "#_____#", "#######"), "Up"),
        (("#######", "#√PX_O#", "#######"), "Right"),
    ],
)
def test_the_shortest_solution_is_played(grid: tuple[str, ...], action: str):
    assert next_action(ROOM, *grid) == f"<answer>{action}</answer>"


def test_a_box_is_not_pushed_where_it_is_lost():
    assert next_action(ROOM, "######", "#____#", "#_X_O#", "#_P__#", "######") == "<answer>Left</answer>"


@pytest.mark.parametrize(
    "grid",
    [
        ("####", "#PX#", "#O_#", "####"),
        ("#####", "#P#X#", "#O#_#", "#####"),
        ("####", "#P√#", "####"),
        ("###", "#P#", "###"),
    ],
    ids=["a lost box", "a box out of reach", "a solved room", "an empty room"],
)
def test_a_room_without_a_solution_gets_a_valid_answer(grid: tuple[str, ...]):
    assert next_action(ROOM, *grid) in {f"<answer>{name}</answer>" for name in ("Up", "Down", "Left", "Right")}


def test_a_hopeless_giant_is_given_up_in_bounded_time():
    side = 30
    rows = [["_"] * side for _ in range(side)]
    for i in range(side):
        rows[0][i] = rows[-1][i] = rows[i][0] = rows[i][-1] = "#"
    for i in range(6):
        rows[10 + i % 2][5 + 3 * i] = "X"
        rows[1][1 + i] = "O"
    rows[20][20] = "P"
    started = time.process_time()
    assert next_action(ROOM, *("".join(row) for row in rows)).startswith("<answer>")
    assert time.process_time() - started < 10


@pytest.mark.parametrize(
    ("grid", "action"),
    [
        (("P__", "OO_", "G__"), "E"),
        (("P_", "OG"), "E"),
        (("PO", "_G"), "S"),
        (("GP", "__"), "W"),
        (("G_", "P_"), "N"),
    ],
)
def test_the_shortest_way_over_the_ice_is_taken(grid: tuple[str, ...], action: str):
    assert next_action(LAKE, *grid) == f"<go>{action}</go>"


def test_on_slippery_ice_the_safe_side_is_chosen():
    # Up slides left or right at worst, into the shore; right could slide down into the hole.
    assert next_action(f"The ice is slippery.\n{LAKE}", "___G", "P___", "OOO_") == "<go>N</go>"


def test_the_latest_grid_counts():
    messages = [system(LAKE), user("P_G\n___"), assistant("<go>E</go>"), user("_PG\n___"), assistant("G_P\n___")]
    assert SCRIPT.solve(messages, ()).content == "<go>E</go>"
    messages.append(user("__G\n__P\n\nActions left: 3"))
    assert SCRIPT.solve(messages, ()).content == "<go>N</go>"


def test_without_a_grid_the_actions_are_tried_in_turn():
    messages: list[Message] = [user("Pick one.\nActions: red, green, blue\nAnswer in the form [ACTION].")]
    said = []
    for _ in range(4):
        said.append(SCRIPT.solve(messages, ()))
        messages += [said[-1], user("no")]
    assert [message.content for message in said] == ["[red]", "[green]", "[blue]", "[red]"]
    assert {message.role for message in said} == {Role.ASSISTANT}
    guesses = {SCRIPT.guess(messages, (), random.Random(i)).content for i in range(20)}
    assert guesses == {"[red]", "[green]", "[blue]"}


def test_without_a_form_the_bare_action_is_said():
    assert SCRIPT.solve([user("Actions: 1, 2, 3.")], ()).content == "1"


def test_the_same_conversation_gets_the_same_answer():
    messages = [system(LAKE), user("P__\n_O_\n__G")]
    assert SCRIPT.solve(messages, ()) == SCRIPT.solve(list(messages), ())
    assert SCRIPT.guess(messages, (), random.Random(3)) == SCRIPT.guess(messages, (), random.Random(3))


@pytest.mark.parametrize(
    "messages", [[], [user("What is 2 + 2?")], [system("Answer."), user("Actions speak louder than words")]]
)
def test_other_conversations_are_left_to_others(messages: list[Message]):
    assert not SCRIPT.understands(messages, ())


def test_conversations_with_tools_are_left_to_others():
    assert SCRIPT.understands([system(ROOM)], ())
    assert not SCRIPT.understands([system(ROOM)], (ToolSpec(name="t", description="", parameters={}),))
