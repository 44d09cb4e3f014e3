"""Environments of gymnasium that can be played in text: actions by name or number, or text; drawings or plain values.

Needs the extra `gymnasium`. Each episode's environment is made, used and closed in a thread of its own.
"""

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

from msgspec import Struct

from outrider.core.bounds import Reward, check_bounds
from outrider.core.chat import Message, system, user
from outrider.core.errors import EnvError, InvalidInput
from outrider.core.extras import install_command
from outrider.core.task import Task
from outrider.env.adapter import EpisodeThread, with_task_seed
from outrider.env.games.answer import DEFAULT_PATTERN, AnswerForm
from outrider.env.protocol import Environment, Environments, Observation, Score, Step
from outrider.env.tools import answer_calls

_MAX_NAMED = 20
"""Up to so many actions are listed in full when the agent names none of them."""

_CONTROL = re.compile(r"\x1b\[(?P<codes>[\d;]*)(?P<end>[A-Za-z])")
_COLOURS = ("gray", "red", "green", "yellow", "blue", "magenta", "cyan", "white", "crimson")
_SECTION = re.compile(r"^ *## (?P<title>.+)$", re.MULTILINE)
_TOLD = {"description", "action space", "observation space", "rewards", "episode end"}
"""The sections of an environment's documentation that a player should know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    actions: tuple[str, ...]
    note: str = ""


_HERE = "You stand where the map is red."
_KNOWN: Mapping[str, _Known] = MappingProxyType(
    {
        "FrozenLake": _Known(actions=("Left", "Down", "Right", "Up"), note=_HERE),
        "FrozenLake8x8": _Known(actions=("Left", "Down", "Right", "Up"), note=_HERE),
        "CliffWalking": _Known(actions=("Up", "Right", "Down", "Left"), note="You stand at the x."),
        "CliffWalkingSlippery": _Known(actions=("Up", "Right", "Down", "Left"), note="You stand at the x."),
        "Blackjack": _Known(actions=("Stick", "Hit")),
        "Taxi": _Known(
            actions=("South", "North", "East", "West", "Pickup", "Dropoff"),
            note=(
                "In the map, yellow is your empty taxi, green your taxi with the passenger, blue the waiting passenger "
                "and magenta the destination."
            ),
        ),
    }
)
"""Names of actions that gymnasium itself has only in prose."""


class GymnasiumConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`kwargs` go to `gymnasium.make`; `actions` names the actions in their order; `instructions` replaces the rules.

    The form of an answer: see `AnswerForm`.
    """

    kwargs: Mapping[str, Any] = {}
    actions: tuple[str, ...] = ()
    instructions: str | None = None
    action_pattern: str = DEFAULT_PATTERN
    answer_example: str | None = None
    invalid_action_penalty: Reward = 0.0

    def __post_init__(self) -> None:
        check_bounds(self)
        AnswerForm(self.action_pattern, self.answer_example)


class GymnasiumEnvironments(Environments):
    """The environments of one id, or of one subclass of `gymnasium.Env`."""

    Config = GymnasiumConfig

    def __init__(self, config: GymnasiumConfig, *, id: str = "", kind: type | None = None) -> None:
        self.config = config
        self.form = AnswerForm(config.action_pattern, config.answer_example)
        self._draws: bool | None = None  # known when the first has been made
        gymnasium = _gymnasium()
        if kind is not None:
            self.name = kind.__name__
            self._make: Callable[..., Any] = kind
            return
        try:
            self.name = gymnasium.spec(id).name
        except (gymnasium.error.Error, ImportError) as exc:
            raise InvalidInput(f"gymnasium:{id}: {exc}") from exc
        self._make = partial(gymnasium.make, id, disable_env_checker=True)

    def make(self, task: Task) -> Environment:
        return with_task_seed(GymnasiumEnvironment(self), task)

    async def check(self) -> None:
        thread = EpisodeThread(self.name)
        try:
            await thread.call(lambda: self.open().close())
        except Exception as exc:
            raise InvalidInput(f"{self.name} cannot be made: {exc}") from exc
        finally:
            await thread.close(lambda: None)

    async def close(self) -> None: ...

    def open(self) -> Any:
        """A fresh environment of gymnasium, one that draws in text if it can. Blocks."""
        env = self._make(**self.config.kwargs, **({"render_mode": "ansi"} if self._draws else {}))
        if self._draws is None:
            self._draws = "ansi" in (env.metadata.get("render_modes") or ()) and "render_mode" not in self.config.kwargs
            if self._draws:
                env.close()
                return self.open()
        try:
            self.actions(env)
        except InvalidInput:
            env.close()
            raise
        return env

    def actions(self, env: Any) -> tuple[str, ...]:
        """The names of the actions of `env`, in order; empty: an action is a text."""
        spaces = _gymnasium().spaces
        space = env.action_space
        if isinstance(space, spaces.Text):
            return ()
        if not isinstance(space, spaces.Discrete):
            raise InvalidInput(
                f"{self.name} has the action space {space}; only Discrete and Text can be played in text"
            )
        known = _KNOWN.get(self.name)
        names = self.config.actions or (known.actions if known else ())
        if len(names) == int(space.n):
            return tuple(names)
        if self.config.actions:
            raise InvalidInput(f"{self.name} has {space.n} actions, but `actions` names {len(names)}")
        return tuple(str(int(space.start) + i) for i in range(int(space.n)))

    def instructions(self, env: Any) -> str:
        """The system message: the rules, the actions, the form of an answer."""
        rules = self.config.instructions
        if rules is None:
            known = _KNOWN.get(self.name)
            documented = _told(inspect.getdoc(type(env.unwrapped)) or self.name)
            rules = "\n\n".join(part for part in (documented, known.note if known else "") if part)
        names = self.actions(env)
        if env.render_mode == "ansi":
            rules += "\n\nColours are written as tags, such as <red>…</red>."
        if not names:
            return f"{rules}\n\nAnswer each turn in the form {self.form.write('ACTION')}"
        form = self.form.described(names[0])
        return f"{rules}\n\nActions: {', '.join(names)}\n\nAnswer each turn with one action {form}"


class GymnasiumEnvironment(Environment):
    """One episode."""

    def __init__(self, environments: GymnasiumEnvironments) -> None:
        self._environments = environments
        self._thread = EpisodeThread(environments.name)
        self._env: Any = None
        self._actions: tuple[str, ...] = ()
        self._seen = ""
        self._reward = 0.0
        self._n_actions = 0
        self._n_invalid = 0

    async def reset(self, seed: int | None = None) -> Observation:
        instructions, self._seen = await self._thread.call(self._begin, seed)
        return (system(instructions), user(self._seen))

    def _begin(self, seed: int | None) -> tuple[str, str]:
        self._env = self._environments.open()
        self._actions = self._environments.actions(self._env)
        # A seed of gymnasium is not negative.
        observation, _ = self._env.reset(seed=None if seed is None else seed % 2**63)
        return self._environments.instructions(self._env), self._view(observation)

    async def step(self, action: Message) -> Step:
        if self._env is None:
            raise EnvError("the episode has not begun: call reset", stage="env.step")
        self._n_actions += 1
        calls, _ = await answer_calls(action.tool_calls, ())
        written = None if calls else self._environments.form.find(action.content)
        chosen = None if written is None else self._choice(written)
        if chosen is None:
            return self._refuse(calls, written)
        self._seen, reward, terminated, truncated, info = await self._thread.call(self._act, chosen)
        self._reward += reward
        return Step((user(self._seen),), reward, terminated, truncated, info)

    def _act(self, chosen: int | str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self._env.step(chosen)
        return self._view(observation), float(reward), bool(terminated), bool(truncated), _plain(info)

    def _choice(self, written: str) -> int | str | None:
        """The action that the agent wrote, by its name, its number or as it stands."""
        space = self._env.action_space
        if not self._actions:
            return written if space.contains(written) else None
        names = [name.casefold() for name in self._actions]
        first = int(space.start)
        if written.casefold() in names:
            return first + names.index(written.casefold())
        numbers = [str(first + i) for i in range(len(names))]
        return first + numbers.index(written) if written in numbers else None

    def _refuse(self, calls: Observation, written: str | None) -> Step:
        """An invalid answer is told so; the world stands still."""
        self._n_invalid += 1
        penalty = self._environments.config.invalid_action_penalty
        self._reward += penalty
        example = self._environments.form.write(self._actions[0] if self._actions else "…")
        if calls:
            problem = "There are no tools here."
        elif written is None:
            problem = f"There was no answer in the form {example}."
        else:
            problem = f"{written[:40]!r} is not an action."
        if 0 < len(self._actions) <= _MAX_NAMED:
            problem += f" The actions are {', '.join(self._actions)}."
        return Step((*calls, user(f"{problem}\n{self._seen}")), penalty)

    def _view(self, observation: Any) -> str:
        if self._env.render_mode == "ansi":
            drawn = self._env.render()
            return readable(drawn if isinstance(drawn, str) else "\n".join(map(str, drawn)))
        return observation if isinstance(observation, str) else str(_plain(observation))

    async def score(self) -> Score:
        metrics = {"n_actions": float(self._n_actions), "n_invalid": float(self._n_invalid)}
        return Score(reward=self._reward, output=self._seen, metrics=metrics)

    async def close(self) -> None:
        await self._thread.close(self._end)

    def _end(self) -> None:
        env, self._env = self._env, None
        if env is not None:
            env.close()


def readable(drawing: str) -> str:
    """A drawing for a terminal as plain text: its colours become tags, its other control codes go."""
    parts = []
    tags: list[str] = []
    position = 0
    for control in _CONTROL.finditer(drawing):
        parts.append(drawing[position : control.start()])
        position = control.end()
        if control["end"] != "m":
            continue
        codes = [int(code) for code in control["codes"].split(";") if code]
        colour = next((code % 10 for code in codes if 30 <= code <= 38 or 40 <= code <= 48), None)  # noqa: PLR2004
        if colour is not None:
            tags.append(_COLOURS[colour])
            parts.append(f"<{tags[-1]}>")
        elif tags and not any(codes):
            parts.append(f"</{tags.pop()}>")
    parts += [drawing[position:], *(f"</{tag}>" for tag in reversed(tags))]
    return "".join(parts).strip("\n")


def _told(documentation: str) -> str:
    """What a player should know of an environment's documentation."""
    titles = list(_SECTION.finditer(documentation))
    if not titles:
        return documentation.strip()
    told = [documentation[: titles[0].start()].strip()]
    for title, following in zip(titles, [*titles[1:], None], strict=True):
        if title["title"].strip().casefold() in _TOLD:
            told.append(documentation[title.start() : following.start() if following else None].strip())
    return "\n\n".join(part for part in told if part)


def _plain(value: Any) -> Any:
    """`value` without numpy: what it came from, JSON-like where that is possible, text where it is not."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        items = [_plain(item) for item in value]
        return tuple(items) if isinstance(value, tuple) else items
    if value is None or type(value) in {bool, int, float, str}:
        return value
    convert = getattr(value, "tolist", None)
    return convert() if convert is not None else str(value)


def _gymnasium() -> Any:
    try:
        import gymnasium  # noqa: PLC0415 an extra
    except ImportError as exc:
        raise InvalidInput(f"environments of gymnasium need it: {install_command('gymnasium')}") from exc
    return gymnasium
