"""The program that runs a desktop: starts it, then does what its owner asks for, until either of them ends.

When this process ends, so does the enclosure: the X server, the window manager and all programs with it.
"""

import contextlib
import os
import resource
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from outrider.pool.desktop.inside import windows
from outrider.pool.desktop.inside.frames import BadFrame, Frames, frame
from outrider.pool.desktop.inside.hands import Hands
from outrider.pool.desktop.inside.programs import Programs
from outrider.pool.desktop.inside.screen import Screen
from outrider.pool.desktop.inside.terminal import Terminal
from outrider.pool.desktop.inside.x11 import PROPERTY_CHANGE, STRING, WINDOW, Display, XError

RUN = "/run/desktop"
USER = "user"
HOME = f"/home/{USER}"
SERVER_SECONDS = 15.0
BACKGROUND = 0x3B5B7A
N_PROCESSES = 1024
"""How many processes and threads there may be, if it was root who made the desktop."""

_FOLDERS = ("Desktop", "Documents", "Downloads")
_READ_BYTES = 1 << 16
_LOG_BYTES = 4000
RESOURCES = """\
XTerm*faceName: DejaVu Sans Mono
XTerm*faceSize: 11
XTerm*geometry: 90x26
XTerm*saveLines: 2000
XTerm*locale: true
XTerm*background: #ffffff
XTerm*foreground: #000000
"""

Answer = tuple[dict[str, Any], bytes]


class Control:
    """Eyes and hands, and the line to the owner."""

    def __init__(self, line: socket.socket, variables: dict[str, str]) -> None:
        self._line = line
        self._sending = threading.Lock()
        self._looking = threading.Lock()
        self._reading_terminal = threading.Lock()
        self._acting = threading.Lock()
        self._variables = variables
        self._programs = Programs(variables, RUN)
        threading.Thread(target=self._end_with_owner, daemon=True).start()

    def start(self, size: str) -> None:
        """Bring up the desktop. Raises `XError` if it does not come."""
        server = self._start_server(size)
        self._display = Display("/tmp/.X11-unix/X0")  # noqa: S108 the enclosure's own
        self._screen = Screen(f"{RUN}/Xvfb_screen0")
        self._terminal = Terminal(self._display, f"{RUN}/printer")
        self._hands = Hands(self._display, server, self._start_manager())
        self._calls: dict[str, Callable[[dict[str, Any], bytes], Answer]] = {
            "screenshot": self._screenshot,
            "input": self._input,
            "execute": self._execute,
            "launch": self._launch,
            "read": self._read,
            "write": self._write,
            "pointer": lambda _, __: ({"at": self._display.pointer()}, b""),
            "tree": lambda _, __: ({}, windows.tree(self._display).encode()),
            "terminal": self._terminal_text,
            "windows": lambda _, __: (
                {"windows": [window._asdict() for window in windows.windows(self._display)]},
                b"",
            ),
            "mark": self._mark,
            "marked": self._marked,
        }

    def serve(self) -> None:
        """Until the owner hangs up."""
        self._send({"ready": True})
        frames = Frames()
        while data := self._line.recv(_READ_BYTES):
            for head, body in frames.feed(data):
                try:
                    threading.Thread(target=self._answer, args=(head, body), daemon=True).start()
                except RuntimeError as exc:
                    self.end(f"the desktop has too many processes: {exc}")

    def _answer(self, head: dict[str, Any], body: bytes) -> None:
        number = head["id"]
        try:
            told, data = self._calls[head["call"]](head, body)
        except ValueError as exc:  # nothing was done
            self._send({"id": number, "refused": str(exc) or type(exc).__name__})
        except (OSError, TypeError, XError, subprocess.SubprocessError) as exc:
            self._send({"id": number, "error": str(exc) or type(exc).__name__})
        else:
            self._send({"id": number, **told}, data)

    def _send(self, head: dict[str, Any], body: bytes = b"") -> None:
        try:
            message = frame(head, body)
        except BadFrame as exc:
            message = frame({"id": head.get("id"), "error": str(exc)})
        with self._sending, contextlib.suppress(OSError):
            self._line.sendall(message)

    def _start_server(self, size: str) -> int:
        reading, writing = os.pipe()
        command = ["Xvfb", ":0", "-screen", "0", f"{size}x24", "-fbdir", RUN, "-nolisten", "tcp", "-noreset"]
        pid = self._keep([*command, "-displayfd", str(writing)], "the X server", writing)
        os.close(writing)
        told = b""
        while b"\n" not in told:
            part = os.read(reading, 64)
            if not part:
                raise XError("the X server did not start")
            told += part
        os.close(reading)
        return pid

    def _start_manager(self) -> int:
        display = self._display
        display.select(display.root, PROPERTY_CHANGE)
        resources = RESOURCES + self._terminal.resources
        display.set_property(display.root, "RESOURCE_MANAGER", STRING, resources.encode())
        windows.colour_root(display, BACKGROUND)
        rules = os.path.join(os.path.dirname(__file__), "openbox.xml")  # noqa: PTH118, PTH120
        window = display.open_window()  # it manages windows last, when its keys and buttons are set up
        pid = self._keep(["openbox", "--sm-disable", "--config-file", rules], "the window manager")
        self._wait_for_windows((window,))
        display.close_window(window)
        self._wait_for_windows(())
        return pid

    def _wait_for_windows(self, expected: tuple[int, ...]) -> None:
        display, listed, end = self._display, "_NET_CLIENT_LIST", time.monotonic() + SERVER_SECONDS
        while display.numbers(display.root, listed) != expected:
            display.wait_for_property(display.atom(listed), end - time.monotonic())

    def _end_with_owner(self) -> None:
        """Also while the desktop is still being started."""
        poll = select.poll()
        poll.register(self._line, select.POLLRDHUP | select.POLLHUP)
        poll.poll()
        os._exit(0)

    def _keep(self, command: list[str], name: str, *descriptors: int) -> int:
        """A program without which there is no desktop: when it ends, all ends."""
        with open(f"{RUN}/log", "ab") as log:  # noqa: PTH123 pathlib is slow to import
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._variables,
                pass_fds=descriptors,
                cwd=HOME,
            )
        threading.Thread(target=self._attend, args=(process, name), daemon=True).start()
        return process.pid

    def _attend(self, process: "subprocess.Popen[bytes]", name: str) -> None:
        code = process.wait()
        self.end(f"{name} ended with code {code}")

    def end(self, reason: str) -> None:
        """Tell the owner why, and end everything."""
        log = (self._programs.read_file(f"{RUN}/log") or b"")[-_LOG_BYTES:].decode(errors="replace")
        self._send({"dying": reason, "log": log})
        os._exit(1)

    def _screenshot(self, _: dict[str, Any], __: bytes) -> Answer:
        self._display.sync()
        with self._looking:
            return {}, self._screen.png()

    def _input(self, head: dict[str, Any], _: bytes) -> Answer:
        with self._acting:
            self._hands.act(head["events"])
        return {}, b""

    def _execute(self, head: dict[str, Any], _: bytes) -> Answer:
        ended = self._programs.execute(head["command"], head["limit"])
        return {"returncode": ended.returncode, "n_stdout": len(ended.stdout)}, ended.stdout + ended.stderr

    def _launch(self, head: dict[str, Any], _: bytes) -> Answer:
        self._programs.launch(head["command"])
        return {}, b""

    def _read(self, head: dict[str, Any], _: bytes) -> Answer:
        data = self._programs.read_file(head["path"])
        return {"found": data is not None}, data or b""

    def _write(self, head: dict[str, Any], body: bytes) -> Answer:
        self._programs.write_file(head["path"], body)
        return {}, b""

    def _terminal_text(self, _: dict[str, Any], __: bytes) -> Answer:
        with self._reading_terminal:
            text = self._terminal.text()
        return {"found": text is not None}, (text or "").encode()

    def _mark(self, head: dict[str, Any], _: bytes) -> Answer:
        self._display.set_property(self._display.root, head["name"], WINDOW, b"\1\0\0\0", bits=32)
        self._display.sync()
        return {}, b""

    def _marked(self, head: dict[str, Any], _: bytes) -> Answer:
        return {"marked": bool(self._display.property(self._display.root, head["name"]))}, b""


def main() -> None:
    descriptor, size, user, python = int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4]
    os.closerange(3, descriptor)
    os.closerange(descriptor + 1, os.sysconf("SC_OPEN_MAX"))
    os.set_inheritable(descriptor, False)
    if os.getpid() == 1 and (pid := os.fork()):
        os.close(descriptor)
        _stand_first(pid)
    if user != "-":
        os.setgroups([])
        os.setresgid(*[int(user)] * 3)
        os.setresuid(*[int(user)] * 3)
        resource.setrlimit(resource.RLIMIT_NPROC, (N_PROCESSES, N_PROCESSES))  # counted for this user alone
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.umask(0o022)
    for folder in (RUN, HOME, *(f"{HOME}/{name}" for name in _FOLDERS), f"{RUN}/session"):
        os.mkdir(folder)  # noqa: PTH102
    line = socket.socket(fileno=descriptor)
    control = Control(line, _variables(python))
    try:
        control.start(size)
    except (OSError, XError) as exc:
        control.end(str(exc))
    with contextlib.suppress(OSError, BadFrame):
        control.serve()
    os._exit(0)


def _stand_first(pid: int) -> None:
    """Bury the dead, as the first process of a namespace must, and end, with all others, when the control program does.

    It stays who it is: a change of its user would undo the bond to the life of bubblewrap.
    """
    while os.wait()[0] != pid:
        pass
    os._exit(0)


def _variables(python: str) -> dict[str, str]:
    """The whole environment of the desktop's programs."""
    return {
        "HOME": HOME,
        "USER": USER,
        "LOGNAME": USER,
        "SHELL": "/bin/bash",
        "PATH": f"/usr/local/bin:/usr/bin:/bin:/usr/games:{os.path.dirname(python)}",  # noqa: PTH120
        "LANG": "C.UTF-8",
        "DISPLAY": ":0",
        "XDG_RUNTIME_DIR": f"{RUN}/session",
        "NO_AT_BRIDGE": "1",
    }
