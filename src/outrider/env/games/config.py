"""What can be set on every grid game: its limits, the names of its actions, and the form of an answer."""

import msgspec
from msgspec import Struct

from outrider.core.bounds import PositiveCount, Reward, check_bounds
from outrider.env.games.answer import DEFAULT_PATTERN, AnswerForm
from outrider.env.games.grid import Direction


class Actions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the four moves are called."""

    up: str = "Up"
    down: str = "Down"
    left: str = "Left"
    right: str = "Right"

    def __post_init__(self) -> None:
        names = [self.name_of(direction) for direction in Direction]
        if any(not name or name != name.strip() or "\n" in name for name in names):
            raise ValueError("an action's name must be one line without blanks around it")
        if len({name.casefold() for name in names}) < len(names):
            raise ValueError("the names of the actions must differ in more than case")

    def name_of(self, direction: Direction) -> str:
        name: str = getattr(self, direction)
        return name

    def direction_of(self, name: str) -> Direction | None:
        wanted = name.casefold()
        return next((direction for direction in Direction if self.name_of(direction).casefold() == wanted), None)


class GameConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`max_steps` counts every answer, invalid ones too; None: no limit. The rest: see `AnswerForm`."""

    max_steps: PositiveCount | None = 10
    actions: Actions = Actions()
    action_pattern: str = DEFAULT_PATTERN
    answer_example: str | None = None
    invalid_action_penalty: Reward = -0.1

    def __post_init__(self) -> None:
        check_bounds(self)
        form = AnswerForm(self.action_pattern, self.answer_example)
        for name in msgspec.structs.astuple(self.actions):
            if form.find(form.write(name)) != name:
                raise ValueError(f"the action {name!r} cannot be written in the form {form.write('…')}")


def check_glyphs(glyphs: Struct) -> None:
    """Refuse glyphs that could not be told apart in a grid."""
    values = msgspec.structs.asdict(glyphs)
    for name, glyph in values.items():
        if len(glyph) != 1 or not glyph.isprintable() or glyph.isspace():
            raise ValueError(f"{name} must be one visible character, not {glyph!r}")
    if len(set(values.values())) < len(values):
        raise ValueError("the glyphs must all differ")
