"""Know-how for desktop tasks: for each bundled task the steps that solve it, as mouse and keyboard take them.

Where things are on the screen is known from how each task begins: its windows stand where the task puts them, on a
screen of 1280 by 800 pixels or larger.
"""

import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from outrider.core.chat import Message, Role, ToolCall, ToolSpec, assistant

Action = tuple[str, Mapping[str, Any]]
"""An action of computer_13 and its parameters."""

Turn = tuple[Action, ...]
"""What is done between two looks at the screen."""

RULES = "You use a computer to do a task."
"""How the environment's own part of the system message begins."""

_CODE = "pyautogui"
_SCREEN = re.compile(r"The screen is (\d+) by (\d+) pixels")
_MAX_WAITS = 3
_MAX_GUESSES = 6
_LETTERS = "abcdefghijklmnopqrstuvwxyz ./-"
_KEYS = ("enter", "tab", "esc", "up", "down", "left", "right", "home", "end", "backspace", "delete", "space", "f5")


def _click(x: int, y: int, button: str = "left", times: int = 1) -> Action:
    return "CLICK", {"x": x, "y": y, "button": button, "num_clicks": times}


def _move(x: int, y: int) -> Action:
    return "MOVE_TO", {"x": x, "y": y}


def _drag(x: int, y: int) -> Action:
    return "DRAG_TO", {"x": x, "y": y}


def _scroll(dy: int) -> Action:
    return "SCROLL", {"dx": 0, "dy": dy}


def _typed(text: str) -> Action:
    return "TYPING", {"text": text}


def _press(key: str) -> Action:
    return "PRESS", {"key": key}


def _hold(key: str) -> Action:
    return "KEY_DOWN", {"key": key}


def _let_go(key: str) -> Action:
    return "KEY_UP", {"key": key}


def _together(*keys: str) -> Action:
    return "HOTKEY", {"keys": list(keys)}


WAIT: Action = ("WAIT", {})
DONE: Action = ("DONE", {})
FAIL: Action = ("FAIL", {})

_TERMINAL = _click(400, 300)
"""The window in which a task has its terminal or its editor."""


def _in_terminal(command: str) -> tuple[Turn, ...]:
    return (_TERMINAL,), (_typed(f"{command}\n"),)


def _save_as(name: str) -> tuple[Turn, ...]:
    """In nano, and close it."""
    return (_together("ctrl", "o"),), (_typed(f"{name}\n"),), (_together("ctrl", "x"),)


PLANS: Mapping[str, tuple[Turn, ...]] = {
    "A new file is open in the editor.": (
        (_TERMINAL,),
        (_typed("Buy bread and apples\nCall Ada at noon"),),
        *_save_as("~/Documents/note.txt"),
    ),
    "The file server.conf is open in the editor.": (
        (_TERMINAL,),
        (_together("ctrl", "\\"),),
        (_typed("port = 8080\n"),),
        (_typed("port = 9090\n"),),
        (_typed("y"),),
        (_together("ctrl", "o"),),
        (_press("enter"),),
        (_together("ctrl", "x"),),
    ),
    "Write the names of all files in Documents": _in_terminal("cd ~/Documents && ls *.csv > ~/tables.txt"),
    "Rename the file draft.txt": _in_terminal("mv ~/Documents/draft.txt ~/Documents/final.txt"),
    "The script report.sh": _in_terminal("chmod 700 ~/report.sh && ~/report.sh"),
    "Give the desktop a new wallpaper": _in_terminal("hsetroot -solid '#40305c'"),
    "Move the window Notes": ((_move(150, 90), _drag(1100, 300)),),
    "Let the window Report fill the whole screen": ((_click(300, 129, times=2),),),
    "Close the window Old draft": ((_click(300, 200),), (_together("alt", "f4"),)),
    "Behind the other windows": ((_hold("alt"), _press("tab")), (_press("tab"),), (_let_go("alt"),)),
    "Minimise the window Music": ((_click(443, 90),),),
    "Add a second workspace": (
        (_click(600, 500, "right"),),
        (_press("down"),),
        (_press("down"),),
        (_press("right"),),
        (_press("down"),),
        (_press("enter"),),
    ),
    "A dialog asks": ((_click(408, 326),),),
    "Copy the number that the window Ticket shows": (
        (_move(823, 93), _drag(1020, 93)),
        (_TERMINAL,),
        (_click(400, 300, "middle"),),
        *_save_as("~/ticket.txt"),
    ),
    "The first line that was printed in the window Log": (
        *_in_terminal("cat > ~/serial.txt"),
        (_move(930, 150), _scroll(60)),
        (_click(910, 93, times=3),),
        (_TERMINAL,),
        (_click(400, 300, "middle"),),
        (_together("ctrl", "d"),),
    ),
}
"""By how the task begins: the turns that solve it, before DONE."""


class OsworldScript:
    """Solves the bundled tasks, in either action space, by tools or by text."""

    def understands(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> bool:  # noqa: ARG002
        return bool(_rules(messages))

    def solve(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        """The next turn; or a pause, as long as the screen stands as it stood before the last one."""
        pause = _written((WAIT,), messages, tools)
        plan = [_written(turn, messages, tools) for turn in _plan(messages)]
        n_done = 0
        for message in messages:
            n_done += n_done < len(plan) - 1 and _means(message, plan[n_done])
        return pause if n_done and _is_too_early(messages, pause) else plan[n_done]

    def guess(self, messages: Sequence[Message], tools: Sequence[ToolSpec], rng: random.Random) -> Message:
        """Mouse and keyboard at random, and DONE before long."""
        n_said = sum(message.role is Role.ASSISTANT for message in messages)
        if n_said >= _MAX_GUESSES or rng.random() < 1 / _MAX_GUESSES:
            return _written((DONE,), messages, tools)
        found = _SCREEN.search(_rules(messages))
        width, height = (int(found[1]), int(found[2])) if found else (1, 1)
        x, y = rng.randrange(width), rng.randrange(height)
        action = rng.choice(
            (
                _click(x, y, rng.choice(("left", "middle", "right")), rng.randint(1, 3)),
                _move(x, y),
                _drag(x, y),
                _scroll(rng.choice((-5, 5))),
                _typed("".join(rng.choices(_LETTERS, k=rng.randint(1, 12)))),
                _press(rng.choice(_KEYS)),
                _together(rng.choice(("ctrl", "shift")), rng.choice(_KEYS)),
            )
        )
        return _written((action,), messages, tools)


def _rules(messages: Sequence[Message]) -> str:
    """What the environment says of itself, whatever a user has put before it; nothing in other conversations."""
    said = "\n".join(message.content for message in messages if message.role is Role.SYSTEM)
    _, found, rules = said.partition(RULES)
    return found + rules


def _plan(messages: Sequence[Message]) -> tuple[Turn, ...]:
    """All turns to the end; for a task that nobody knows how to do, that is FAIL.

    Before DONE there is a pause: what was asked for last may take its time.
    """
    task = next((message.content for message in messages if message.role is Role.USER), "")
    turns = next((turns for beginning, turns in PLANS.items() if task.startswith(beginning)), None)
    return ((FAIL,),) if turns is None else (*turns, (WAIT,), (DONE,))


def _is_too_early(messages: Sequence[Message], pause: Message) -> bool:
    """Whether the picture is still the one before the last turn, and not many pauses were made since.

    Without pictures nobody can tell.
    """
    replies = [index for index, message in enumerate(messages) if message.role is Role.ASSISTANT]
    turns = [index for index in replies if not _means(messages[index], pause)]
    before = [message.images for message in messages[: turns[-1]] if message.images]
    after = [message.images for message in messages[turns[-1] :] if message.images]
    n_pauses = len(replies) - 1 - replies.index(turns[-1])
    return n_pauses < _MAX_WAITS and before[-1:] == after[-1:] != []


def _means(one: Message, other: Message) -> bool:
    """Whether two messages ask for the same, whatever their calls are named."""
    calls = [[(call.name, call.arguments) for call in message.tool_calls] for message in (one, other)]
    return one.content == other.content and calls[0] == calls[1]


def _written(turn: Turn, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
    """The turn in the language of the conversation: calls of tools, or text; computer_13, or Python."""
    names = {tool.name for tool in tools}
    name, _ = turn[0]
    is_special = turn[0] in (WAIT, DONE, FAIL)
    if not names:
        return assistant(name if is_special else _fenced(turn, messages))
    if _CODE in names and not is_special:
        calls: list[Action] = [(_CODE, {"code": _code(turn)})]
    else:
        calls = list(turn)
    return assistant(
        tool_calls=tuple(
            ToolCall(id=f"call_{len(messages)}_{number}", name=name, arguments=json.dumps(given))
            for number, (name, given) in enumerate(calls)
        )
    )


def _fenced(turn: Turn, messages: Sequence[Message]) -> str:
    if _CODE in _rules(messages):
        return f"```python\n{_code(turn)}\n```"
    return f"```json\n{json.dumps([{'action_type': name, 'parameters': given} for name, given in turn])}\n```"


_PYTHON: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "CLICK": lambda given: "click({x}, {y}, clicks={num_clicks}, button={button!r})".format(**given),
    "MOVE_TO": lambda given: "moveTo({x}, {y})".format(**given),
    "DRAG_TO": lambda given: "dragTo({x}, {y}, button='left')".format(**given),
    "SCROLL": lambda given: "scroll({dy})".format(**given),
    "TYPING": lambda given: "write({text!r})".format(**given),
    "PRESS": lambda given: "press({key!r})".format(**given),
    "KEY_DOWN": lambda given: "keyDown({key!r})".format(**given),
    "KEY_UP": lambda given: "keyUp({key!r})".format(**given),
    "HOTKEY": lambda given: "hotkey({})".format(", ".join(map(repr, given["keys"]))),
}
"""The same in the words of PyAutoGUI."""


def _code(turn: Turn) -> str:
    return "\n".join(f"{_CODE}.{_PYTHON[name](given)}" for name, given in turn)
