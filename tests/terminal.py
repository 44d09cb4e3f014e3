"""A command on a terminal of its own, for tests of what people see."""

import os
import pty
import select
import subprocess
from collections.abc import Callable, Sequence

TERMINAL_SECONDS = 60


def run_on_terminal(
    command: Sequence[str], *, columns: int = 140, hear: Callable[[str], object] = lambda _: None
) -> tuple[int, str]:
    """The exit code of a command whose input and output are a terminal, and all that it wrote there.

    `hear` gets each piece as it comes.
    """
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(columns)}
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        written = b""
        try:
            while select.select([ours], [], [], TERMINAL_SECONDS)[0]:
                piece = os.read(ours, 65536)
                hear(piece.decode(errors="replace"))
                written += piece
        except OSError:  # how a terminal says that nobody holds its other end
            process.wait(timeout=TERMINAL_SECONDS)
        finally:
            os.close(ours)
            process.kill()
    return process.returncode, written.decode(errors="replace")
