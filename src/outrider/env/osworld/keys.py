"""The names of keys, as PyAutoGUI has them, and what pressing one comes to."""

import string
from difflib import get_close_matches

from outrider.core.errors import ToolRefusal
from outrider.env.osworld.action import shown
from outrider.pool.computer import Input, Key

_NAMED = """
accept add alt altleft altright apps backspace browserback browserfavorites browserforward browserhome browserrefresh
browsersearch browserstop capslock clear command convert ctrl ctrlleft ctrlright decimal del delete divide down end
enter esc escape execute final fn hanguel hangul hanja help home insert junja kana kanji launchapp1 launchapp2
launchmail launchmediaselect left modechange multiply nexttrack nonconvert numlock option optionleft optionright
pagedown pageup pause pgdn pgup playpause prevtrack print printscreen prntscrn prtsc prtscr return right scrolllock
select separator shift shiftleft shiftright sleep space stop subtract tab up volumedown volumemute volumeup win
winleft winright yen
"""

KEYS = frozenset(
    {*"\t\n\r ", *string.punctuation, *string.digits, *string.ascii_lowercase, *_NAMED.split()}
    | {f"f{number}" for number in range(1, 25)}
    | {f"num{number}" for number in range(10)}
)
"""Every name a key may have; that of a letter is small."""


def key_name(name: object) -> str:
    """The name of a key as the machine takes it: a capital letter stays one. Refuses what is no key."""
    if not isinstance(name, str):
        raise ToolRefusal(f"a key is a name such as 'enter', not {shown(name)}")
    if name.lower() not in KEYS:
        near = get_close_matches(name.lower(), sorted(KEYS), n=1)
        hint = f"did you mean {near[0]!r}?" if near else "names are those of PyAutoGUI, such as 'enter', 'ctrl', 'f5'"
        raise ToolRefusal(f"there is no key {name[:40]!r}; {hint}")
    return name if len(name) == 1 else name.lower()


def key_down(name: object) -> tuple[Input, ...]:
    key = key_name(name)
    if not key.isupper():
        return (Key(key),)
    return (Key("shift"), Key(key.lower()), Key("shift", down=False))


def key_up(name: object) -> tuple[Input, ...]:
    return (Key(key_name(name).lower(), down=False),)


def press(name: object) -> tuple[Input, ...]:
    return (*key_down(name), *key_up(name))


def hotkey(names: object) -> tuple[Input, ...]:
    """All keys go down in their order, and up the other way round."""
    if not isinstance(names, list | tuple) or not names:
        raise ToolRefusal("keys is a list of the names of keys, such as ['ctrl', 'c']")
    if len(names) > _MOST_KEYS:
        raise ToolRefusal(f"{len(names)} keys cannot be held at once; the most are {_MOST_KEYS}")
    downs = [event for name in names for event in key_down(name)]
    ups = [event for name in reversed(names) for event in key_up(name)]
    return (*downs, *ups)


_MOST_KEYS = 10
