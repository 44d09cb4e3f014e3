"""A process that code of a worker forks off is not a worker: it must never return into the worker's own code."""

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress

EXIT_FORKED = 70
"""The exit code of a forked child whose exception reached the worker's code, or which went on to its event loop."""


@contextmanager
def exit_if_forked(pid: int) -> Iterator[None]:
    """End this process at the end of the block if it is not `pid` any more: the block forked, and this is the child."""
    try:
        yield
    except BaseException:
        if os.getpid() != pid:
            with suppress(Exception):  # standard error may be closed, or the exception unwilling to be shown
                traceback.print_exc()
                sys.stderr.flush()
            os._exit(EXIT_FORKED)
        raise
    if os.getpid() != pid:
        os._exit(0)
