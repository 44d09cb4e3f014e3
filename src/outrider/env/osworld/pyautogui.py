"""The action space `pyautogui`: Python text that is read here and never run here.

Plain calls of `pyautogui.*` and `time.sleep` become input to the machine. All other Python, such as a loop, is left for
the Python inside the machine.
"""

import ast
import json
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from outrider.core.chat import ToolCall, ToolSpec
from outrider.core.errors import ToolRefusal
from outrider.env.osworld import action as act
from outrider.env.osworld import computer_13, keys
from outrider.env.osworld.action import Action, Screen, Special
from outrider.pool.computer import Input, MoveTo, Pause, Press

TOOL = "pyautogui"

PRELUDE = "import pyautogui; import time; pyautogui.FAILSAFE = False\n"
"""What stands before a program in the machine."""

_FENCE = re.compile(r"```(?:[\w-]+[ \t]*(?=\n))?(.*?)```", re.DOTALL)
_MOST_CHARS = 20_000
_MOST_TIMES = 1_000
_MOST_EVENTS = 20_000

Given = Mapping[str, Any]


class _NotPlain(Exception):
    """The text is more than a list of calls with literal arguments."""

    def __init__(self, node: ast.AST, what: str) -> None:
        super().__init__(f"line {getattr(node, 'lineno', 1)}: {what}")


@dataclass(frozen=True, slots=True)
class _Call:
    """A function of PyAutoGUI: its parameters in their order, and what it comes to. What is not used is ignored."""

    parameters: tuple[str, ...]
    events: Callable[[Given, Screen], tuple[Input, ...]]
    takes_rest: bool = False
    """Whether all positional arguments are one list: the first parameter."""


def _where(given: Given, screen: Screen) -> tuple[Input, ...]:
    x, y = given.get("x"), given.get("y")
    if isinstance(x, list | tuple) and y is None:
        if len(x) != 2:  # noqa: PLR2004 a place is a pair
            raise ToolRefusal(f"a place is (x, y), not {act.shown(x)}")
        x, y = x
    return act.maybe_place(x, y, screen)


def _clicking(button: str | None = None, times: int | None = None) -> Callable[[Given, Screen], tuple[Input, ...]]:
    def events(given: Given, screen: Screen) -> tuple[Input, ...]:
        n_clicks = times or act.whole(given.get("clicks", 1), "clicks", least=1, most=_MOST_TIMES)
        pressed = act.clicks(act.button_named(button or given.get("button")))
        return (*_where(given, screen), *_repeated(pressed, n_clicks, {"interval": act.CLICK_SECONDS, **given}))

    return events


def _repeated(events: tuple[Input, ...], times: int, given: Given) -> tuple[Input, ...]:
    """The events so many times, with the `interval` between."""
    between = act.pause(given.get("interval", 0.0))
    parts = [*events, *between] if between != (Pause(0.0),) else list(events)
    repeated = parts * times
    return tuple(repeated[: len(repeated) - (len(parts) - len(events))])


def _drag(given: Given, screen: Screen) -> tuple[Input, ...]:
    moved = _where(given, screen)
    if not moved:
        raise ToolRefusal("dragTo needs x and y")
    target = moved[0]
    assert isinstance(target, MoveTo)
    return act.drag(target, act.button_named(given.get("button")))


def _scroll(given: Given, screen: Screen) -> tuple[Input, ...]:
    return (*_where(given, screen), *act.turned(0, given.get("clicks")))


def _hscroll(given: Given, screen: Screen) -> tuple[Input, ...]:
    return (*_where(given, screen), *act.turned(given.get("clicks"), 0))


def _write(given: Given, _: Screen) -> tuple[Input, ...]:
    message = given.get("message")
    if isinstance(message, list | tuple):
        return tuple(event for name in message for event in keys.press(name))
    return act.typed(message)


def _press(given: Given, _: Screen) -> tuple[Input, ...]:
    names = given.get("keys")
    each = names if isinstance(names, list | tuple) else [names]
    pressed = tuple(event for name in each for event in keys.press(name))
    return _repeated(pressed, act.whole(given.get("presses", 1), "presses", least=1, most=_MOST_TIMES), given)


def _hotkey(given: Given, _: Screen) -> tuple[Input, ...]:
    names = given.get("args", ())
    return keys.hotkey(names[0] if len(names) == 1 and isinstance(names[0], list | tuple) else names)


def _mouse(*, down: bool) -> Callable[[Given, Screen], tuple[Input, ...]]:
    def events(given: Given, screen: Screen) -> tuple[Input, ...]:
        return (*_where(given, screen), Press(act.button_named(given.get("button")), down=down))

    return events


def _sleep(given: Given, _: Screen) -> tuple[Input, ...]:
    return act.pause(given.get("seconds"))


_CLICK = ("x", "y", "clicks", "interval", "button", "duration")
_ONE_BUTTON = ("x", "y", "interval", "duration")

CALLS: Mapping[str, _Call] = {
    "click": _Call(_CLICK, _clicking()),
    "leftClick": _Call(_ONE_BUTTON, _clicking("left", 1)),
    "rightClick": _Call(_ONE_BUTTON, _clicking("right", 1)),
    "middleClick": _Call(_ONE_BUTTON, _clicking("middle", 1)),
    "doubleClick": _Call(("x", "y", "interval", "button", "duration"), _clicking(times=2)),
    "tripleClick": _Call(("x", "y", "interval", "button", "duration"), _clicking(times=3)),
    "moveTo": _Call(("x", "y", "duration"), _where),
    "dragTo": _Call(("x", "y", "duration", "tween", "button", "mouseDownUp"), _drag),
    "scroll": _Call(("clicks", "x", "y"), _scroll),
    "vscroll": _Call(("clicks", "x", "y"), _scroll),
    "hscroll": _Call(("clicks", "x", "y"), _hscroll),
    "typewrite": _Call(("message", "interval"), _write),
    "write": _Call(("message", "interval"), _write),
    "press": _Call(("keys", "presses", "interval"), _press),
    "hotkey": _Call(("args", "interval"), _hotkey, takes_rest=True),
    "keyDown": _Call(("key",), lambda given, _: keys.key_down(given.get("key"))),
    "keyUp": _Call(("key",), lambda given, _: keys.key_up(given.get("key"))),
    "mouseDown": _Call(("x", "y", "button", "duration"), _mouse(down=True)),
    "mouseUp": _Call(("x", "y", "button", "duration"), _mouse(down=False)),
    "sleep": _Call(("seconds",), _sleep),
}
"""What is understood here."""

_IGNORED = frozenset({"duration", "tween", "logScreenshot", "_pause", "mouseDownUp"})
"""How a movement looks while it is made; movements are made at once."""

_TIME_SLEEP = _Call(("seconds",), _sleep)


def compiled(code: str, screen: Screen) -> Action:
    """The action that Python text describes.

    Raises `ToolRefusal`, for the model to read, and nothing else.
    """
    special = act.special_named(code)
    if special is not None:
        return special
    if len(code) > _MOST_CHARS:
        raise ToolRefusal(f"the code has {len(code)} characters; write at most {_MOST_CHARS}")
    tree = _parsed(code)
    try:
        events = tuple(event for node in tree.body for event in _statement(node, screen))
    except _NotPlain as exc:
        return Action(name=TOOL, program=code, needs_python=str(exc))
    if not events:
        raise ToolRefusal("the code does nothing; call pyautogui, or write WAIT, FAIL or DONE alone")
    seconds = sum(event.seconds for event in events if isinstance(event, Pause))
    if len(events) > _MOST_EVENTS or seconds > act.MOST_PAUSE_SECONDS:
        raise ToolRefusal(
            f"the code takes too long; one action has at most {_MOST_EVENTS} events and {act.MOST_PAUSE_SECONDS:g} s "
            "of pauses"
        )
    return Action(name=TOOL, events=events)


def _parsed(code: str) -> ast.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as exc:
        where = f" in line {exc.lineno}" if isinstance(exc, SyntaxError) and exc.lineno else ""
        reason = exc.msg if isinstance(exc, SyntaxError) else str(exc) or type(exc).__name__
        raise ToolRefusal(f"this is not Python{where}: {reason}") from exc


def _statement(node: ast.stmt, screen: Screen) -> tuple[Input, ...]:
    if isinstance(node, ast.Import) and all(name.name in ("pyautogui", "time") for name in node.names):
        if any(name.asname for name in node.names):
            raise _NotPlain(node, "a module gets another name")
        return ()
    if _is_setting(node) or isinstance(node, ast.Pass):
        return ()
    if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Call):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            return ()
        raise _NotPlain(node, f"{type(node).__name__} is not a plain call")
    return _called(node.value, screen)


def _is_setting(node: ast.stmt) -> bool:
    """FAILSAFE and PAUSE of PyAutoGUI, which have no meaning here."""
    if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Constant):
        return False
    return all(
        isinstance(target, ast.Attribute)
        and isinstance(target.value, ast.Name)
        and (target.value.id, target.attr) in (("pyautogui", "FAILSAFE"), ("pyautogui", "PAUSE"))
        for target in node.targets
    )


def _called(node: ast.Call, screen: Screen) -> tuple[Input, ...]:
    func = node.func
    if not isinstance(func, ast.Attribute) or not isinstance(func.value, ast.Name):
        raise _NotPlain(node, f"{_source(func)} is not a function of pyautogui")
    if (func.value.id, func.attr) == ("time", "sleep"):
        call = _TIME_SLEEP
    elif func.value.id == "pyautogui" and func.attr in CALLS:
        call = CALLS[func.attr]
    else:
        raise _NotPlain(node, f"{_source(func)} is not understood here")
    return call.events(_arguments(node, call, func.attr), screen)


def _arguments(node: ast.Call, call: _Call, name: str) -> dict[str, Any]:
    positional = [_literal(argument) for argument in node.args]
    given: dict[str, Any] = {}
    if call.takes_rest:
        given[call.parameters[0]] = positional
    elif len(positional) > len(call.parameters):
        raise ToolRefusal(f"{name} takes {', '.join(call.parameters)}; {len(positional)} values are too many")
    else:
        given.update(zip(call.parameters, positional, strict=False))
    for keyword in node.keywords:
        if keyword.arg is None:
            raise _NotPlain(node, "arguments with ** are not literal")
        if keyword.arg in _IGNORED:
            continue
        if keyword.arg not in call.parameters or keyword.arg in given:
            raise ToolRefusal(f"{name} takes {', '.join(call.parameters)}, each once; {keyword.arg} cannot be given")
        given[keyword.arg] = _literal(keyword.value)
    return {key: value for key, value in given.items() if value is not None}


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError) as exc:
        raise _NotPlain(node, f"{_source(node)} is not a literal value") from exc


def _source(node: ast.AST) -> str:
    try:
        return ast.unparse(node)[:60]
    except RecursionError:
        return "a long expression"


def actions_in(text: str, screen: Screen) -> tuple[Action, ...]:
    """The actions in a message: one for each fenced block, or the whole text.

    A last line that is WAIT, FAIL or DONE is an action of its own. Raises `ToolRefusal` if there is none.
    """
    blocks = [block.strip() for block in _FENCE.findall(text) if block.strip()]
    if not blocks:
        if "pyautogui." not in text and act.special_named(text) is None:
            raise ToolRefusal(
                "there is no action in your message; write it as Python in a fenced block, such as\n"
                "```python\npyautogui.click(10, 20)\n```\nor WAIT, FAIL or DONE alone"
            )
        blocks = [text.strip()]
    pieces = [piece for block in blocks for piece in _split(block)]
    return tuple(compiled(piece, screen) for piece in pieces)


def _split(block: str) -> list[str]:
    before, _, last = block.rpartition("\n")
    return [before, last.strip()] if before.strip() and last.strip() in Special.__members__ else [block]


def action_called(call: ToolCall, screen: Screen) -> Action:
    """The action that a tool call asks for."""
    if call.name != TOOL:
        if call.name.strip().upper() in Special.__members__:
            return computer_13.action_called(call, screen)
        raise ToolRefusal(f"there is no tool {call.name[:40]!r}; there are {TOOL}, {', '.join(Special)}")
    try:
        given = json.loads(call.arguments or "{}")
    except (ValueError, RecursionError) as exc:
        raise ToolRefusal(f"the arguments of {TOOL} cannot be read as JSON; call it again") from exc
    if not isinstance(given, Mapping) or not isinstance(given.get("code"), str):
        raise ToolRefusal(f"{TOOL} needs code: a text in Python")
    return compiled(given["code"], screen)


def tools() -> tuple[ToolSpec, ...]:
    properties = {"code": {"type": "string", "description": "calls such as pyautogui.click(10, 20), one a line"}}
    run = ToolSpec(
        name=TOOL,
        description="Use mouse and keyboard by calls of the Python library pyautogui.",
        parameters={"type": "object", "properties": properties, "required": ["code"]},
    )
    return (run, *computer_13.special_tools())


def described(screen: Screen) -> str:
    """The actions in words, for the system message."""
    width, height = screen
    specials = "\n".join(f"- {special}: {says}" for special, says in computer_13.SPECIALS.items())
    return (
        "Act by Python code that calls pyautogui, such as pyautogui.click(10, 20), pyautogui.write('text'), "
        "pyautogui.press('enter'), pyautogui.hotkey('ctrl', 'c'), pyautogui.scroll(-3), time.sleep(1). "
        f"Do not use pyautogui's pictures of the screen. Instead of code there are also\n{specials}\n\n"
        f"The screen is {width} by {height} pixels; x is from the left, y from the top."
    )
