"""Named points between two durable writes, at which a test can have the process killed.

`OUTRIDER_CRASH_AT=POINT:N:FILE` kills whichever process, of all that share the variable, reaches POINT for the N-th
time itself, and leaves FILE behind. Nobody is killed while FILE is there. Without the variable a point does nothing.
"""

import os
import signal

VARIABLE = "OUTRIDER_CRASH_AT"


class Crash:
    """The one death that was asked for."""

    def __init__(self, given: str) -> None:
        point, number, self._file = given.split(":", 2)
        self._point = point
        self._n_left = int(number)

    def reached(self, point: str) -> None:
        if point != self._point:
            return
        self._n_left -= 1
        if self._n_left > 0:
            return
        try:
            os.close(os.open(self._file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)


_crash = Crash(os.environ[VARIABLE]) if VARIABLE in os.environ else None


def reached(point: str) -> None:
    """The process is between two writes. The name of a point stands in one place of the source only."""
    if _crash is not None:
        _crash.reached(point)


def crash_at(given: str) -> None:
    """As if the process had been started with the variable, which those it starts inherit."""
    global _crash  # noqa: PLW0603 the environment is the process's too
    os.environ[VARIABLE] = given
    _crash = Crash(given)
