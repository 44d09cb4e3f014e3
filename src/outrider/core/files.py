"""Files and folders that only their owner may read, whatever the umask is.

What a run writes holds conversations, answers and settings. A file that is there already keeps the rights it has.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from outrider.core.crash_points import reached

PRIVATE_FILE = 0o600
PRIVATE_FOLDER = 0o700


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


@contextmanager
def written_private_whole(path: Path) -> Iterator[TextIO]:
    """A text file to write into, which takes the place of `path` at the end of the block, if that ends well."""
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    try:
        with open(new, "w", encoding="utf-8", opener=private) as file:
            yield file
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)
