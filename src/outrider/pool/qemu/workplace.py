"""A folder and a guest for a while: neither is left behind, not even if we are killed."""

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from outrider.pool.qemu.vm import remove

PREFIX = ".making-"

_NEW_SECONDS = 60.0
"""So young, a folder may not have been locked yet by the one who has made it."""


@contextmanager
def workplace(cache: Path) -> Iterator[Path]:
    """A new folder, locked as long as we live; those that others have left behind are removed first."""
    for folder in cache.glob(f"{PREFIX}*"):
        _remove_if_left(folder)
    with tempfile.TemporaryDirectory(prefix=PREFIX, dir=cache) as made:
        descriptor = os.open(made, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield Path(made)
        finally:
            os.close(descriptor)


def mortal(arguments: Sequence[str]) -> list[str]:
    """The command, changed so that it is killed when we die; where that cannot be had, as it is."""
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "KILL", "--", *arguments] if setpriv else list(arguments)


def _remove_if_left(folder: Path) -> None:
    with suppress(OSError):
        if folder.stat().st_mtime > time.time() - _NEW_SECONDS:
            return
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove(folder)
        finally:
            os.close(descriptor)
