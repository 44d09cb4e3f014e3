"""Mouse and keyboard as PyAutoGUI code, the way OSWorld sends them: written from events, and read back into them."""

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, assert_never

from outrider.core.errors import MachineRefusal
from outrider.pool.computer import Button, Input, Key, MoveTo, Pause, Press, Scroll, Text

PREAMBLE = "import pyautogui; import time; pyautogui.FAILSAFE = False; pyautogui.PAUSE = 0"
_BUTTONS = MappingProxyType(
    {button.value: button for button in Button} | {"primary": Button.LEFT, "secondary": Button.RIGHT}
)
_SETTINGS = frozenset({"FAILSAFE", "PAUSE", "MINIMUM_DURATION", "MINIMUM_SLEEP"})
MAX_EVENTS = 10_000


class _Unreadable(Exception):
    """The code does more than name mouse and keyboard events one after the other."""


def written(events: Iterable[Input]) -> str:
    """Code that does this with PyAutoGUI. Raises `MachineRefusal` for text that it has no keys for."""
    return "; ".join((PREAMBLE, *(step for event in events for step in _steps(event))))


def _steps(event: Input) -> Iterator[str]:
    match event:
        case MoveTo(x, y):
            yield f"pyautogui.moveTo({x}, {y})"
        case Press(button, down):
            yield f"pyautogui.mouse{'Down' if down else 'Up'}(button={button.value!r})"
        case Scroll(dx, dy):
            if dy:
                yield f"pyautogui.vscroll({dy})"
            if dx:
                yield f"pyautogui.hscroll({dx})"
        case Key(name, down):
            yield f"pyautogui.key{'Down' if down else 'Up'}({name!r})"
        case Text(text):
            yield from _typing(text)
        case Pause(seconds):
            yield f"time.sleep({seconds!r})"
        case _:
            assert_never(event)


def _typing(text: str) -> Iterator[str]:
    """PyAutoGUI types `>` for `<` on some layouts, so that is pressed as the keys it is made of."""
    if foreign := sorted({sign for sign in text if not (sign.isascii() and (sign.isprintable() or sign in "\n\t"))}):
        raise MachineRefusal(f"PyAutoGUI has no keys for {''.join(foreign)!r}", stage="machine.input")
    first, *rest = text.split("<")
    if first:
        yield f"pyautogui.write({first!r})"
    for part in rest:
        yield "pyautogui.hotkey('shift', ',')"
        if part:
            yield f"pyautogui.write({part!r})"


def read(code: str) -> tuple[Input, ...] | None:
    """The events that the code names; None if it does anything else, or depends on what is there."""
    try:
        events = tuple(event for statement in ast.parse(code.strip()).body for event in _events(statement))
    except (_Unreadable, SyntaxError, ValueError, TypeError, KeyError, RecursionError):
        return None
    return events if len(events) <= MAX_EVENTS else None


def _events(statement: ast.stmt) -> Iterable[Input]:
    match statement:
        case ast.Import() | ast.Pass():
            return ()
        case ast.Assign(targets=[ast.Attribute(value=ast.Name(id="pyautogui"), attr=name)]) if name in _SETTINGS:
            return ()
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=module), attr=name)) as call):
            arguments = [ast.literal_eval(argument) for argument in call.args]
            named = {_named(keyword): ast.literal_eval(keyword.value) for keyword in call.keywords}
            return _FUNCTIONS[f"{module}.{name}"](*arguments, **named)
    raise _Unreadable


def _named(keyword: ast.keyword) -> str:
    if keyword.arg is None:
        raise _Unreadable
    return keyword.arg


def _move(x: Any = None, y: Any = None, duration: float = 0.0, *_: Any, **__: Any) -> list[Input]:
    place = _place(x, y)
    return [*place, *_pause(duration)]


def _place(x: Any, y: Any) -> list[Input]:
    if isinstance(x, tuple | list):
        x, y = x
    if x is None and y is None:
        return []
    if not (isinstance(x, int | float) and isinstance(y, int | float)):
        raise _Unreadable  # one coordinate alone, or a picture to look for
    return [MoveTo(round(x), round(y))]


def _pause(seconds: float) -> list[Input]:
    return [Pause(float(seconds))] if seconds > 0 else []


CLICK_SECONDS = 0.05
"""Between two clicks at the least: programs do not count clicks that come faster."""


def _click(
    x: Any = None, y: Any = None, clicks: int = 1, interval: float = 0.0, button: str = "left", *_: Any, **__: Any
) -> list[Input]:
    one = _one_click(button)
    between = _pause(max(interval, CLICK_SECONDS))
    return [*_place(x, y), *one, *(event for _ in range(min(clicks, MAX_EVENTS) - 1) for event in (*between, *one))]


def _one_click(button: str) -> list[Input]:
    pressed = _BUTTONS[button.lower()]
    return [Press(pressed, down=True), Press(pressed, down=False)]


def _clicks(n_clicks: int, button: str) -> Callable[..., list[Input]]:
    def click(x: Any = None, y: Any = None, interval: float = 0.0, button: str = button, **_: Any) -> list[Input]:
        return _click(x, y, n_clicks, interval, button)

    return click


def _press_button(*, down: bool) -> Callable[..., list[Input]]:
    def press(x: Any = None, y: Any = None, button: str = "left", **_: Any) -> list[Input]:
        return [*_place(x, y), Press(_BUTTONS[button.lower()], down=down)]

    return press


def _drag(x: Any, y: Any = None, duration: float = 0.0, *_: Any, button: str = "left", **__: Any) -> list[Input]:
    pressed = _BUTTONS[button.lower()]
    return [Press(pressed, down=True), *_pause(duration), *_place(x, y), Press(pressed, down=False)]


def _scroll(clicks: float, x: Any = None, y: Any = None, **_: Any) -> list[Input]:
    return [*_place(x, y), Scroll(0, int(clicks))]


def _scroll_sideways(clicks: float, x: Any = None, y: Any = None, **_: Any) -> list[Input]:
    return [*_place(x, y), Scroll(int(clicks), 0)]


def _press_keys(keys: str | Sequence[str], presses: int = 1, interval: float = 0.0, **_: Any) -> list[Input]:
    names = [keys] if isinstance(keys, str) else list(keys)
    once = [event for name in names for event in (*_key(name), *_pause(interval))]
    return once * min(presses, MAX_EVENTS)


def _key(name: str) -> list[Input]:
    return [Key(_key_name(name), down=True), Key(_key_name(name), down=False)]


def _key_name(name: Any) -> str:
    if not isinstance(name, str) or not name:
        raise _Unreadable
    return name if len(name) == 1 else name.lower()


def _hotkey(*keys: Any, interval: float = 0.0, **_: Any) -> list[Input]:
    names = [_key_name(key) for part in keys for key in (part if isinstance(part, list | tuple) else [part])]
    down: list[Input] = [event for name in names for event in (Key(name, down=True), *_pause(interval))]
    return [*down, *(Key(name, down=False) for name in reversed(names))]


def _type(message: str | Sequence[str], interval: float = 0.0, *_: Any, **__: Any) -> list[Input]:
    if not isinstance(message, str):
        return _press_keys(message, interval=interval)
    if not interval:
        return [Text(message)] if message else []
    return [event for sign in message for event in (Text(sign), *_pause(interval))]


def _key_down(key: str, **_: Any) -> list[Input]:
    return [Key(_key_name(key), down=True)]


def _key_up(key: str, **_: Any) -> list[Input]:
    return [Key(_key_name(key), down=False)]


_FUNCTIONS: Mapping[str, Callable[..., list[Input]]] = MappingProxyType(
    {
        "pyautogui.moveTo": _move,
        "pyautogui.click": _click,
        "pyautogui.leftClick": _clicks(1, "left"),
        "pyautogui.rightClick": _clicks(1, "right"),
        "pyautogui.middleClick": _clicks(1, "middle"),
        "pyautogui.doubleClick": _clicks(2, "left"),
        "pyautogui.tripleClick": _clicks(3, "left"),
        "pyautogui.mouseDown": _press_button(down=True),
        "pyautogui.mouseUp": _press_button(down=False),
        "pyautogui.dragTo": _drag,
        "pyautogui.scroll": _scroll,
        "pyautogui.vscroll": _scroll,
        "pyautogui.hscroll": _scroll_sideways,
        "pyautogui.press": _press_keys,
        "pyautogui.keyDown": _key_down,
        "pyautogui.keyUp": _key_up,
        "pyautogui.hotkey": _hotkey,
        "pyautogui.write": _type,
        "pyautogui.typewrite": _type,
        "pyautogui.sleep": _pause,
        "time.sleep": _pause,
    }
)
