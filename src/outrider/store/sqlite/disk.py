"""What SQLite's errors say about the disk: what may pass by itself, what may not, and both in words."""

import sqlite3
from pathlib import Path

from outrider.core.errors import StoreDamaged, StoreError, StoreUnavailable

_NO_ROOM = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE})

_PASSING = frozenset(
    {
        sqlite3.SQLITE_IOERR_WRITE,
        sqlite3.SQLITE_IOERR_TRUNCATE,
        sqlite3.SQLITE_IOERR_SHMSIZE,
        sqlite3.SQLITE_IOERR_SHMMAP,
        sqlite3.SQLITE_IOERR_SHMOPEN,
        sqlite3.SQLITE_IOERR_SHMLOCK,
        sqlite3.SQLITE_IOERR_LOCK,
        sqlite3.SQLITE_IOERR_UNLOCK,
        sqlite3.SQLITE_IOERR_RDLOCK,
        sqlite3.SQLITE_IOERR_CHECKRESERVEDLOCK,
        sqlite3.SQLITE_IOERR_ACCESS,
        sqlite3.SQLITE_IOERR_GETTEMPPATH,
        sqlite3.SQLITE_IOERR_NOMEM,
    }
)
"""I/O errors that put nothing in doubt: a call was refused, for want of room, memory, a lock or a right."""


class Disk:
    """The disk under one store, as far as errors tell. Both threads of a store report to it.

    After a failed fsync the kernel may have dropped what was written, and a second fsync would succeed without it.
    So the first such error is kept in `damage`, and nothing more may be written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.damage: StoreDamaged | None = None

    def check(self) -> None:
        """Refuse to write after the disk has failed."""
        if self.damage is not None:
            raise self.damage

    def explained(self, error: sqlite3.Error) -> StoreError:
        """`error` in words; one that puts what was written in doubt is remembered."""
        code = _code(error)
        if _damages(code):
            self.damage = self.damage or StoreDamaged(str(self._path), str(error))
            return self.damage
        if is_no_room(error):
            return StoreUnavailable(
                f"the disk of {self._path} is full; nothing was changed; make room on it, then the store goes on by "
                "itself"
            )
        if code & 0xFF == sqlite3.SQLITE_IOERR:
            return StoreUnavailable(
                f"{self._path} cannot be written: {error}; nothing was changed; check the disk, its quota and the "
                "limit on the size of files (`ulimit -f`); the store goes on by itself"
            )
        if code & 0xFF == sqlite3.SQLITE_READONLY:
            return StoreUnavailable(
                f"{self._path} cannot be written: {error}; nothing was changed; check its rights and that its disk is "
                "not mounted read-only"
            )
        return StoreUnavailable(f"SQLite refused to use {self._path}: {error}; nothing was changed")


def is_no_room(error: sqlite3.Error) -> bool:
    """Whether the disk is full."""
    return _code(error) in _NO_ROOM


def _code(error: sqlite3.Error) -> int:
    """Errors of the Python module itself, as on a closed connection, have none."""
    code: int = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    return code


def _damages(code: int) -> bool:
    kind = code & 0xFF
    if kind == sqlite3.SQLITE_IOERR:
        return code not in _PASSING
    return kind in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
