"""Opening the file of an embedded store: where it may lie, whose it is, and which schema it has."""

import os
import random
import sqlite3
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from outrider.core.crash_points import reached
from outrider.core.errors import InvalidInput, SchemaMismatch, StoreError, StoreUnavailable
from outrider.core.files import private
from outrider.store.sql import migrations
from outrider.store.sqlite.disk import Disk, is_no_room
from outrider.store.upgrading import announced

APPLICATION_ID = 0x0D71DE12
"""Marks a file as ours in its header."""

PAGE_BYTES = 2048
"""Half of what is usual: a commit writes whole pages to the log, and a claim or an end changes little on each."""

NETWORK_FILE_SYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre", "gpfs", "beegfs", "fuse.sshfs"}
)
OPEN_SECONDS = 60.0
UPGRADE_SECONDS = 900.0
"""How long to wait for another process that brings a large store up to date."""


def connect(
    path: Path, *, synchronous: str, create: bool, migrate: bool, options: str = "mode=rwc"
) -> sqlite3.Connection:
    """A connection to the store in `path`; with `migrate`, its schema is made or brought up to date first."""
    _refuse_bad_place(path, create=create)
    if migrate and path.exists() and not os.access(path, os.W_OK):
        raise StoreUnavailable(
            f"cannot write the store in {path}; check its rights and that its disk is not mounted read-only "
            "(`outrider status`, `show`, `view` and `export` read it all the same)"
        )
    try:
        if create and not path.exists():  # SQLite would make it readable for all
            os.close(private(path, os.O_RDWR | os.O_CREAT))
            reached("sqlite.file_made")
    except OSError as exc:
        raise StoreUnavailable(
            f"cannot make the store in {path}: {exc.strerror}; check the path, its rights and the disk"
        ) from exc
    try:
        return _connected(path, options, synchronous, _migrate if migrate else None)
    except sqlite3.OperationalError as exc:
        raise _refused(path, exc) from exc
    except sqlite3.DatabaseError as exc:
        raise InvalidInput(f"{path} is not an Outrider store: {exc}; give another file") from exc


def connect_to_read(path: Path, *, synchronous: str) -> sqlite3.Connection:
    """A connection that reads the store in `path`, also where nothing can be written.

    Where the file can be written, its schema is brought up to date first.
    """
    if os.access(path, os.W_OK) and os.access(path.parent, os.W_OK):
        with suppress(StoreUnavailable):  # as on a full disk
            connection = connect(path, synchronous=synchronous, create=False, migrate=True)
            connection.execute("PRAGMA query_only = ON")
            return connection
    _refuse_bad_place(path, create=False)
    try:
        try:
            return _connected(path, "mode=ro", synchronous, _check_schema)
        except sqlite3.OperationalError:
            if _has_log(path):
                raise
            # Without a log, SQLite wants one all the same, unless it is told that nobody writes.
            return _connected(path, "mode=ro&immutable=1", synchronous, _check_schema)
    except sqlite3.OperationalError as exc:
        if _has_log(path):
            raise StoreUnavailable(
                f"cannot read {path}: {exc}; its last writes are in {path.name}-wal, which needs a folder that can be "
                f"written: copy {path.name} and {path.name}-wal to one, and read them there"
            ) from exc
        raise _refused(path, exc) from exc
    except sqlite3.DatabaseError as exc:
        raise InvalidInput(f"{path} is not an Outrider store: {exc}; give another file") from exc


def _connected(
    path: Path, options: str, synchronous: str, prepare: Callable[[sqlite3.Connection, Path], None] | None
) -> sqlite3.Connection:
    uri = f"{path.absolute().as_uri()}?{options}"
    connection = sqlite3.connect(uri, uri=True, timeout=OPEN_SECONDS, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA cache_size = -65536")
        if prepare is not None:
            prepare(connection, path)
        connection.execute(f"PRAGMA synchronous = {synchronous}")
        connection.execute("PRAGMA temp_store = MEMORY")
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        # From here on the thread that owns the connection waits for locks in its own way.
        connection.execute("PRAGMA busy_timeout = 0")
    except BaseException:
        connection.close()
        raise
    return connection


def _refused(path: Path, error: sqlite3.OperationalError) -> StoreError:
    if is_no_room(error):
        return Disk(path).explained(error)
    return StoreUnavailable(f"cannot open the store in {path}: {error}; check the path, its rights and the disk")


def _has_log(path: Path) -> bool:
    log = path.with_name(f"{path.name}-wal")
    return log.exists() and log.stat().st_size > 0


def _check_schema(connection: sqlite3.Connection, path: Path) -> None:
    """Refuse what this version cannot read as it is."""
    _refuse_foreign(connection, path)
    known = len(migrations("sqlite"))
    if (version := _known_version(connection, known, path)) < known:
        raise StoreUnavailable(
            f"{path} has schema {version}, this Outrider reads {known}; copy it to a folder that can be written: "
            "opening it there brings it up to date"
        )


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    steps = migrations("sqlite")
    # Before anything is changed, the journal mode too: a file that is refused stays as it is. In one transaction,
    # for another process may be making the store right now.
    connection.execute("BEGIN")
    try:
        _refuse_foreign(connection, path)
        version = _known_version(connection, len(steps), path)
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
    _use_wal(connection)
    if version == len(steps):
        return  # and nothing is written, for the disk may be full
    reached("sqlite.journal_set")
    with announced(str(path), version, len(steps)):
        _upgrade(connection, path)


def _upgrade(connection: sqlite3.Connection, path: Path) -> None:
    steps = migrations("sqlite")
    connection.execute(f"PRAGMA busy_timeout = {int(UPGRADE_SECONDS * 1000)}")
    connection.execute("BEGIN IMMEDIATE")
    try:
        _refuse_foreign(connection, path)
        version = _known_version(connection, len(steps), path)
        for step in steps[version:]:
            for statement in _statements(step):
                connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {len(steps)}")
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        reached("sqlite.schema_made")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _use_wal(connection: sqlite3.Connection) -> None:
    """Switch the journal. SQLite itself does not wait for a lock here, so that two who switch at once would fail."""
    connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")  # of a file that is new
    deadline = time.monotonic() + OPEN_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as exc:
            if exc.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(random.uniform(0.001, 0.01))
        else:
            return


def _statements(script: str) -> list[str]:
    """The statements of a script; unlike `executescript` this leaves the transaction open."""
    statements, pending = [], ""
    for line in script.splitlines(keepends=True):
        pending += line
        if sqlite3.complete_statement(pending):
            statements.append(pending)
            pending = ""
    return statements


def _known_version(connection: sqlite3.Connection, known: int, path: Path) -> int:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > known:
        raise SchemaMismatch(f"sqlite:///{path}", version, known)
    return int(version)


def _refuse_foreign(connection: sqlite3.Connection, path: Path) -> None:
    (application_id,) = connection.execute("PRAGMA application_id").fetchone()
    (n_tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if n_tables and application_id != APPLICATION_ID:
        raise InvalidInput(f"{path} is a database of another program; give another file")


def _refuse_bad_place(path: Path, *, create: bool) -> None:
    if not create and not path.exists():
        raise InvalidInput(f"there is no store in {path}; make one with `outrider enqueue --store sqlite:///{path} …`")
    if path.is_dir():
        raise InvalidInput(f"{path} is a folder; give the file of the store in it, such as {path / 'outrider.db'}")
    if not path.parent.is_dir():
        raise InvalidInput(f"the folder {path.parent} does not exist; make it first")
    if (kind := _file_system(path.parent)) in NETWORK_FILE_SYSTEMS:
        raise InvalidInput(
            f"{path} lies on a network file system ({kind}), where SQLite loses data when several machines write; "
            "use a local disk, or PostgreSQL for several machines"
        )


def _file_system(folder: Path) -> str:
    """The kind of file system that holds `folder`, where the system tells; else an empty text."""
    mounts = Path("/proc/self/mounts")
    if not mounts.exists():
        return ""
    best, kind = "", ""
    resolved = str(folder.resolve())
    for line in mounts.read_text().splitlines():
        _, mount, found, *_ = line.split(" ")
        inside = resolved == mount or resolved.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(best):
            best, kind = mount, found
    return kind
