"""Names of keys, those of PyAutoGUI, and what DevTools calls them."""

from types import MappingProxyType
from typing import NamedTuple

ALT, CTRL, META, SHIFT = 1, 2, 4, 8


class Stroke(NamedTuple):
    """A key as a page sees it. `text` is what it writes; `modifier` is the bit that it sets while it is down."""

    key: str
    code: str
    number: int
    text: str = ""
    modifier: int = 0


_NAMED = """
    alt,altleft,option,optionleft=Alt,AltLeft,18 altright,optionright=Alt,AltRight,18 backspace=Backspace,Backspace,8
    capslock=CapsLock,CapsLock,20 clear=Clear,NumLock,12 ctrl,ctrlleft=Control,ControlLeft,17
    ctrlright=Control,ControlRight,17 del,delete=Delete,Delete,46 down=ArrowDown,ArrowDown,40 end=End,End,35
    enter,return=Enter,Enter,13 esc,escape=Escape,Escape,27 help=Help,Help,47 home=Home,Home,36 insert=Insert,Insert,45
    left=ArrowLeft,ArrowLeft,37 numlock=NumLock,NumLock,144 pagedown,pgdn=PageDown,PageDown,34
    pageup,pgup=PageUp,PageUp,33 pause=Pause,Pause,19 printscreen,print,prntscrn,prtsc,prtscr=PrintScreen,PrintScreen,44
    right=ArrowRight,ArrowRight,39 scrolllock=ScrollLock,ScrollLock,145 shift,shiftleft=Shift,ShiftLeft,16
    shiftright=Shift,ShiftRight,16 tab=Tab,Tab,9 up=ArrowUp,ArrowUp,38
    win,winleft,command,super,meta=Meta,MetaLeft,91 winright=Meta,MetaRight,92 apps=ContextMenu,ContextMenu,93
"""
_SIGNS = """
    `~=Backquote,192 -_=Minus,189 =+=Equal,187 [{=BracketLeft,219 ]}=BracketRight,221 \\|=Backslash,220
    ;:=Semicolon,186 '"=Quote,222 ,<=Comma,188 .>=Period,190 /?=Slash,191
    1!=Digit1,49 2@=Digit2,50 3#=Digit3,51 4$=Digit4,52 5%=Digit5,53 6^=Digit6,54 7&=Digit7,55 8*=Digit8,56
    9(=Digit9,57 0)=Digit0,48
"""
_MODIFIERS = MappingProxyType({"Alt": ALT, "Control": CTRL, "Meta": META, "Shift": SHIFT})
_WRITES = MappingProxyType({"Enter": "\r", "Tab": "\t"})
_TYPED = MappingProxyType({"\n": "enter", "\r": "enter", "\t": "tab"})


def _named() -> dict[str, Stroke]:
    found = {"space": Stroke(" ", "Space", 32, " ")}
    for entry in _NAMED.split():
        names, _, told = entry.partition("=")
        key, code, number = told.split(",")
        stroke = Stroke(key, code, int(number), _WRITES.get(key, ""), _MODIFIERS.get(key, 0))
        found |= dict.fromkeys(names.split(","), stroke)
    found |= {f"f{n}": Stroke(f"F{n}", f"F{n}", 111 + n) for n in range(1, 25)}
    found |= {f"num{n}": Stroke(str(n), f"Numpad{n}", 96 + n, str(n)) for n in range(10)}
    pad = {
        "multiply": ("*", 106),
        "add": ("+", 107),
        "subtract": ("-", 109),
        "decimal": (".", 110),
        "divide": ("/", 111),
    }
    return found | {name: Stroke(sign, f"Numpad{name.capitalize()}", n, sign) for name, (sign, n) in pad.items()}


def _signs() -> dict[str, Stroke]:
    found = {" ": Stroke(" ", "Space", 32, " ")}
    for entry in _SIGNS.split():
        signs, (code, number) = entry[:2], entry[3:].split(",")
        found |= {sign: Stroke(sign, code, int(number), sign) for sign in signs}
    for lower in "abcdefghijklmnopqrstuvwxyz":
        upper = lower.upper()
        found |= {sign: Stroke(sign, f"Key{upper}", ord(upper), sign) for sign in (lower, upper)}
    return found


_STROKES = MappingProxyType(_named() | _signs())
_SHIFTED = MappingProxyType({entry[0]: entry[1] for entry in _SIGNS.split()})


def stroke_of(name: str) -> Stroke | None:
    """The key with this name, or with this sign on it; None: there is none."""
    name = _TYPED.get(name, name)
    return _STROKES.get(name if len(name) == 1 else name.lower())


def shifted(stroke: Stroke) -> Stroke:
    """The same key while shift is down."""
    if len(stroke.text) != 1 or stroke.code.startswith("Numpad"):
        return stroke
    sign = _SHIFTED.get(stroke.text, stroke.text.upper())
    return stroke._replace(key=sign, text=sign) if stroke.text.isprintable() else stroke
