"""What stands in a terminal: xterm prints its screen, with the lines that scrolled away, when it is told to.

The order is an escape sequence that nobody sees, written to where the terminal's programs write; the printer is a pipe.
"""

import contextlib
import os
import select
import subprocess
import time

from outrider.pool.desktop.inside.windows import windows
from outrider.pool.desktop.inside.x11 import Display, XError

PRINT_SECONDS = 6.0

_PROGRAM = "XTerm"
_PRINT_ALL = b"\x1b[?4h\x1b[?4l\x1b[?11i"
"""Smooth scrolling on and off, so that no line is still on its way, then print all pages."""

_SECOND_HALF = "\uffff"
"""What xterm prints for the second half of a wide sign."""

_PTS_MAJORS = range(136, 144)


class Terminal:
    """The terminal in front. `pipe` is where it prints to."""

    def __init__(self, display: Display, pipe: str) -> None:
        self._display = display
        self._pipe = pipe
        os.mkfifo(pipe, 0o600)

    @property
    def resources(self) -> str:
        """How xterm must be configured."""
        settings = {"printerCommand": f"cat > {self._pipe}", "printerAutoClose": "true", "printAttributes": "0"}
        return "".join(f"{_PROGRAM}*{name}: {value}\n" for name, value in settings.items())

    def text(self) -> str | None:
        """None: no terminal has the keyboard. Not to be called twice at a time."""
        front = next((window for window in windows(self._display) if window.focused), None)
        if front is None or front.program != _PROGRAM or front.pid is None:
            return None
        device = _device_below(front.pid)
        if device is None:
            raise XError("the terminal in front runs no program, so its text cannot be read")
        with contextlib.ExitStack() as owned:
            reading = os.open(self._pipe, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            owned.callback(os.close, reading)
            writing = os.open(device, os.O_WRONLY | os.O_NOCTTY | os.O_CLOEXEC)
            owned.callback(os.close, writing)
            _order(writing)
            printed = _all_of(reading).decode(errors="replace").replace(_SECOND_HALF, "")
        return "\n".join(line.rstrip() for line in printed.splitlines()).strip("\n")


def _device_below(pid: int) -> str | None:
    """The terminal that a child of the process is controlled by."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{pid}/children") as file:  # noqa: PTH123
        for child in file.read().split():
            with contextlib.suppress(OSError), open(f"/proc/{child}/stat", "rb") as stat:  # noqa: PTH123
                number = int(stat.read().rpartition(b")")[2].split()[4])
                if os.major(number) in _PTS_MAJORS:
                    return f"/dev/pts/{os.minor(number)}"
    return None


def _order(terminal: int) -> None:
    """Write the order between what the terminal's programs write.

    Only who waits for the terminal gets a turn beside a program that prints without pause: the kernel turns away
    writers that do not. A program of its own waits, since it can be ended where the terminal was stopped.
    """
    try:
        subprocess.run(["cat"], input=_PRINT_ALL, stdout=terminal, timeout=PRINT_SECONDS, check=True)
    except subprocess.TimeoutExpired as exc:
        raise XError(f"the terminal has taken no order within {PRINT_SECONDS} s: it was stopped") from exc


def _all_of(descriptor: int) -> bytes:
    """What is written to the pipe until it is closed again."""
    end = time.monotonic() + PRINT_SECONDS
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    parts: list[bytes] = []
    while True:
        if not poll.poll(max(0, end - time.monotonic()) * 1000):
            raise XError(f"the terminal has not printed its text within {PRINT_SECONDS} s")
        part = os.read(descriptor, 1 << 16)
        if not part:
            return b"".join(parts)
        parts.append(part)
