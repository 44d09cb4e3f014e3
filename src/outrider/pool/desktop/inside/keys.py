"""Names of keys, those of PyAutoGUI, and the symbols X has for them."""

import unicodedata
from types import MappingProxyType

SHIFT = 0xFFE1

_NAMES = """
    accept=ff20 add=ffab alt=ffe9 altleft=ffe9 altright=ffea apps=ff67 backspace=ff08 browserback=1008ff26
    browserfavorites=1008ff30 browserforward=1008ff27 browserhome=1008ff18 browserrefresh=1008ff29
    browsersearch=1008ff1b browserstop=1008ff28 capslock=ffe5 clear=ff0b convert=ff23 ctrl=ffe3 ctrlleft=ffe3
    ctrlright=ffe4 decimal=ffae del=ffff delete=ffff divide=ffaf down=ff54 end=ff57 enter=ff0d esc=ff1b escape=ff1b
    execute=ff62 hanguel=ff31 hangul=ff31 hanja=ff34 help=ff6a home=ff50 insert=ff63 kana=ff2d kanji=ff21
    launchapp1=1008ff41 launchapp2=1008ff42 launchmail=1008ff19 launchmediaselect=1008ff32 left=ff51 modechange=ff7e
    multiply=ffaa nexttrack=1008ff17 nonconvert=ff22 numlock=ff7f pagedown=ff56 pageup=ff55 pause=ff13 pgdn=ff56
    pgup=ff55 playpause=1008ff14 prevtrack=1008ff16 print=ff61 printscreen=ff61 prntscrn=ff61 prtsc=ff61 prtscr=ff61
    return=ff0d right=ff53 scrolllock=ff14 select=ff60 separator=ffac shift=ffe1 shiftleft=ffe1 shiftright=ffe2
    sleep=1008ff2f space=20 stop=1008ff15 subtract=ffad tab=ff09 up=ff52 volumedown=1008ff11 volumemute=1008ff12
    volumeup=1008ff13 win=ffeb winleft=ffeb winright=ffec yen=a5 command=ffeb option=ffe9 optionleft=ffe9
    optionright=ffea super=ffeb meta=ffe7
"""

_VENDOR = 0x10000000
_UNICODE = 0x01000000
_LATIN_1 = range(0x100)
_CONTROLS = MappingProxyType({"\n": 0xFF0D, "\r": 0xFF0D, "\t": 0xFF09, "\b": 0xFF08, "\x1b": 0xFF1B, "\x7f": 0xFFFF})

SYMBOLS = MappingProxyType(
    {name: int(symbol, 16) for name, symbol in (entry.split("=") for entry in _NAMES.split())}
    | {f"f{number}": 0xFFBD + number for number in range(1, 25)}
    | {f"num{number}": 0xFFB0 + number for number in range(10)}
)


def symbol_of(name: str) -> int:
    """What X calls the key, or the sign that is on it. Raises `ValueError` if there is no such key."""
    if len(name) == 1:
        return symbol_of_character(name)
    try:
        return SYMBOLS[name.lower()]
    except KeyError:
        raise ValueError(f"there is no key {name!r}") from None


def can_be_typed(character: str) -> bool:
    return character in _CONTROLS or unicodedata.category(character) not in {"Cc", "Cs"}


def symbol_of_character(character: str) -> int:
    if not can_be_typed(character):
        raise ValueError(f"no key types {character!r}")
    code = ord(character)
    return _CONTROLS.get(character) or (code if code in _LATIN_1 else _UNICODE | code)


def is_needed(symbol: int) -> bool:
    """Whether a key that has this symbol must keep it."""
    return symbol != 0 and (symbol < _VENDOR or symbol in SYMBOLS.values())
