"""The windows that the window manager knows."""

import struct
from typing import NamedTuple
from xml.sax.saxutils import quoteattr

from outrider.pool.desktop.inside.x11 import Display, Geometry, XError

ATTRIBUTES = "https://accessibility.ubuntu.example.org/ns"
"""The spaces of names that OSWorld's trees use."""

_HIDDEN = "_NET_WM_STATE_HIDDEN"


class Window(NamedTuple):
    """A window of a program."""

    number: int
    title: str
    program: str
    """Its class, such as `XTerm`."""
    pid: int | None
    place: Geometry
    focused: bool
    hidden: bool


def windows(display: Display) -> list[Window]:
    """All, the lowest first."""
    found = []
    active = display.numbers(display.root, "_NET_ACTIVE_WINDOW")
    hidden = display.atom(_HIDDEN)
    for number in display.numbers(display.root, "_NET_CLIENT_LIST_STACKING"):
        try:
            place = display.geometry(number)
        except XError:
            display.sync()  # raises if it was the server and not the window that is gone
            continue
        found.append(
            Window(
                number=number,
                title=_title(display, number),
                program=_program(display, number),
                pid=next(iter(display.numbers(number, "_NET_WM_PID")), None),
                place=place,
                focused=number in active,
                hidden=hidden in display.numbers(number, "_NET_WM_STATE"),
            )
        )
    return found


def colour_root(display: Display, colour: int) -> None:
    """The background of the screen, as 0xRRGGBB."""
    display.send(2, 0, struct.pack("<III", display.root, 1 << 1, colour))
    display.send(61, 0, struct.pack("<IhhHH", display.root, 0, 0, 0, 0))
    display.sync()


def tree(display: Display) -> str:
    """The windows as XML, with the attributes that OSWorld's accessibility trees have."""
    spaces = f'xmlns:st="{ATTRIBUTES}/state" xmlns:cp="{ATTRIBUTES}/component"'
    size = f'cp:screencoord="(0, 0)" cp:size="({display.width}, {display.height})"'
    lines = [f'<desktop-frame {spaces} name="main" {size}>']
    for window in windows(display):
        shown = str(not window.hidden).lower()
        place = window.place
        lines.append(
            f"<application name={_quoted(window.program)}><frame name={_quoted(window.title)}"
            f' st:active="{str(window.focused).lower()}" st:focused="{str(window.focused).lower()}"'
            f' st:visible="{shown}" st:showing="{shown}" st:enabled="true"'
            f' cp:screencoord="({place.x}, {place.y})" cp:size="({place.width}, {place.height})"/></application>'
        )
    return "\n".join([*lines, "</desktop-frame>"])


def _title(display: Display, window: int) -> str:
    told = display.property(window, "_NET_WM_NAME")
    return told.decode(errors="replace") if told else display.property(window, "WM_NAME").decode("latin-1")


def _program(display: Display, window: int) -> str:
    """The second of the two names in its class: the kind of program."""
    return display.property(window, "WM_CLASS").rstrip(b"\0").rpartition(b"\0")[2].decode("latin-1")


def _quoted(text: str) -> str:
    """As an attribute of XML, which has no place for most control characters."""
    return quoteattr("".join(sign if sign >= " " else "\N{REPLACEMENT CHARACTER}" for sign in text))
