import asyncio
import sqlite3
import threading
import time
from collections.abc import AsyncIterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from outrider.core.errors import InvalidInput, StoreError, StoreUnavailable
from outrider.store.sqlite.disk import Disk
from outrider.store.sqlite.lock_signal import LockSignal
from outrider.store.sqlite.thread import BATCH, SqliteThread, carry_out_each
from outrider.testing import eventually
from processes import line, output_of, program, tell
from promptly import within


@pytest.fixture
def path(tmp_path: Path) -> Path:
    connection = sqlite3.connect(tmp_path / "t.db")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("CREATE TABLE t (n INTEGER PRIMARY KEY)")
    connection.close()
    return tmp_path / "t.db"


@pytest.fixture
async def thread(path: Path) -> AsyncIterator[SqliteThread]:
    thread = new_thread(path)
    await thread.start()
    yield thread
    await asyncio.wait_for(thread.stop(), 10)


class Desk:
    """Calls are functions of the connection."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection

    def carry_out(self, calls):
        return carry_out_each(self.connection, [partial(call, self.connection) for call in calls])

    def committed(self) -> None:
        return None

    def is_untidy(self) -> bool:
        return False

    def tidy(self) -> None: ...


def new_thread(
    path: Path, busy_seconds: float = 10.0, quick: tuple[type, ...] = (), desk: type[Desk] = Desk
) -> SqliteThread:
    def open_desk() -> Desk:
        return desk(sqlite3.connect(path, isolation_level=None, timeout=0, check_same_thread=False))

    signal = LockSignal(path.parent / "lock")
    return SqliteThread(
        "test", open_desk=open_desk, disk=Disk(path), busy_seconds=busy_seconds, lock_signal=signal, quick=quick
    )


def insert(n: int):
    def operation(db: sqlite3.Connection) -> int:
        db.execute("INSERT INTO t VALUES (?)", (n,))
        return n

    return operation


def then_raise(operation, error: Exception):
    def torn(db: sqlite3.Connection) -> None:
        operation(db)
        raise error

    return torn


def numbers(db: sqlite3.Connection) -> list[int]:
    return [n for (n,) in db.execute("SELECT n FROM t ORDER BY n")]


def refuse(_: sqlite3.Connection) -> None:
    raise InvalidInput("refused before anything was written")


async def in_one_batch(thread: SqliteThread, *operations) -> list:
    """The outcomes of operations that the thread finds all at once when it looks."""
    go = threading.Event()
    first = thread.submit(lambda _: go.wait(10))
    await asyncio.sleep(0.01)
    futures = [thread.submit(operation) for operation in operations]
    go.set()
    await first
    return await asyncio.wait_for(asyncio.gather(*futures, return_exceptions=True), 10)


async def test_one_failing_operation_harms_no_neighbour(thread: SqliteThread):
    outcomes = await in_one_batch(
        thread,
        insert(1),
        refuse,
        insert(2),
        then_raise(insert(3), InvalidInput("torn")),
        insert(1),
        insert(4),
        then_raise(insert(5), ValueError("a bug")),
        then_raise(insert(6), UnicodeEncodeError("utf-8", "\ud800", 0, 1, "half")),
        insert(7),
    )
    kinds = [outcome if isinstance(outcome, int) else type(outcome) for outcome in outcomes]
    assert kinds == [1, InvalidInput, 2, InvalidInput, StoreUnavailable, 4, ValueError, UnicodeEncodeError, 7]
    assert await thread.submit(numbers) == [1, 2, 4, 7]


async def test_a_torn_operation_alone_is_rolled_back(thread: SqliteThread):
    with pytest.raises(InvalidInput, match="torn"):
        await thread.submit(then_raise(insert(1), InvalidInput("torn")))
    with pytest.raises(StoreUnavailable, match="nothing was changed"):
        await thread.submit(lambda db: (insert(2)(db), insert(2)(db)))
    assert await thread.submit(numbers) == []


async def test_more_operations_than_a_batch_holds_are_all_carried_out(thread: SqliteThread):
    outcomes = await in_one_batch(thread, *(insert(n) for n in range(3 * BATCH + 5)))
    assert outcomes == list(range(3 * BATCH + 5))


async def test_an_operation_is_carried_out_even_if_its_caller_is_cancelled(thread: SqliteThread):
    future = thread.submit(insert(1))
    future.cancel()
    assert await thread.submit(numbers) == [1]


async def test_the_result_of_a_cancelled_call_goes_to_who_takes_care_of_it(thread: SqliteThread):
    orphans = []
    future = thread.submit(insert(1), orphaned=orphans.append)
    future.cancel()
    failed = thread.submit(refuse, orphaned=orphans.append)
    failed.cancel()
    await thread.submit(insert(2), orphaned=orphans.append)
    assert orphans == [1]


async def test_stopping_carries_out_what_was_asked_before(path: Path):
    thread = new_thread(path)
    await thread.start()
    futures = [thread.submit(insert(n)) for n in range(2 * BATCH)]
    await thread.stop()
    assert [future.result() for future in futures] == list(range(2 * BATCH))
    with pytest.raises(StoreError, match="closed"):
        thread.submit(numbers)
    await thread.stop()


async def test_what_connecting_raises_is_raised_by_start(tmp_path: Path):
    thread = new_thread(tmp_path / "missing" / "t.db")
    with pytest.raises(sqlite3.OperationalError):
        await thread.start()


LOCKER = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("BEGIN IMMEDIATE")
print("locked", flush=True)
sys.stdin.readline()
db.execute("ROLLBACK")
print("unlocked", flush=True)
sys.stdin.readline()
"""


async def test_a_lock_held_by_another_process_is_waited_for_but_not_for_ever(path: Path):
    thread = new_thread(path, busy_seconds=0.2)
    await thread.start()
    with program(LOCKER, str(path)) as other:
        assert line(other) == "locked"
        with within(5), pytest.raises(StoreUnavailable, match=r"locked by another process for 0\.2 s"):
            await asyncio.wait_for(thread.submit(insert(1)), 30)
        patient = thread.submit(insert(2))
        tell(other)
        assert line(other) == "unlocked"
        assert await asyncio.wait_for(patient, 10) == 2
    await thread.stop()


FORKED = """
import asyncio, os, sys, warnings
warnings.simplefilter("ignore")
from outrider.core.errors import StoreError
from outrider.store import open_store

async def main():
    async with open_store(sys.argv[1]) as store:
        await store.enqueue_rollout(1)
        child = os.fork()
        if child == 0:
            try:
                await store.enqueue_rollout(2)
            except StoreError as error:
                print(error, flush=True)
                os._exit(0)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        assert (await store.query_rollouts()).total == 1

asyncio.run(main())
"""


def test_a_store_used_after_a_fork_says_what_to_do(tmp_path: Path):
    assert "open it there again" in output_of(FORKED, f"sqlite:///{tmp_path}/runs.db")


FORGOTTEN = """
import asyncio, sys
from outrider.store import open_store

async def main():
    store = await open_store(sys.argv[1])
    await store.enqueue_rollout(1)
    print("acknowledged")

asyncio.run(main())
"""


def test_a_process_ends_even_if_it_forgot_to_close_its_store(tmp_path: Path):
    assert output_of(FORGOTTEN, f"sqlite:///{tmp_path}/runs.db") == "acknowledged"
    database = sqlite3.connect(tmp_path / "runs.db")
    assert database.execute("SELECT count(*) FROM rollouts").fetchone() == (1,)
    database.close()


async def test_a_lock_that_another_process_holds_for_long_is_asked_for_less_and_less_often(path: Path):
    tries: list[str] = []

    class Counted(Desk):
        def __init__(self, connection: sqlite3.Connection) -> None:
            super().__init__(connection)
            connection.set_trace_callback(tries.append)

    thread = new_thread(path, desk=Counted)
    await thread.start()
    with closing(sqlite3.connect(path, isolation_level=None)) as other_process:
        other_process.execute("BEGIN IMMEDIATE")
        asked = thread.submit(insert(1))
        await asyncio.sleep(1.0)
        n_tries = tries.count("BEGIN IMMEDIATE")
        other_process.execute("ROLLBACK")
        assert await asked == 1
    await asyncio.wait_for(thread.stop(), 10)
    assert 3 <= n_tries <= 50


@pytest.mark.parametrize("call", [insert(1), then_raise(insert(1), ValueError("a bug"))], ids=["commit", "rollback"])
async def test_who_waits_for_a_lock_has_it_as_soon_as_another_of_ours_frees_it(path: Path, monkeypatch, call):
    for pause in ("SHORT_PAUSE_SECONDS", "LONG_PAUSE_SECONDS"):
        monkeypatch.setattr(f"outrider.store.sqlite.thread.{pause}", 60.0)
    holder, waiter = new_thread(path), new_thread(path, busy_seconds=60.0)
    await holder.start()
    await waiter.start()
    has_lock, go = threading.Event(), threading.Event()

    def hold(db: sqlite3.Connection) -> int:
        has_lock.set()
        go.wait(10)
        return call(db)

    held = holder.submit(hold)
    await asyncio.to_thread(has_lock.wait, 10)
    waited = [waiter.submit(insert(n)) for n in (2, 3)]
    await eventually(lambda: asyncio.to_thread((path.parent / "lock").exists))
    go.set()
    with within(5):
        assert await asyncio.gather(*waited) == [2, 3]
    await asyncio.gather(held, return_exceptions=True)
    for thread in (holder, waiter):
        await asyncio.wait_for(thread.stop(), 10)


async def test_where_no_pipe_can_be_made_a_lock_is_looked_for_all_the_same(path: Path):
    (path.parent / "lock").write_text("in its place")
    thread = new_thread(path)
    await thread.start()
    with closing(sqlite3.connect(path, isolation_level=None)) as other_process:
        other_process.execute("BEGIN IMMEDIATE")
        asked = thread.submit(insert(1))
        await asyncio.sleep(0.2)
        other_process.execute("ROLLBACK")
        assert await asked == 1
    await asyncio.wait_for(thread.stop(), 10)
    assert (path.parent / "lock").read_text() == "in its place"


class Quick:
    """A call that may be carried out on the event loop; it tells where it was."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __call__(self, db: sqlite3.Connection) -> str:
        db.execute("INSERT INTO t VALUES (?)", (self.n,))
        return threading.current_thread().name


@pytest.fixture
async def quick_thread(path: Path) -> AsyncIterator[SqliteThread]:
    thread = new_thread(path, quick=(Quick,))
    await thread.start()
    yield thread
    await asyncio.wait_for(thread.stop(), 10)


async def test_quick_calls_stay_on_the_event_loop_while_the_thread_is_idle(quick_thread: SqliteThread):
    here = threading.current_thread().name
    assert await asyncio.gather(*(quick_thread.submit(Quick(n)) for n in range(5))) == [here] * 5

    mixed = await asyncio.gather(quick_thread.submit(Quick(5)), quick_thread.submit(insert(6)))
    assert mixed == ["test", 6]
    many = await asyncio.gather(*(quick_thread.submit(Quick(n)) for n in range(100, 100 + BATCH)))
    assert set(many) == {"test"}


async def test_a_quick_call_behind_a_slow_one_waits_for_its_turn_in_the_thread(quick_thread: SqliteThread):
    release = threading.Event()
    slow = quick_thread.submit(lambda _: release.wait(10))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    quick = quick_thread.submit(Quick(1))
    await asyncio.sleep(0)
    release.set()
    assert await slow
    assert await quick == "test"
    here = threading.current_thread().name
    while await quick_thread.submit(Quick(time.monotonic_ns())) != here:
        await asyncio.sleep(0)


async def test_a_quick_call_that_finds_the_database_locked_does_not_hold_up_the_event_loop(
    quick_thread: SqliteThread, path: Path
):
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    waiting = quick_thread.submit(Quick(1))
    with within(2):
        for _ in range(20):
            await asyncio.sleep(0.01)
    assert not waiting.done()
    other.execute("ROLLBACK")
    other.close()
    assert await waiting == "test"


async def test_a_quick_call_that_fails_harms_no_neighbour(quick_thread: SqliteThread):
    await quick_thread.submit(Quick(1))
    results = await asyncio.gather(*(quick_thread.submit(Quick(n)) for n in (2, 1, 3)), return_exceptions=True)
    assert [type(result) for result in results] == [str, StoreUnavailable, str]
    count = await quick_thread.submit(lambda db: db.execute("SELECT count(*) FROM t").fetchone()[0])
    assert count == 3


async def test_upkeep_that_fails_is_said_once_and_harms_no_call(path: Path, caplog: pytest.LogCaptureFixture):
    class FullDisk(Desk):
        def tidy(self) -> None:
            if numbers(self.connection):
                self.connection.execute("PRAGMA max_page_count = 2")
                try:
                    self.connection.execute("CREATE TABLE more (x)")
                finally:
                    self.connection.execute("PRAGMA max_page_count = 1000000")

    thread = new_thread(path, desk=FullDisk)
    await thread.start()
    for n in range(5):
        assert await asyncio.wait_for(thread.submit(insert(n)), 10) == n
    await asyncio.wait_for(thread.stop(), 10)
    assert [f"the disk of {path} is full" in record.message for record in caplog.records] == [True]


async def test_a_thread_that_dies_fails_what_waits_and_what_follows(path: Path):
    class Dying(Desk):
        def tidy(self) -> None:
            if numbers(self.connection):
                raise RuntimeError("a bug in upkeep")

    thread = new_thread(path, desk=Dying)
    await thread.start()
    go = threading.Event()
    first = thread.submit(lambda db: (go.wait(10), insert(1)(db)))
    await asyncio.sleep(0.01)
    behind = [thread.submit(insert(n)) for n in range(2, 5)]
    await asyncio.sleep(0)
    go.set()
    assert (await asyncio.wait_for(first, 10))[1] == 1
    for future in (*behind, thread.submit(insert(5))):
        with pytest.raises(StoreError, match=r"'test' of this store ended with RuntimeError: a bug.*; open"):
            await asyncio.wait_for(future, 10)
    with pytest.raises(StoreError, match="a bug in upkeep"):
        thread.submit(insert(6)).result()
    await asyncio.wait_for(thread.stop(), 10)


async def test_a_call_that_ends_its_own_transaction_harms_no_other(thread: SqliteThread):
    with pytest.raises(StoreUnavailable, match="no transaction is active"):
        await asyncio.wait_for(thread.submit(lambda db: db.execute("ROLLBACK")), 10)
    assert await asyncio.wait_for(thread.submit(insert(1)), 10) == 1


async def test_a_connection_that_breaks_makes_calls_fail_and_none_hang(path: Path):
    thread = new_thread(path)
    await thread.start()
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match="closed database"):
            await asyncio.wait_for(thread.submit(sqlite3.Connection.close), 10)
    await asyncio.wait_for(thread.stop(), 10)


async def test_an_orphan_that_cannot_be_handed_back_harms_no_neighbour(thread: SqliteThread):
    def refuse_orphan(_: object) -> None:
        raise StoreError("this store is closed")

    reported: list[dict] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    orphan = thread.submit(insert(1), orphaned=refuse_orphan)
    orphan.cancel()
    assert await asyncio.wait_for(thread.submit(insert(2)), 10) == 2
    await asyncio.sleep(0)
    assert [str(context["exception"]) for context in reported] == ["this store is closed"]
