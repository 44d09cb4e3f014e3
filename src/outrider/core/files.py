"""Files and folders that only their owner may read, whatever the umask is.

What a run writes holds conversations, answers and settings. A file that is there already keeps the rights it has.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from outrider.core.crash_points import reached
from outrider.core.errors import OutriderError, StoreUnavailable

PRIVATE_FILE = 0o600
PRIVATE_FOLDER = 0o700
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})


def private(path: str | Path, flags: int) -> int:
    """The `opener` of `open` for a private file; with `os.O_CREAT`, it is made."""
    return os.open(path, flags | os.O_CLOEXEC, PRIVATE_FILE)


def write_private(path: Path, data: bytes | str) -> None:
    """Text is written as UTF-8; half characters in it are replaced."""
    content = data.encode(errors="replace") if isinstance(data, str) else data
    with open(path, "wb", opener=private) as file:
        file.write(content)


def write_private_whole(path: Path, data: bytes | str) -> None:
    """A reader finds the old file or the new one, never a part."""
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    write_private(new, data)
    reached("file.written")
    new.replace(path)


def append_whole(descriptor: int, data: bytes) -> None:
    """Append all of the data or none of it, to a file that no other process writes."""
    size = os.fstat(descriptor).st_size
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    except OSError:
        os.ftruncate(descriptor, size)
        raise


@contextmanager
def explaining_disk(path: Path) -> Iterator[None]:
    """Errors of the disk in words. `StoreUnavailable` if it is full: the block may be tried again later."""
    try:
        yield
    except OSError as exc:
        if exc.errno in NO_ROOM:
            raise StoreUnavailable(
                f"cannot write {path}: {exc.strerror}; make room on its disk, then this goes on by itself"
            ) from exc
        raise OutriderError(
            f"cannot write {path}: {exc.strerror}; check the disk, then --resume: the store keeps all results"
        ) from exc


@contextmanager
def written_private_whole(path: Path) -> Iterator[TextIO]:
    """A text file to write into, which takes the place of `path` at the end of the block, if that ends well."""
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    try:
        with open(new, "w", encoding="utf-8", opener=private) as file:
            yield file
        reached("file.streamed")
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)
