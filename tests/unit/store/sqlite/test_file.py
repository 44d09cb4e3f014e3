import asyncio
import sqlite3
import time
from pathlib import Path

import pytest

from leaks import no_leaks
from ledger_moves import group
from machine_journal import owner_of
from outrider.core import wire
from outrider.core.errors import InvalidInput, SchemaMismatch, StoreError
from outrider.core.ledger import LedgerWrite
from outrider.core.rollout import RolloutConfig
from outrider.store import open_store, upgrading
from outrider.store.sql import migrations
from outrider.store.sqlite import file as sqlite_file
from outrider.store.sqlite.file import connect
from processes import line, program, tell


async def refused(path: Path, error: type[Exception], match: str) -> None:
    """Opening fails with this error, changes nothing in the folder, and leaves nothing behind."""
    before = {file: file.read_bytes() for file in path.parent.glob("*") if file.is_file()}
    async with no_leaks():
        with pytest.raises(error, match=match):
            await open_store(f"sqlite:///{path}")
    assert {file: file.read_bytes() for file in path.parent.glob("*") if file.is_file()} == before


async def test_the_database_of_another_program_is_refused_and_stays_as_it_is(tmp_path: Path):
    database = sqlite3.connect(tmp_path / "other.db")
    database.execute("CREATE TABLE rollouts (x)")
    database.commit()
    database.close()
    await refused(tmp_path / "other.db", InvalidInput, "another program")


async def test_a_file_that_is_no_database_is_refused(tmp_path: Path):
    (tmp_path / "notes.txt").write_text("just some text, and more of it " * 100)
    await refused(tmp_path / "notes.txt", InvalidInput, "not an Outrider store")


async def test_a_newer_schema_is_refused_and_stays_as_it_is(tmp_path: Path):
    path = tmp_path / "runs.db"
    known = len(migrations("sqlite"))
    connection = connect(path, synchronous="normal", create=True, migrate=True)
    connection.execute(f"PRAGMA user_version = {known + 1}")
    connection.close()
    with pytest.raises(SchemaMismatch) as caught:
        await open_store(f"sqlite:///{path}")
    assert (caught.value.found, caught.value.known) == (known + 1, known)
    await refused(path, SchemaMismatch, "upgrade")


async def test_an_empty_file_becomes_a_store(tmp_path: Path):
    (tmp_path / "runs.db").touch()
    async with open_store(f"sqlite:///{tmp_path}/runs.db") as store:
        await store.enqueue_rollout(1)


async def test_a_folder_that_does_not_exist_is_named(tmp_path: Path):
    with pytest.raises(InvalidInput, match=f"{tmp_path}/missing does not exist"):
        await open_store(f"sqlite:///{tmp_path}/missing/runs.db")


async def test_a_folder_given_as_the_file_is_refused(tmp_path: Path):
    await refused(tmp_path, InvalidInput, "is a folder")


async def test_a_file_system_shared_between_machines_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    here = sqlite_file._file_system(tmp_path)
    assert here not in sqlite_file.NETWORK_FILE_SYSTEMS
    monkeypatch.setattr(sqlite_file, "NETWORK_FILE_SYSTEMS", frozenset({here}))
    await refused(tmp_path / "runs.db", InvalidInput, f"network file system .{here}.")


def test_the_file_system_of_a_folder_is_that_of_its_innermost_mount():
    assert sqlite_file._file_system(Path("/proc")) == "proc"
    assert sqlite_file._file_system(Path("/proc/self")) == "proc"
    assert sqlite_file._file_system(Path("/")) != "proc"
    assert {"nfs4", "cifs", "9p"} <= sqlite_file.NETWORK_FILE_SYSTEMS


def test_migrating_is_done_once_and_marks_the_file_as_ours(tmp_path: Path):
    path = tmp_path / "runs.db"
    for _ in range(2):
        connection = connect(path, synchronous="full", create=True, migrate=True)
        assert connection.execute("PRAGMA user_version").fetchone() == (len(migrations("sqlite")),)
        assert connection.execute("PRAGMA application_id").fetchone() == (sqlite_file.APPLICATION_ID,)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert connection.execute("PRAGMA synchronous").fetchone() == (2,)
        connection.close()


@pytest.mark.parametrize("version", range(1, len(migrations("sqlite"))))
async def test_a_file_of_an_older_version_is_upgraded_with_all_that_is_in_it(tmp_path: Path, version: int):
    path = tmp_path / "runs.db"
    database = sqlite3.connect(path)
    for step in migrations("sqlite")[:version]:
        database.executescript(step)
    record = wire.to_record(RolloutConfig())
    for n, status in enumerate(("queuing", "succeeded")):
        database.execute(
            "INSERT INTO rollouts (rollout_id, status, mode, priority, config, enqueued_at, lane) "
            "VALUES (?, ?, ?, ?, ?, ?, ?)",
            (status, status, "train", 0, record, 1.0, "train/" if n == 0 else None),
        )
        database.execute("INSERT INTO inputs VALUES (?, ?, ?)", (n + 1, wire.encode(n), wire.encode({})))
    database.execute(
        "UPDATE rollouts SET n_attempts = 1, attempt_id = 'at-2-1-00', attempt_status = 'succeeded', worker_id = 'w', "
        "started_at = 2, heartbeat_at = 2, ended_at = 3, finish_seq = 1 WHERE seq = 2"
    )
    database.execute(f"PRAGMA application_id = {sqlite_file.APPLICATION_ID}")
    database.execute(f"PRAGMA user_version = {version}")
    database.commit()
    database.close()
    async with open_store(f"sqlite:///{path}") as store:
        counts = (await store.statistics()).rollouts
        assert {status: n for status, n in counts.items() if n} == {"queuing": 1, "succeeded": 1}
        claimed = await store.dequeue_rollout(worker_id="w")
        assert claimed is not None
        assert (claimed.rollout_id, claimed.input) == ("queuing", 0)
        await store.update_attempt(claimed.rollout_id, claimed.attempt.attempt_id, status="succeeded")
        assert [rollout.rollout_id for rollout in (await store.finished_after()).items] == ["succeeded", "queuing"]
        assert [attempt.attempt_id for attempt in await store.query_attempts("succeeded")] == ["at-2-1-00"]
        ledger = await store.open_ledger("train")
        await store.write_ledger(ledger, LedgerWrite(opened=(group(0),)))
        assert [one.rollout_id for one in await store.dequeue_many_rollouts(9, worker_id="w")] == ["g0/0", "g0/1"]
        await (await owner_of(store)).go("m1", "creating")
        assert [machine.machine_id for machine in await store.query_machines("p")] == ["m1"]


HOLDER = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.readline()
db.execute("COMMIT")
print("let go", flush=True)
sys.stdin.readline()
"""


async def test_a_file_that_another_process_is_just_making_is_waited_for(tmp_path: Path):
    with program(HOLDER, f"{tmp_path}/runs.db") as other:
        assert line(other) == "held"
        opening = asyncio.create_task(open_store(f"sqlite:///{tmp_path}/runs.db").__aenter__())
        done, _ = await asyncio.wait([opening], timeout=0.3)
        assert not done, "it did not wait"
        tell(other)
        assert line(other) == "let go"
        async with await asyncio.wait_for(opening, 30) as store:
            await store.enqueue_rollout(1)


async def test_a_file_that_was_cut_short_is_an_error_and_no_crash(tmp_path: Path):
    path = tmp_path / "runs.db"
    connect(path, synchronous="normal", create=True, migrate=True).close()
    with path.open("r+b") as file:
        file.truncate(4096)
    with pytest.raises((StoreError, InvalidInput)):
        async with open_store(f"sqlite:///{path}") as store:
            await store.enqueue_rollout(1)


async def test_bringing_a_large_store_up_to_date_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    path = tmp_path / "runs.db"
    older = len(migrations("sqlite")) - 1
    database = sqlite3.connect(path)
    for step in migrations("sqlite")[:older]:
        database.executescript(step)
    database.executescript(f"PRAGMA application_id = {sqlite_file.APPLICATION_ID}; PRAGMA user_version = {older}")
    database.close()
    monkeypatch.setattr(upgrading, "SLOW_SECONDS", 0.0)
    upgrade = sqlite_file._upgrade

    def slow_upgrade(connection: sqlite3.Connection, where: Path) -> None:
        upgrade(connection, where)
        deadline = time.monotonic() + 60
        while not caplog.messages and time.monotonic() < deadline:
            time.sleep(0.001)

    monkeypatch.setattr(sqlite_file, "_upgrade", slow_upgrade)
    connect(path, synchronous="normal", create=False, migrate=True).close()
    [message] = caplog.messages
    assert f"bringing {path} from schema {older} to {older + 1}" in message
    connect(path, synchronous="normal", create=False, migrate=True).close()
    assert len(caplog.messages) == 1, "there is nothing to do any more"
