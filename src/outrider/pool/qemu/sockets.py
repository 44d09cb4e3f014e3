"""Unix sockets in folders however deep: a socket's path may have some hundred characters only."""

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_READ_BYTES = 64 * 1024 * 1024
"""The longest line that is taken."""


@contextmanager
def _short(path: Path) -> Iterator[str]:
    """Another name of the path, through a descriptor of its folder."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def listen(path: Path) -> socket.socket:
    """A socket to hand to a program: one can connect to it at once, before the program is ready to answer."""
    path.unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _short(path) as name:
            listening.bind(name)
        listening.listen(2)
    except BaseException:
        listening.close()
        raise
    return listening


async def connect(path: Path) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    with _short(path) as name:
        return await asyncio.open_unix_connection(name, limit=_READ_BYTES)
