"""The script for games: reads rules, legend and grid as a model would have to, and searches for the best move.

FrozenLake is solved by breadth-first search, on slippery ice by the chance to arrive in the moves that are left;
Sokoban by A* over pushes. Where only a list of actions can be read, they are tried in turn.
"""

import heapq
import math
import random
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from outrider.core.chat import Message, Role, ToolSpec, assistant

Cell = tuple[int, int]
Direction = str
Boxes = tuple[Cell, ...]

OFFSETS: Mapping[Direction, Cell] = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}

MAX_WALKED = 200_000
"""How many cells are walked in thought, first for the shortest solution, then as many again for any."""

MAX_HORIZON = 200
MAX_CHANCES = 40_000
"""On slippery ice: how many moves are thought ahead, and how many cells times moves at most."""

_LEGEND = re.compile(r"^(\S) = (.+)$", re.MULTILINE)
_MOVE = re.compile(r"^- (.+): go one cell (up|down|left|right)$", re.MULTILINE)
_LISTED = re.compile(r"^Actions: (.+)$", re.MULTILINE)
_FORM = re.compile(r"in the form (.*?ACTION.*?)(?:, for example|\.?$)", re.MULTILINE)
_LEFT = re.compile(r"^Actions left: (\d+)$", re.MULTILINE)

_ICE = {"you", "ice", "hole", "goal"}
_ROOM = {"wall", "floor", "target", "box", "box on a target", "you", "you on a target"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rules:
    """What the opening says. `moves` names the directions, `actions` whatever may be answered."""

    meanings: Mapping[str, str]
    moves: Mapping[Direction, str]
    actions: tuple[str, ...]
    form: str
    is_slippery: bool

    def answer(self, action: str) -> Message:
        return assistant(self.form.replace("ACTION", action))


class GamesScript:
    """Plays every grid game whose legend it can read; guesses in whatever lists its actions."""

    def understands(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> bool:
        return not tools and _rules(messages) is not None

    def solve(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:  # noqa: ARG002 there are none
        rules = _known(messages)
        grid = _last_grid(messages, rules.meanings)
        meant = set(rules.meanings.values())
        direction = None
        if grid and set(OFFSETS) <= set(rules.moves):
            if meant >= _ROOM:
                direction = _way_to_push(grid)
            elif meant >= _ICE:
                direction = _way_over_ice(grid, _moves_left(messages) if rules.is_slippery else None)
        if direction is not None:
            return rules.answer(rules.moves[direction])
        n_answers = sum(message.role is Role.ASSISTANT for message in messages)
        return rules.answer(rules.actions[n_answers % len(rules.actions)])

    def guess(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],  # noqa: ARG002 there are none
        rng: random.Random,
    ) -> Message:
        rules = _known(messages)
        return rules.answer(rules.actions[int(rng.random() * len(rules.actions))])

    def chance(self, messages: Sequence[Message], tools: Sequence[ToolSpec], message: Message) -> float:  # noqa: ARG002
        rules = _known(messages)
        return sum(rules.answer(action) == message for action in rules.actions) / len(rules.actions)


def _known(messages: Sequence[Message]) -> _Rules:
    rules = _rules(messages)
    if rules is None:
        raise ValueError("the conversation names no actions")
    return rules


def _rules(messages: Sequence[Message]) -> _Rules | None:
    """The rules in the first message that names actions."""
    for message in messages:
        text = message.content
        if message.role is Role.ASSISTANT:
            continue
        moves = {direction: name for name, direction in _MOVE.findall(text)}
        listed = _LISTED.search(text)
        actions = tuple(moves.values()) or (tuple(listed[1].rstrip(".").split(", ")) if listed else ())
        if not actions:
            continue
        form = _FORM.search(text)
        return _Rules(
            meanings=dict(_LEGEND.findall(text)),
            moves=moves,
            actions=actions,
            form=form[1] if form else "ACTION",
            is_slippery="slippery" in text,
        )
    return None


def _last_grid(messages: Sequence[Message], meanings: Mapping[str, str]) -> dict[Cell, str]:
    """What each cell of the latest grid shows, in the words of the legend; empty if there is no grid."""
    for message in reversed(messages):
        if message.role is Role.ASSISTANT:
            continue
        rows: list[str] = []
        for line in reversed(message.content.splitlines()):
            if line and all(glyph in meanings for glyph in line) and (not rows or len(line) == len(rows[-1])):
                rows.append(line)
            elif len(rows) > 1:
                break
            else:
                rows.clear()
        if len(rows) > 1:
            lines = enumerate(reversed(rows))
            return {(row, column): meanings[glyph] for row, line in lines for column, glyph in enumerate(line)}
    return {}


def _moves_left(messages: Sequence[Message]) -> int:
    found = _LEFT.search(messages[-1].content) if messages else None
    return int(found[1]) if found else MAX_HORIZON


def _after(cell: Cell, direction: Direction, n_cells: int = 1) -> Cell:
    down, right = OFFSETS[direction]
    return cell[0] + n_cells * down, cell[1] + n_cells * right


def _cells(grid: Mapping[Cell, str], *meanings: str) -> list[Cell]:
    return [cell for cell, meaning in grid.items() if meaning in meanings]


def _walk(start: Cell, free: frozenset[Cell]) -> dict[Cell, tuple[int, Direction]]:
    """How far each free cell is from `start`, and which way the first step goes."""
    reached: dict[Cell, tuple[int, Direction]] = {start: (0, "")}
    queue = deque([start])
    while queue:
        cell = queue.popleft()
        n_moves, first = reached[cell]
        for direction in OFFSETS:
            there = _after(cell, direction)
            if there not in reached and there in free:
                reached[there] = (n_moves + 1, first or direction)
                queue.append(there)
    return reached


def _way_over_ice(grid: Mapping[Cell, str], n_left_if_slippery: int | None) -> Direction | None:
    """The first step of the shortest way to the goal, or of the safest one if the ice is slippery."""
    players, goals = _cells(grid, "you"), _cells(grid, "goal")
    if not players or not goals:
        return None
    if n_left_if_slippery is not None:
        chance, direction = _best_chance(grid, players[0], n_left_if_slippery)
        if chance > 0:
            return direction
    _, first = _walk(players[0], frozenset(_cells(grid, "ice", "goal"))).get(goals[0], (0, ""))
    return first or None


def _best_chance(grid: Mapping[Cell, str], player: Cell, n_left: int) -> tuple[float, Direction]:
    """The best chance to reach the goal within `n_left` moves that slip to either side as often as they do not."""
    horizon = max(1, min(n_left, MAX_HORIZON, MAX_CHANCES // len(grid)))
    chances = {cell: float(meaning == "goal") for cell, meaning in grid.items()}
    open_cells = _cells(grid, "you", "ice")
    best: dict[Cell, tuple[float, Direction]] = {}
    for _ in range(horizon):
        best = {cell: max(_chances(cell, chances), key=lambda found: found[0]) for cell in open_cells}
        chances.update((cell, chance) for cell, (chance, _) in best.items())
    return best[player]


def _chances(cell: Cell, chances: Mapping[Cell, float]) -> Iterator[tuple[float, Direction]]:
    for direction in OFFSETS:
        sides = ("left", "right") if direction in {"up", "down"} else ("up", "down")
        yield sum(chances.get(_after(cell, way), chances[cell]) for way in (direction, *sides)) / 3, direction


@dataclass(frozen=True, slots=True, kw_only=True)
class _Room:
    """What does not move. `n_pushes` is how many pushes a box is from the nearest target; elsewhere it is lost."""

    floor: frozenset[Cell]
    targets: frozenset[Cell]
    n_pushes: Mapping[Cell, int]

    def to_go(self, boxes: Boxes) -> float:
        """No fewer moves than this are needed; infinity: a box is lost."""
        return sum(self.n_pushes.get(box, math.inf) for box in boxes)


def _room(grid: Mapping[Cell, str]) -> _Room:
    floor = frozenset(cell for cell, meaning in grid.items() if meaning != "wall")
    targets = frozenset(_cells(grid, "target", "box on a target", "you on a target"))
    n_pushes = dict.fromkeys(targets, 0)
    queue = deque(sorted(targets))
    while queue:
        cell = queue.popleft()
        for direction in OFFSETS:  # pulled back from a target: the box to `there`, the player one cell beyond
            there = _after(cell, direction)
            if there in floor and there not in n_pushes and _after(cell, direction, 2) in floor:
                n_pushes[there] = n_pushes[cell] + 1
                queue.append(there)
    return _Room(floor=floor, targets=targets, n_pushes=n_pushes)


def _way_to_push(grid: Mapping[Cell, str]) -> Direction | None:
    """The first move of the shortest solution found; of the most promising way if none was found."""
    players = _cells(grid, "you", "you on a target")
    boxes = tuple(sorted(_cells(grid, "box", "box on a target")))
    if not players or not boxes:
        return None
    room = _room(grid)
    direction, is_solution = _search(room, players[0], boxes, weight=1.0)
    if not is_solution:
        any_direction, is_solution = _search(room, players[0], boxes, weight=5.0)
        direction = any_direction if is_solution else direction
    return direction


def _search(room: _Room, player: Cell, boxes: Boxes, *, weight: float) -> tuple[Direction | None, bool]:
    """A* over pushes; a push costs the walk to it and itself. The first move, and whether it leads to a solution."""
    start = (player, boxes)
    cost = {start: 0}
    first_moves: dict[tuple[Cell, Boxes], Direction] = {start: ""}
    queue: list[tuple[float, float, tuple[Cell, Boxes]]] = [(0.0, room.to_go(boxes), start)]
    nearest, promising = math.inf, start
    done: set[tuple[Cell, Boxes]] = set()
    max_states = MAX_WALKED // len(room.floor)
    while queue and len(done) < max_states:
        _, to_go, state = heapq.heappop(queue)
        if state in done:
            continue
        done.add(state)
        if room.targets.issuperset(state[1]):
            return first_moves[state] or None, True
        if to_go < nearest and state != start:
            nearest, promising = to_go, state
        for n_moves, first, following in _pushes(room, *state):
            new_cost = cost[state] + n_moves
            if new_cost < cost.get(following, math.inf) and (left := room.to_go(following[1])) < math.inf:
                cost[following] = new_cost
                first_moves[following] = first_moves[state] or first
                heapq.heappush(queue, (new_cost + weight * left, left, following))
    return first_moves[promising] or None, False


def _pushes(room: _Room, player: Cell, boxes: Boxes) -> Iterator[tuple[int, Direction, tuple[Cell, Boxes]]]:
    """Every push that can be made next: its cost in moves, its first move, and what it leads to."""
    free = room.floor.difference(boxes)
    reached = _walk(player, free)
    for box in boxes:
        for direction in OFFSETS:
            beyond, behind = _after(box, direction), _after(box, direction, -1)
            if beyond in free and behind in reached:
                n_moves, first = reached[behind]
                moved = tuple(sorted(beyond if other == box else other for other in boxes))
                yield n_moves + 1, first or direction, (box, moved)
