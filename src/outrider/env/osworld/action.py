"""What a model's action comes to, and the checks that all action spaces share."""

import math
from dataclasses import dataclass
from enum import StrEnum

from outrider.core.errors import ToolRefusal
from outrider.pool.computer import Button, Input, MoveTo, Pause, Press, Scroll, Text

Screen = tuple[int, int]
"""Width and height in pixels."""

MOST_CHARS = 20_000
MOST_CLICKS = 1_000
"""Of the wheel, up and across together."""
MOST_PAUSE_SECONDS = 60.0
_SHOWN_CHARS = 60
_DRAG_PAUSE = Pause(0.15)
"""Whoever is dragged must have noticed the button before the pointer moves on."""

CLICK_SECONDS = 0.05
"""Between two clicks of one action: programs do not count clicks that come faster."""


class Special(StrEnum):
    """Actions that touch nothing."""

    WAIT = "WAIT"
    FAIL = "FAIL"
    """The task cannot be done; ends the episode."""

    DONE = "DONE"
    """The task is done; ends the episode."""

    @property
    def ends(self) -> bool:
        return self is not Special.WAIT


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One action, ready to be carried out: input, or a program for the machine's own Python, or neither.

    `needs_python` says why it is a program.
    """

    name: str
    events: tuple[Input, ...] = ()
    program: str | None = None
    needs_python: str = ""
    special: Special | None = None


def shown(value: object) -> str:
    """A value in a few characters, whatever it is."""
    try:
        return repr(value)[:_SHOWN_CHARS]
    except (RecursionError, ValueError):
        return f"such a long {type(value).__name__}"


def special_named(text: str) -> Action | None:
    """WAIT, FAIL or DONE, if that is all the text says."""
    word = text.strip()
    return Action(name=word, special=Special(word)) if word in Special.__members__ else None


def number(value: object, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not _is_finite(value):
        raise ToolRefusal(f"{name} is a number, not {shown(value)}")
    return float(value)


def whole(value: object, name: str, *, least: int, most: int) -> int:
    """A whole number in a range; a fraction is cut off."""
    found = int(number(value, name))
    if not least <= found <= most:
        raise ToolRefusal(f"{name} is {found}; it must be from {least} to {most}")
    return found


def place(x: object, y: object, screen: Screen) -> MoveTo:
    """A place that is on the screen."""
    width, height = screen
    if width <= 0 or height <= 0:
        raise ToolRefusal("this machine has no screen, so nothing on it can be pointed at")
    return MoveTo(whole(x, "x", least=0, most=width - 1), whole(y, "y", least=0, most=height - 1))


def maybe_place(x: object, y: object, screen: Screen) -> tuple[Input, ...]:
    """Nothing if neither is given: what follows happens where the pointer is."""
    if x is None and y is None:
        return ()
    if x is None or y is None:
        raise ToolRefusal("x and y go together: give both, or neither for where the pointer is")
    return (place(x, y, screen),)


def button_named(name: object) -> Button:
    if name is None:
        return Button.LEFT
    if not isinstance(name, str) or name.lower() not in {str(button) for button in Button}:
        raise ToolRefusal(f"button is left, right or middle, not {shown(name)}")
    return Button(name.lower())


def clicks(button: Button, n_clicks: int = 1) -> tuple[Input, ...]:
    one: tuple[Input, ...] = (Press(button), Press(button, down=False))
    return (*one, *(Pause(CLICK_SECONDS), *one) * (n_clicks - 1))


def drag(target: MoveTo, button: Button) -> tuple[Input, ...]:
    """From where the pointer is. It arrives in two moves, since programs take a single one for no drag at all."""
    near = MoveTo(max(target.x - 1, 0), target.y)
    return (Press(button), _DRAG_PAUSE, near, _DRAG_PAUSE, target, _DRAG_PAUSE, Press(button, down=False))


def turned(dx: object, dy: object) -> tuple[Input, ...]:
    across = whole(dx, "dx", least=-MOST_CLICKS, most=MOST_CLICKS)
    up = whole(dy, "dy", least=-MOST_CLICKS, most=MOST_CLICKS)
    if abs(across) + abs(up) > MOST_CLICKS:
        raise ToolRefusal(f"dx and dy together are more than {MOST_CLICKS} clicks of the wheel")
    return (Scroll(dx=across, dy=up),)


def typed(text: object) -> tuple[Input, ...]:
    """Text that a keyboard could have typed."""
    if not isinstance(text, str):
        raise ToolRefusal(f"text is a text, not {shown(text)}")
    if len(text) > MOST_CHARS:
        raise ToolRefusal(f"the text has {len(text)} characters; type at most {MOST_CHARS} at once")
    wrong = next((char for char in text if not (char.isprintable() or char in "\n\r\t\xa0")), None)
    if wrong is not None:
        raise ToolRefusal(f"the text has the character {wrong!r}, which cannot be typed; press keys instead")
    return (Text(text),) if text else ()


def pause(seconds: object) -> tuple[Input, ...]:
    found = number(seconds, "the pause in seconds")
    if not 0 <= found <= MOST_PAUSE_SECONDS:
        raise ToolRefusal(f"a pause of {found:g} s cannot be made; it must be from 0 to {MOST_PAUSE_SECONDS:g} s")
    return (Pause(found),)


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:
        return False
