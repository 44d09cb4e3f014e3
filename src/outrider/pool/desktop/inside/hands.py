"""Mouse and keyboard through XTEST: for the programs on the screen they are a user's."""

import struct
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

from outrider.pool.desktop.inside.keys import SHIFT, can_be_typed, is_needed, symbol_of, symbol_of_character
from outrider.pool.desktop.inside.x11 import Display, XError

BUTTONS = {"left": 1, "middle": 2, "right": 3}
UP, DOWN, LEFT, RIGHT = 4, 5, 6, 7
MAX_CLICKS = 1000

REMAP_SECONDS = 0.2
"""How long the program in front must have had nothing to do before a key gets another sign, and so means it."""

HANDLED_SECONDS = 0.01
"""How long a window manager that has handled a move has nothing to do."""

BUSY_SECONDS = 5.0
"""Give up waiting for a program after this."""

_LOOK_SECONDS = 0.005
_FAKE_INPUT = 2
_KEY_PRESS, _KEY_RELEASE, _BUTTON_PRESS, _BUTTON_RELEASE, _MOTION = 2, 3, 4, 5, 6


class Stroke(NamedTuple):
    """Which key, and whether shift is needed."""

    keycode: int
    shifted: bool


class Keyboard:
    """Which key has which symbol. One that is on none is put on a spare key, in place of what was used longest ago."""

    def __init__(self, display: Display, server: int) -> None:
        self._display = display
        self._server = server
        self._keys: dict[int, Stroke] = {}
        spare = []
        for keycode, symbols in enumerate(display.keyboard(), start=display.first_keycode):
            if not any(is_needed(symbol) for symbol in symbols):
                spare.append(keycode)
                continue
            for level in (0, 1):
                if symbols[level]:
                    self._keys.setdefault(symbols[level], Stroke(keycode, bool(level) and symbols[0] != symbols[1]))
        if not spare:
            raise XError("the keyboard has no spare key")
        self._borrowed: OrderedDict[int, Stroke] = OrderedDict()
        self._spare = spare
        self._is_used = False
        self.n_spare = len(spare)

    def strokes(self, symbols: Sequence[int]) -> list[Stroke]:
        """How to type each; at most `n_spare` different ones may be on no key."""
        missing = OrderedDict.fromkeys(symbol for symbol in symbols if symbol not in self._keys)
        for symbol in missing:
            if symbol in self._borrowed:
                self._borrowed.move_to_end(symbol)
        for symbol in missing:
            if symbol not in self._borrowed:
                self._borrow(symbol)
        return [self._keys.get(symbol) or self._borrowed[symbol] for symbol in symbols]

    def used(self) -> None:
        """What was to be typed has been."""
        self._is_used = True

    def portions(self, symbols: Iterable[int]) -> Iterator[list[int]]:
        """The same in order, in parts for which the spare keys suffice."""
        part: list[int] = []
        missing: set[int] = set()
        for symbol in symbols:
            if symbol not in self._keys and symbol not in missing:
                if len(missing) == self.n_spare:
                    yield part
                    part, missing = [], set()
                missing.add(symbol)
            part.append(symbol)
        yield part

    def _borrow(self, symbol: int) -> None:
        if self._spare:
            keycode = self._spare.pop()
        else:
            if self._is_used:
                self._display.sync()
                _wait_for_program_in_front(self._display, self._server)
                self._is_used = False
            _, (keycode, _) = self._borrowed.popitem(last=False)
        self._display.set_key(keycode, (symbol, symbol))
        self._borrowed[symbol] = Stroke(keycode, shifted=False)


class Hands:
    """Carries out input, as the wire has it. What makes no sense raises `ValueError`, before anything is done.

    Signs that no key can type, such as most control characters, are left out of text. A pause while a button is held
    begins when the window manager has handled all before it: moves that it finds together are one to it, and no drag.
    """

    def __init__(self, display: Display, server: int, manager: int) -> None:
        """`server` and `manager` are the processes of the X server and of the window manager."""
        self._display = display
        self._handlers = (server, manager)
        self._xtest = display.extension("XTEST")
        self._keyboard = Keyboard(display, server)
        self._shift = self._keyboard.strokes([SHIFT])[0].keycode

    def act(self, events: Sequence[dict[str, Any]]) -> None:
        for event in events:
            self._check(event)
        is_held, patience = False, time.monotonic() + BUSY_SECONDS
        for event in events:
            if event["type"] == "Pause":
                if is_held:
                    _wait_until_asleep(self._handlers, HANDLED_SECONDS, patience)
                time.sleep(event["seconds"])
                continue
            if event["type"] == "Press":
                is_held = event["down"]
            with self._display:
                self._one(event)
                self._display.sync()

    def _check(self, event: dict[str, Any]) -> None:
        match event:
            case {"type": "MoveTo", "x": int(x), "y": int(y)}:
                width, height = self._display.width, self._display.height
                if x not in range(width) or y not in range(height):
                    raise ValueError(f"({x}, {y}) is not on the screen of {width} by {height}")
            case {"type": "Scroll", "dx": int(dx), "dy": int(dy)}:
                if abs(dx) + abs(dy) > MAX_CLICKS:
                    raise ValueError(f"the wheel turns by {MAX_CLICKS} clicks at most, not by ({dx}, {dy})")
            case {"type": "Press", "button": str(button)}:
                if button not in BUTTONS:
                    raise ValueError(f"there is no button {button!r}")
            case {"type": "Key", "name": str(name)}:
                symbol_of(name)
            case {"type": "Text", "text": str()} | {"type": "Pause", "seconds": int() | float()}:
                pass
            case _:
                raise ValueError(f"there is no such input: {event}")

    def _one(self, event: dict[str, Any]) -> None:
        match event["type"]:
            case "MoveTo":
                self._fake(_MOTION, 0, event["x"], event["y"])
            case "Press":
                self._fake(_BUTTON_PRESS if event["down"] else _BUTTON_RELEASE, BUTTONS[event["button"]])
            case "Scroll":
                for button, clicks in (
                    (UP, event["dy"]),
                    (DOWN, -event["dy"]),
                    (RIGHT, event["dx"]),
                    (LEFT, -event["dx"]),
                ):
                    for _ in range(clicks):
                        self._fake(_BUTTON_PRESS, button)
                        self._fake(_BUTTON_RELEASE, button)
            case "Key":
                stroke = self._keyboard.strokes([symbol_of(event["name"])])[0]
                self._press(stroke) if event["down"] else self._fake(_KEY_RELEASE, stroke.keycode)
                self._keyboard.used()
            case "Text":
                self._type(event["text"].replace("\r\n", "\n"))

    def _type(self, text: str) -> None:
        symbols = map(symbol_of_character, filter(can_be_typed, text))
        for portion in self._keyboard.portions(symbols):
            strokes = iter(self._keyboard.strokes(portion))
            while some := list(islice(strokes, 64)):
                for stroke in some:
                    self._press(stroke)
                    self._fake(_KEY_RELEASE, stroke.keycode)
                self._display.sync()
            self._keyboard.used()

    def _press(self, stroke: Stroke) -> None:
        if stroke.shifted:
            self._fake(_KEY_PRESS, self._shift)
        self._fake(_KEY_PRESS, stroke.keycode)
        if stroke.shifted:
            self._fake(_KEY_RELEASE, self._shift)

    def _fake(self, kind: int, detail: int, x: int = 0, y: int = 0) -> None:
        root = self._display.root if kind == _MOTION else 0
        self._display.send(self._xtest, _FAKE_INPUT, struct.pack("<BB2xII8xhh8x", kind, detail, 0, root, x, y))


def _wait_for_program_in_front(display: Display, server: int) -> None:
    """Until it and the X server have been asleep for a while: then it has read all that was typed."""
    active = display.numbers(display.root, "_NET_ACTIVE_WINDOW")
    pids = [server, *(pid for window in active for pid in _pids(display, window))]
    _wait_until_asleep(pids, REMAP_SECONDS, time.monotonic() + BUSY_SECONDS)


def _wait_until_asleep(pids: Sequence[int], seconds: float, end: float) -> None:
    """Until all have had nothing to do for so long; who waits for a processor has something to do."""
    idle_since = time.monotonic()
    while time.monotonic() < min(idle_since + seconds, end):
        time.sleep(_LOOK_SECONDS)
        if any(not _is_asleep(pid) for pid in pids):
            idle_since = time.monotonic()


def _pids(display: Display, window: int) -> tuple[int, ...]:
    return display.numbers(window, "_NET_WM_PID") if window else ()


def _is_asleep(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 pathlib is slow to import
            return file.read().rpartition(b")")[2].split()[0] == b"S"
    except OSError:
        return True
