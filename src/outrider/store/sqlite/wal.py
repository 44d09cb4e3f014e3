"""Keeps the write-ahead log short, in bytes: a long one takes room twice, and every later open reads all of it."""

import os
import sqlite3
import time

LIMIT_BYTES = 16 << 20
"""From this length on, the log is copied to the database after a commit, without waiting for anybody."""

STEP_BYTES = 4 << 20
"""A log that readers keep from starting over is looked at again after it has grown by this."""

FAR_BYTES = 64 << 20
"""From this length on, readers are waited for, `WAIT_SECONDS` at a time, so that the log can start over."""

KEPT_BYTES = 1 << 20
"""What a log that starts over keeps of its length."""

WAIT_SECONDS = 0.1
RETRY_SECONDS = 1.0
"""The pause after a copy that failed, as on a full disk."""


class WriteAheadLog:
    """The log of one database. Use it with the connection that writes, outside of transactions."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection
        (_, _, path) = connection.execute("PRAGMA database_list").fetchone()
        self._file = f"{path}-wal"
        self._due_at_bytes = LIMIT_BYTES
        self._not_before = 0.0
        connection.execute(f"PRAGMA journal_size_limit = {KEPT_BYTES}")

    def is_long(self) -> bool:
        """Whether `shorten` has something to do."""
        n_bytes = self._n_bytes()
        if n_bytes < LIMIT_BYTES:
            self._due_at_bytes = LIMIT_BYTES
            return False
        return n_bytes >= self._due_at_bytes and time.monotonic() >= self._not_before

    def shorten(self) -> None:
        """Copy the log to the database. The next commit lets it start over, unless somebody still reads in it."""
        n_bytes = self._n_bytes()
        self._not_before = time.monotonic() + RETRY_SECONDS
        if n_bytes < FAR_BYTES:
            self._db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        else:
            self._start_over()
        self._not_before = 0.0
        self._due_at_bytes = max(LIMIT_BYTES, self._n_bytes() + STEP_BYTES)

    def _start_over(self) -> None:
        self._db.execute(f"PRAGMA busy_timeout = {int(WAIT_SECONDS * 1000)}")
        try:
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        finally:
            self._db.execute("PRAGMA busy_timeout = 0")

    def _n_bytes(self) -> int:
        try:
            return os.stat(self._file).st_size  # noqa: PTH116 on the path of every commit
        except FileNotFoundError:
            return 0
