"""What is made once and kept on disk: made by one process while others wait, published whole, checked when opened.

Invariants:
- A published folder is complete: it is made under another name and renamed.
- Its manifest has the size and digest of every file in it; what does not match is damaged, and made again.
- The lock is the kernel's: it ends with the process that holds it.
"""

import asyncio
import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from outrider.core.decoding import from_json
from outrider.core.errors import EnvError

FORMAT = 1
"""Raised when the files of an index change, so that an old one is not taken for a new one."""

LOCK_SECONDS = 3_600.0
"""How long to wait for another process that makes the same thing."""

_LOOK_SECONDS = 0.05
_MANIFEST = "manifest.json"


class Damaged(Exception):
    """There is no whole folder at this place."""


class FileMark(Struct, frozen=True):
    """How a file of a folder must be."""

    size: int
    digest: str


@asynccontextmanager
async def locked(place: Path) -> AsyncIterator[None]:
    """Alone among all processes with what is to stand at `place`."""
    descriptor = os.open(place.with_name(f"{place.name}.lock"), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
    try:
        await _lock(descriptor, place)
        yield
    finally:
        os.close(descriptor)


async def _lock(descriptor: int, place: Path) -> None:
    try:
        async with asyncio.timeout(LOCK_SECONDS):
            while True:
                with suppress(BlockingIOError):
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return
                await asyncio.sleep(_LOOK_SECONDS)
    except TimeoutError as exc:
        raise EnvError(f"another process has been making {place} for {LOCK_SECONDS:g} s", stage="rag.index") from exc


def new_part(place: Path) -> Path:
    """An empty folder beside `place`, to make it in. Called under the lock: what dead makers left is removed."""
    for left in place.parent.glob(f"{place.name}.part-*"):
        shutil.rmtree(left, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{place.name}.part-", dir=place.parent))


def publish(part: Path, place: Path) -> None:
    """Seal what was made and put it at `place`, where something damaged may stand."""
    marks = {file.name: _mark(file) for file in part.iterdir()}
    (part / _MANIFEST).write_bytes(msgspec.json.encode(marks))
    part.chmod(0o755)
    if place.is_dir():
        shutil.rmtree(place)
    else:
        place.unlink(missing_ok=True)
    part.rename(place)


def check_whole(place: Path) -> None:
    """Raise `Damaged` unless the folder at `place` is as it was published."""
    try:
        marks = from_json((place / _MANIFEST).read_bytes(), dict[str, FileMark])
        for name, mark in marks.items():
            file = place / name
            if file.stat().st_size != mark.size or _mark(file) != mark:
                raise Damaged(f"{file} has changed")
    except (OSError, msgspec.MsgspecError) as exc:
        raise Damaged(str(exc)) from exc


def _mark(file: Path) -> FileMark:
    with file.open("rb") as opened:
        digest = hashlib.file_digest(opened, lambda: hashlib.blake2b(digest_size=16))
    return FileMark(size=file.stat().st_size, digest=digest.hexdigest())
