"""Grid games as environments: the rules are the system message, the grid is shown each turn, an answer is one move."""

import random
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from outrider.core.chat import Message, system, user
from outrider.core.errors import EnvError
from outrider.core.task import Task
from outrider.env.adapter import with_task_seed
from outrider.env.games.answer import AnswerForm
from outrider.env.games.config import GameConfig
from outrider.env.games.grid import Direction
from outrider.env.protocol import Environment, Environments, Observation, Score, Step
from outrider.env.tools import answer_calls

C = TypeVar("C", bound=GameConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """What a move did. `is_effective`: something changed; `outcome` says how the game has ended, if it has."""

    reward: float
    is_effective: bool
    outcome: str = ""


class Game(Protocol):
    """One level being played. Knows nothing of messages."""

    def move(self, direction: Direction) -> Move: ...

    def grid(self) -> str:
        """The level as it stands, a line a row."""
        ...

    @property
    def is_won(self) -> bool: ...


class GameEnvironments(Environments, Generic[C]):
    """The games of one tag. What a subclass says of its game is all that an agent learns about it."""

    Config: ClassVar[type[GameConfig]]
    task_fields = frozenset({"seed"})

    def __init__(self, config: C) -> None:
        self.config = config
        self._form = AnswerForm(config.action_pattern, config.answer_example)

    @abstractmethod
    def rules(self) -> str:
        """What the game is about, in a sentence or two."""

    @abstractmethod
    def legend(self) -> tuple[tuple[str, str], ...]:
        """Each glyph and its meaning."""

    @abstractmethod
    def draw(self, rng: random.Random) -> Game:
        """A fresh level. Raises `InvalidInput` if the configuration allows of none."""

    def make(self, task: Task) -> Environment:
        return with_task_seed(GameEnvironment(self, self._form), task)

    async def check(self) -> None:
        self.draw(random.Random(0))

    async def close(self) -> None: ...

    def instructions(self) -> str:
        """The system message."""
        actions = self.config.actions
        legend = "\n".join(f"{glyph} = {meaning}" for glyph, meaning in self.legend())
        moves = "\n".join(f"- {actions.name_of(direction)}: go one cell {direction}" for direction in Direction)
        return (
            f"{self.rules()}\n\nLegend of the grid:\n{legend}\n\nActions:\n{moves}\n\n"
            f"Answer each turn with one action {self._form.described(actions.name_of(Direction.UP))}"
        )


class GameEnvironment(Environment):
    """One game from its opening to its end."""

    def __init__(self, games: GameEnvironments[Any], form: AnswerForm) -> None:
        self._games = games
        self._config: GameConfig = games.config
        self._form = form
        self._game: Game | None = None
        self._outcome = ""
        self._reward = 0.0
        self._n_actions = 0
        self._n_invalid = 0
        self._n_effective = 0

    async def reset(self, seed: int | None = None) -> Observation:
        if self._game is not None:
            raise EnvError("a game is played once; make another environment", stage="env.reset")
        self._game = self._games.draw(random.Random(seed))
        return (system(self._games.instructions()), user(self._view(self._game)))

    async def step(self, action: Message) -> Step:
        if self._game is None or self._outcome:
            when = "has not begun: call reset" if self._game is None else "is over"
            raise EnvError(f"the game {when}", stage="env.step")
        self._n_actions += 1
        calls, _ = await answer_calls(action.tool_calls, ())
        written = None if calls else self._form.find(action.content)
        direction = None if written is None else self._config.actions.direction_of(written)
        if direction is None:
            return self._refuse(self._game, calls, written)
        move = self._game.move(direction)
        self._outcome = move.outcome
        self._n_effective += move.is_effective
        info = {"action": self._config.actions.name_of(direction), "is_valid": True, "is_effective": move.is_effective}
        said = "" if move.is_effective or move.outcome else "Nothing moved.\n"
        return self._step(self._game, (), said, reward=move.reward, terminated=bool(move.outcome), info=info)

    def _refuse(self, game: Game, calls: Observation, written: str | None) -> Step:
        """An invalid answer costs a step and the penalty, and moves nothing."""
        self._n_invalid += 1
        names = [self._config.actions.name_of(direction) for direction in Direction]
        if calls:
            problem = "There are no tools here."
        elif written is None:
            problem = f"There was no answer in the form {self._form.write(names[0])}."
        else:
            problem = f"{written[:40]!r} is not an action; the actions are {', '.join(names)}."
        info = {"action": None, "is_valid": False, "is_effective": False}
        penalty = self._config.invalid_action_penalty
        return self._step(game, calls, f"{problem}\n", reward=penalty, terminated=False, info=info)

    def _step(
        self, game: Game, answers: Observation, said: str, *, reward: float, terminated: bool, info: dict[str, Any]
    ) -> Step:
        self._reward += reward
        truncated = not terminated and self._n_left == 0
        if truncated:
            self._outcome = "ran out of steps"
        observation = (*answers, user(said + self._view(game)))
        return Step(observation, reward, terminated, truncated, info)

    @property
    def _n_left(self) -> int | None:
        return None if self._config.max_steps is None else self._config.max_steps - self._n_actions

    def _view(self, game: Game) -> str:
        if self._outcome:
            return f"The game is over: you {self._outcome}.\n{game.grid()}"
        left = "" if self._n_left is None else f"\nActions left: {self._n_left}"
        return f"Turn {self._n_actions + 1}:\n{game.grid()}{left}"

    async def score(self) -> Score:
        game = self._game
        return Score(
            reward=self._reward,
            output=game.grid() if game else None,
            metrics={
                "success": float(game is not None and game.is_won),
                "n_actions": float(self._n_actions),
                "n_invalid": float(self._n_invalid),
                "n_effective": float(self._n_effective),
            },
            explanation=self._outcome or "stopped before the end",
        )

    async def close(self) -> None: ...
