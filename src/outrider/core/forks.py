"""A process that code of a worker forks off is not a worker: it must never return into the worker's own code."""

import os
import sys
import traceback
from contextlib import AbstractContextManager, suppress
from types import TracebackType

EXIT_FORKED = 70
"""The exit code of a forked child whose exception reached the worker's code, or which went on to its event loop."""


class _OnePidOnly:
    """See `exit_if_forked`. A class, since every attempt passes a few: a generator costs several times as much."""

    __slots__ = ("_pid",)

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _where: TracebackType | None
    ) -> None:
        if os.getpid() == self._pid:
            return
        if error is None:
            os._exit(0)
        with suppress(Exception):  # standard error may be closed, or the exception unwilling to be shown
            traceback.print_exception(error)
            sys.stderr.flush()
        os._exit(EXIT_FORKED)


def exit_if_forked(pid: int) -> AbstractContextManager[None]:
    """End this process at the end of the block if it is not `pid` any more: the block forked, and this is the child."""
    return _OnePidOnly(pid)
