"""The action space `computer_13`: thirteen actions of mouse and keyboard as JSON, and WAIT, FAIL, DONE."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from outrider.core.chat import ToolCall, ToolSpec
from outrider.core.errors import ToolRefusal
from outrider.env.osworld import action as act
from outrider.env.osworld import keys
from outrider.env.osworld.action import Action, Screen, Special
from outrider.pool.computer import Button, Input, Press

Parameters = Mapping[str, Any]

_FENCE = re.compile(r"```(?:[\w-]+[ \t]*(?=\n))?(.*?)```", re.DOTALL)

_PLACE: Parameters = {
    "x": {"type": "integer", "description": "pixels from the left edge"},
    "y": {"type": "integer", "description": "pixels from the upper edge"},
}
_BUTTON: Parameters = {"button": {"type": "string", "enum": ["left", "right", "middle"]}}
_KEY: Parameters = {"key": {"type": "string", "description": "its name in PyAutoGUI, such as enter, a, f5"}}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """A kind of action: what it says to the model, what it takes, and what it comes to."""

    says: str
    takes: Parameters
    needs: tuple[str, ...] = ()
    events: Callable[[Parameters, Screen], tuple[Input, ...]]


def _pointed(given: Parameters, screen: Screen) -> tuple[Input, ...]:
    return act.maybe_place(given.get("x"), given.get("y"), screen)


def _click(given: Parameters, screen: Screen) -> tuple[Input, ...]:
    times = given.get("num_clicks")
    n_clicks = 1 if times is None else act.whole(times, "num_clicks", least=1, most=3)
    return (*_pointed(given, screen), *act.clicks(act.button_named(given.get("button")), n_clicks))


def _scroll(given: Parameters, _: Screen) -> tuple[Input, ...]:
    if not given:
        raise ToolRefusal("SCROLL needs dx or dy")
    return act.turned(given.get("dx", 0), given.get("dy", 0))


KINDS: Mapping[str, _Kind] = {
    "MOVE_TO": _Kind(says="Move the pointer.", takes=_PLACE, needs=("x", "y"), events=_pointed),
    "CLICK": _Kind(
        says="Click, by default once with the left button where the pointer is.",
        takes={**_PLACE, **_BUTTON, "num_clicks": {"type": "integer", "enum": [1, 2, 3]}},
        events=_click,
    ),
    "MOUSE_DOWN": _Kind(
        says="Press a mouse button and hold it.",
        takes=_BUTTON,
        events=lambda given, _: (Press(act.button_named(given.get("button"))),),
    ),
    "MOUSE_UP": _Kind(
        says="Let go of a mouse button.",
        takes=_BUTTON,
        events=lambda given, _: (Press(act.button_named(given.get("button")), down=False),),
    ),
    "RIGHT_CLICK": _Kind(
        says="Click with the right button.",
        takes=_PLACE,
        events=lambda given, screen: (*_pointed(given, screen), *act.clicks(Button.RIGHT)),
    ),
    "DOUBLE_CLICK": _Kind(
        says="Click twice with the left button.",
        takes=_PLACE,
        events=lambda given, screen: (*_pointed(given, screen), *act.clicks(Button.LEFT, 2)),
    ),
    "DRAG_TO": _Kind(
        says="Drag with the left button, from where the pointer is.",
        takes=_PLACE,
        needs=("x", "y"),
        events=lambda given, screen: act.drag(act.place(given["x"], given["y"], screen), Button.LEFT),
    ),
    "SCROLL": _Kind(
        says="Turn the mouse wheel: dy above 0 is up, dx above 0 is to the right.",
        takes={"dx": {"type": "integer"}, "dy": {"type": "integer"}},
        events=_scroll,
    ),
    "TYPING": _Kind(
        says="Type text; a line break is the enter key.",
        takes={"text": {"type": "string"}},
        needs=("text",),
        events=lambda given, _: act.typed(given["text"]),
    ),
    "PRESS": _Kind(
        says="Press a key and let it go.", takes=_KEY, needs=("key",), events=lambda given, _: keys.press(given["key"])
    ),
    "KEY_DOWN": _Kind(
        says="Press a key and hold it.", takes=_KEY, needs=("key",), events=lambda given, _: keys.key_down(given["key"])
    ),
    "KEY_UP": _Kind(
        says="Let go of a key.", takes=_KEY, needs=("key",), events=lambda given, _: keys.key_up(given["key"])
    ),
    "HOTKEY": _Kind(
        says="Press keys together, such as ctrl and c.",
        takes={"keys": {"type": "array", "items": {"type": "string"}, "minItems": 1}},
        needs=("keys",),
        events=lambda given, _: keys.hotkey(given["keys"]),
    ),
}

SPECIALS: Mapping[Special, str] = {
    Special.WAIT: "Do nothing for a moment.",
    Special.FAIL: "Say that the task cannot be done. This ends it.",
    Special.DONE: "Say that the task is done. This ends it.",
}

_NAMES = (*KINDS, *(str(special) for special in SPECIALS))


def compiled(written: object, screen: Screen) -> Action:
    """The action that a JSON value describes, with its parameters beside `action_type` or under `parameters`.

    Raises `ToolRefusal`, for the model to read, and nothing else.
    """
    if isinstance(written, str) and (special := act.special_named(written)):
        return special
    if not isinstance(written, Mapping) or not isinstance(written.get("action_type"), str):
        raise ToolRefusal('an action is an object such as {"action_type": "CLICK", "x": 10, "y": 20}')
    name = written["action_type"].strip().upper()
    flat = {key: value for key, value in written.items() if key not in ("action_type", "parameters")}
    nested = written.get("parameters")
    if nested is not None and not isinstance(nested, Mapping):
        raise ToolRefusal(f"the parameters of {name[:40]} are an object, not {act.shown(nested)}")
    if flat and nested:
        raise ToolRefusal(f"{name[:40]} has parameters in two places: put all of them under 'parameters'")
    return _named(name, {**flat, **(nested or {})}, screen)


def _named(name: str, given: Parameters, screen: Screen) -> Action:
    if name in Special.__members__:
        _check_parameters(name, given, takes=(), needs=())
        return Action(name=name, special=Special(name))
    kind = KINDS.get(name)
    if kind is None:
        near = get_close_matches(name, _NAMES, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(_NAMES)}"
        raise ToolRefusal(f"there is no action {name[:40]!r}; {hint}")
    present = {key: value for key, value in given.items() if value is not None}
    _check_parameters(name, present, takes=tuple(kind.takes), needs=kind.needs)
    return Action(name=name, events=kind.events(present, screen))


def _check_parameters(name: str, given: Parameters, *, takes: tuple[str, ...], needs: tuple[str, ...]) -> None:
    extra = [str(key)[:40] for key in given if key not in takes]
    if extra:
        raise ToolRefusal(f"{name} takes {', '.join(takes) or 'no parameters'}, not {', '.join(extra)}")
    missing = [key for key in needs if key not in given]
    if missing:
        raise ToolRefusal(f"{name} needs {' and '.join(missing)}")


def actions_in(text: str, screen: Screen) -> tuple[Action, ...]:
    """The actions in a message: JSON in fenced blocks, or the whole text; a list holds several.

    Raises `ToolRefusal` if there is none, or one that cannot be used.
    """
    blocks = [block.strip() for block in _FENCE.findall(text) if block.strip()] or [text.strip()]
    return tuple(found for block in blocks for found in _block(block, screen))


def _block(block: str, screen: Screen) -> tuple[Action, ...]:
    special = act.special_named(block)
    if special is not None:
        return (special,)
    try:
        written = json.loads(block)
    except (ValueError, RecursionError) as exc:
        raise ToolRefusal(
            "there is no action in your message; write one as JSON in a fenced block, such as\n"
            '```json\n{"action_type": "CLICK", "x": 10, "y": 20}\n```\n'
            "or WAIT, FAIL or DONE alone"
        ) from exc
    items = written if isinstance(written, list) else [written]
    if not items:
        raise ToolRefusal("the list of actions is empty")
    return tuple(compiled(item, screen) for item in items)


def action_called(call: ToolCall, screen: Screen) -> Action:
    """The action that a tool call asks for."""
    name = call.name.strip().upper()
    try:
        given = json.loads(call.arguments or "{}")
    except (ValueError, RecursionError) as exc:
        raise ToolRefusal(f"the arguments of {name[:40]} cannot be read as JSON; call it again") from exc
    if not isinstance(given, Mapping):
        raise ToolRefusal(f"the arguments of {name[:40]} are an object, not {act.shown(given)}")
    return compiled({**given, "action_type": name}, screen)


def special_tools() -> tuple[ToolSpec, ...]:
    return tuple(
        ToolSpec(name=str(special), description=says, parameters={"type": "object", "properties": {}, "required": []})
        for special, says in SPECIALS.items()
    )


def tools() -> tuple[ToolSpec, ...]:
    """One tool for each action."""
    kinds = tuple(
        ToolSpec(
            name=name,
            description=kind.says,
            parameters={"type": "object", "properties": dict(kind.takes), "required": list(kind.needs)},
        )
        for name, kind in KINDS.items()
    )
    return (*kinds, *special_tools())


def described(screen: Screen) -> str:
    """The actions in words, for the system message."""
    lines = [f"- {name}({', '.join(kind.takes)}): {kind.says}" for name, kind in KINDS.items()]
    lines += [f"- {special}: {says}" for special, says in SPECIALS.items()]
    width, height = screen
    return (
        "Actions:\n" + "\n".join(lines) + f"\n\nThe screen is {width} by {height} pixels; "
        "x is from the left, y from the top. Keys have PyAutoGUI's names."
    )
