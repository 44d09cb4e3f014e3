"""Mouse and keyboard as QEMU's monitor takes them: an American keyboard and a tablet."""

import string
from collections.abc import Iterator, Sequence
from typing import Any

from outrider.core.errors import MachineRefusal
from outrider.pool.computer import Input, Key, MoveTo, Press, Scroll, Text

_RANGE = 0x8000
"""A tablet has so many places in each direction."""

_PLAIN = {
    " ": "spc", "\n": "ret", "\r": "ret", "\t": "tab", "-": "minus", "=": "equal", "[": "bracket_left",
    "]": "bracket_right", "\\": "backslash", ";": "semicolon", "'": "apostrophe", "`": "grave_accent",
    ",": "comma", ".": "dot", "/": "slash",
    **{letter: letter for letter in string.ascii_lowercase + string.digits},
}  # fmt: skip

_SHIFTED = {
    **dict(zip(string.ascii_uppercase, string.ascii_lowercase, strict=True)),
    **dict(zip('!@#$%^&*()_+{}|:"~<>?', "1234567890-=[]\\;'`,./", strict=True)),
}
"""The character on the same key without shift."""

_NAMED = {
    "enter": "ret", "return": "ret", "esc": "esc", "escape": "esc", "tab": "tab", "space": "spc",
    "backspace": "backspace", "delete": "delete", "del": "delete", "insert": "insert", "home": "home", "end": "end",
    "pageup": "pgup", "pgup": "pgup", "pagedown": "pgdn", "pgdn": "pgdn", "up": "up", "down": "down", "left": "left",
    "right": "right", "shift": "shift", "shiftleft": "shift", "shiftright": "shift_r", "ctrl": "ctrl",
    "ctrlleft": "ctrl", "ctrlright": "ctrl_r", "alt": "alt", "altleft": "alt", "altright": "alt_r", "win": "meta_l",
    "winleft": "meta_l", "winright": "meta_r", "command": "meta_l", "option": "alt", "apps": "compose",
    "capslock": "caps_lock", "numlock": "num_lock", "scrolllock": "scroll_lock", "printscreen": "print",
    "prntscrn": "print", "prtsc": "print", "prtscr": "print", "print": "print", "pause": "pause", "add": "kp_add",
    "subtract": "kp_subtract", "multiply": "kp_multiply", "divide": "kp_divide", "decimal": "kp_decimal",
    "volumeup": "volumeup", "volumedown": "volumedown", "volumemute": "audiomute", "playpause": "audioplay",
    "nexttrack": "audionext", "prevtrack": "audioprev", "stop": "audiostop", "sleep": "sleep",
    **{f"f{number}": f"f{number}" for number in range(1, 13)},
    **{f"num{digit}": f"kp_{digit}" for digit in string.digits},
}  # fmt: skip

_WHEEL = {(0, 1): "wheel-up", (0, -1): "wheel-down", (1, 0): "wheel-right", (-1, 0): "wheel-left"}


def strokes(event: Input, screen: tuple[int, int]) -> Iterator[list[dict[str, Any]]]:
    """What to send for one event of a holder, in parts that may be sent one after the other.

    Raises `MachineRefusal` for what this keyboard has not, before anything is given.
    """
    match event:
        case MoveTo():
            yield _moved(event, screen)
        case Press():
            yield [_button(event.button.value, down=event.down)]
        case Scroll():
            yield from _turns(event)
        case Key():
            yield [_key(code, down=event.down) for code in _codes(event.name)]
        case Text():
            codes = [_codes(character) for character in event.text]
            for pressed in codes:
                yield [_key(code, down=True) for code in pressed] + [_key(code, down=False) for code in pressed[::-1]]
        case _:
            return


def check(events: Sequence[Input], screen: tuple[int, int]) -> None:
    """Raise `MachineRefusal` if one of these cannot be done: either all are, or none."""
    for event in events:
        for _ in strokes(event, screen):
            pass


def _codes(name: str) -> tuple[str, ...]:
    """The keys to hold down together for a character, or for a key by its name."""
    if name in _PLAIN:
        return (_PLAIN[name],)
    if name in _SHIFTED:
        return ("shift", _PLAIN[_SHIFTED[name]])
    if (code := _NAMED.get(name.lower())) is not None:
        return (code,)
    raise MachineRefusal(f"the machine's keyboard has no key for {name!r}", stage="machine.input")


def _key(code: str, *, down: bool) -> dict[str, Any]:
    return {"type": "key", "data": {"down": down, "key": {"type": "qcode", "data": code}}}


def _button(button: str, *, down: bool) -> dict[str, Any]:
    return {"type": "btn", "data": {"down": down, "button": button}}


def _moved(event: MoveTo, screen: tuple[int, int]) -> list[dict[str, Any]]:
    width, height = screen
    if not (0 <= event.x < width and 0 <= event.y < height):
        raise MachineRefusal(
            f"({event.x}, {event.y}) is not on the screen of {width} by {height} pixels", stage="machine.input"
        )
    places = {"x": (2 * event.x + 1) * _RANGE // (2 * width), "y": (2 * event.y + 1) * _RANGE // (2 * height)}
    return [{"type": "abs", "data": {"axis": axis, "value": place}} for axis, place in places.items()]


def _turns(event: Scroll) -> Iterator[list[dict[str, Any]]]:
    for horizontal, clicks in ((False, event.dy), (True, event.dx)):
        sign = 1 if clicks > 0 else -1
        button = _WHEEL[(sign, 0) if horizontal else (0, sign)]
        for _ in range(abs(clicks)):
            yield [_button(button, down=True), _button(button, down=False)]
