"""The session of the desktop guest: a window manager, and a look at the windows for whoever connects.

It is the desktop of `outrider.pool.desktop`, so that a task finds the same on both. It ends with its window manager.
"""

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable

from outrider.pool.desktop.inside import windows
from outrider.pool.desktop.inside.control import BACKGROUND, RESOURCES, RUN
from outrider.pool.desktop.inside.terminal import Terminal
from outrider.pool.desktop.inside.x11 import PROPERTY_CHANGE, STRING, Display, XError

START_SECONDS = 120.0
TREE_PORT, TERMINAL_PORT = 7001, 7002
SERVER = "/tmp/.X11-unix/X0"  # noqa: S108 the guest's own

_PAUSE_SECONDS = 0.1
_LISTED = "_NET_CLIENT_LIST"
_RULES = "/outrider/outrider/pool/desktop/inside/openbox.xml"


def main() -> None:
    display = _connected(time.monotonic() + START_SECONDS)
    terminal = Terminal(display, f"{RUN}/printer")
    manager = _start_manager(display, terminal.resources)
    for port, look in ((TREE_PORT, lambda: windows.tree(display)), (TERMINAL_PORT, terminal.text)):
        listening = socket.create_server(("127.0.0.1", port))
        threading.Thread(target=_serve, args=(listening, look), daemon=True).start()
    os.write(sys.stdout.fileno(), b"ready\n")
    manager.wait()


def _connected(deadline: float) -> Display:
    """The X server tells nobody but its parent when it is there."""
    while True:
        try:
            return Display(SERVER)
        except XError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_PAUSE_SECONDS)


def _start_manager(display: Display, resources: str) -> "subprocess.Popen[bytes]":
    display.select(display.root, PROPERTY_CHANGE)
    display.set_property(display.root, "RESOURCE_MANAGER", STRING, (RESOURCES + resources).encode())
    windows.colour_root(display, BACKGROUND)
    window = display.open_window()  # it manages windows last, when its keys and buttons are set up
    command = ["openbox", "--sm-disable", "--config-file", _RULES]
    null = subprocess.DEVNULL
    manager = subprocess.Popen(command, stdin=null, stdout=null, stderr=null)
    _wait_for_windows(display, (window,))
    display.close_window(window)
    _wait_for_windows(display, ())
    return manager


def _wait_for_windows(display: Display, expected: tuple[int, ...]) -> None:
    end = time.monotonic() + START_SECONDS
    while display.numbers(display.root, _LISTED) != expected:
        display.wait_for_property(display.atom(_LISTED), end - time.monotonic())


def _serve(listening: socket.socket, look: Callable[[], str | None]) -> None:
    """Each who connects is told a status and what is seen: 0, 1 for nothing, 2 and the reason for an error."""
    while True:
        connection, _ = listening.accept()
        with connection:
            try:
                seen = look()
                told = "1\n" if seen is None else f"0\n{seen}"
            except (OSError, XError) as exc:
                told = f"2\n{exc}"
            connection.sendall(told.encode())
