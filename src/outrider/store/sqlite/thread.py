"""A thread that owns one SQLite connection and carries out what many coroutines ask of it, many in one transaction.

Invariants:
- A call is acknowledged only after the commit of the transaction it ran in.
- A call that fails leaves nothing behind and harms no other: the batch is rolled back and each is run by itself.
- Every wait for another process's lock is bounded by `busy_seconds`.
- No call hangs: on a full disk calls are refused, and if the thread should die, so are those that wait and follow.
- After the disk has lost data (`Disk.damage`) nothing more is written, upkeep included.
- The event loop never waits: it carries out a batch itself only if the thread is idle, all calls are quick and the lock
  is free; if anything stands in the way, the thread takes over. Waking a thread costs more than a claim does.
- The connection is used by the thread while a batch is with it, and by the event loop while none is.
"""

import asyncio
import logging
import random
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from msgspec import Struct

from outrider.core.crash_points import reached
from outrider.core.errors import OutriderError, StoreDamaged, StoreError, StoreUnavailable
from outrider.store.sqlite.disk import Disk
from outrider.store.sqlite.lock_signal import LockSignal
from outrider.store.usable import Usable

_log = logging.getLogger(__name__)

BATCH = 256
"""Calls in one transaction, about: so that no caller waits long for its neighbours."""

QUICK_BATCH = 64
"""Calls that the event loop carries out itself at most, about two milliseconds' worth."""


SHORT_PAUSE_SECONDS, LONG_PAUSE_SECONDS, PAUSE_GROWTH = 0.1, 0.5, 1.5
"""How long to wait for the signal that another process has freed the lock, before trying all the same."""

TURN_SECONDS = 0.005
"""How long a process that needs the lock again at once may keep others waiting: a change of hands is dear."""


def _nothing(_: object) -> None:
    """A call that does nothing, to wait for those before it."""


class Desk(Protocol):
    """What the thread works with: it carries out calls inside a transaction that the thread begins and commits."""

    connection: sqlite3.Connection

    def carry_out(self, calls: Sequence[Any]) -> list[Any]:
        """The result of each call, or the `OutriderError` it ended with, having written nothing."""

    def committed(self) -> Callable[[], None] | None:
        """The transaction is durable; what to do about it on the event loop."""

    def is_untidy(self) -> bool:
        """Whether `tidy` has something to do."""

    def tidy(self) -> None:
        """Slow upkeep between transactions, always in the thread. It may fail, and is tried again later."""


class TornCall(Exception):
    """A call wrote and then failed; its writes must not be committed with its neighbours'."""


class _Asked(Struct):
    call: Any
    future: asyncio.Future[Any]
    orphaned: Callable[[Any], None] | None


class SqliteThread:
    """Runs the calls of one event loop at a desk that `open_desk` sets up, in a thread of its own.

    Calls of the types `quick` may be carried out on the event loop. With `lock_signal` it writes: each transaction
    takes the lock, and signals when it has freed it.
    """

    def __init__(
        self,
        name: str,
        *,
        open_desk: Callable[[], Desk],
        disk: Disk,
        busy_seconds: float,
        lock_signal: LockSignal | None = None,
        quick: tuple[type, ...] = (),
    ) -> None:
        self._open_desk = open_desk
        self._disk = disk
        self._lock_signal = lock_signal
        self._quick = frozenset(quick)
        self._desk: Desk
        self._n_in_thread = 0
        self._busy_seconds = busy_seconds
        self._asked: list[_Asked] = []
        self._batches: SimpleQueue[list[_Asked] | None] = SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._usable = Usable()
        self._is_untidy = False
        self._has_signalled = True
        self._turn_began_at = 0.0
        self._death: StoreError | None = None
        self._started: asyncio.Future[None] = self._loop.create_future()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    async def start(self) -> None:
        """Connect; raises what connecting raised."""
        self._thread.start()
        await self._started

    async def stop(self) -> None:
        """Carry out what was asked so far, then let go of the connection."""
        if not self._usable.closed:
            # What was cancelled while under way is delivered before this, and its orphans may ask for more.
            with suppress(StoreError):
                await self.submit(_nothing)
            self._usable.closed = True
            self._hand_over()
            self._batches.put(None)
        await asyncio.shield(self._ended)

    def submit(self, call: Any, orphaned: Callable[[Any], None] | None = None) -> "asyncio.Future[Any]":
        """Ask for a call. It is carried out even if nobody awaits it any more; then `orphaned` gets its result."""
        self._usable.check()
        future: asyncio.Future[Any] = self._loop.create_future()
        if self._death is not None:
            future.set_exception(self._death)
            return future
        if not self._asked:
            self._loop.call_soon(self._hand_over)
        self._asked.append(_Asked(call, future, orphaned))
        return future

    def _hand_over(self) -> None:
        """Pass on all that was asked in this turn of the event loop, waking the thread once."""
        asked, self._asked = self._asked, []
        if not asked or (self._may_stay(asked) and self._carried_out_here(asked)):
            return
        self._pass_on(asked)

    def _pass_on(self, asked: list[_Asked]) -> None:
        self._n_in_thread += 1
        self._batches.put(asked)

    def _may_stay(self, asked: list[_Asked]) -> bool:
        is_small = self._n_in_thread == 0 and len(asked) <= QUICK_BATCH
        return is_small and self._quick.issuperset([type(one.call) for one in asked])

    def _carried_out_here(self, asked: list[_Asked]) -> bool:
        """Carry out a batch on the event loop, unless that takes waiting or goes wrong: then the thread shall try."""
        try:
            outcomes = self._transact(self._desk, [one.call for one in asked], busy_seconds=0.0)
        except Exception:  # noqa: BLE001 the thread repeats it and tells the callers
            return False
        afterwards: list[Callable[[], None]] = []
        try:
            if (then := self._desk.committed()) is not None:
                afterwards.append(then)
        finally:
            _deliver(asked, outcomes, afterwards)
            self._loop.call_soon(self._end_turn)
        if self._desk.is_untidy():
            self._pass_on([])
        return True

    def _end_turn(self) -> None:
        """Let others have the lock, unless this process needs it again at once and has not had it for long."""
        if self._lock_signal is None or self._has_signalled or self._n_in_thread > 0:
            return
        if self._asked and time.monotonic() - self._turn_began_at < TURN_SECONDS:
            return
        self._has_signalled = True
        self._lock_signal.send()

    def _run(self) -> None:
        try:
            self._desk = desk = self._open_desk()
        except Exception as exc:  # noqa: BLE001 raised again in the caller of `start`
            self._tell(_fail, self._started, exc)
            return
        self._tell(_succeed, self._started)
        batch: list[_Asked] = []
        death: BaseException | None = None
        try:
            self._tidy(desk)
            while (work := self._next_batch()) is not None:
                batch, n_passed_on = work
                afterwards: list[Callable[[], None]] = []
                outcomes = self._outcomes(desk, [asked.call for asked in batch], afterwards) if batch else []
                self._tell(_deliver, batch, outcomes, afterwards)
                batch = []
                self._tidy(desk)
                self._tell(self._give_back, n_passed_on)
        except BaseException as exc:  # noqa: BLE001 raised again in all that wait or ask
            death = exc
        with suppress(sqlite3.Error):
            desk.connection.close()
        self._tell(self._end, batch, death)

    def _tidy(self, desk: Desk) -> None:
        if self._disk.damage is not None:
            return
        try:
            desk.tidy()
        except sqlite3.Error as exc:
            error = self._disk.explained(exc)
            if not self._is_untidy:
                _log.warning("%s: upkeep failed, will try again: %s", self._thread.name, error)
            self._is_untidy = True
        else:
            self._is_untidy = False

    def _end(self, unanswered: list[_Asked], death: BaseException | None) -> None:
        """The thread has ended; if it should not have, nobody may wait for it."""
        if death is not None:
            self._death = StoreError(
                f"the thread {self._thread.name!r} of this store ended with {type(death).__name__}: {death}; it is not "
                "known whether calls under way were carried out; open the store again"
            )
            self._death.__cause__ = death
            waiting = [*unanswered, *self._queued(), *self._asked]
            self._asked = []
            _deliver(waiting, [self._death] * len(waiting), [])
        _succeed(self._ended)

    def _queued(self) -> Iterable[_Asked]:
        with suppress(Empty):
            while True:
                yield from self._batches.get_nowait() or ()

    def _give_back(self, n_passed_on: int) -> None:
        """The thread is done with so many batches."""
        self._n_in_thread -= n_passed_on
        self._loop.call_soon(self._end_turn)

    def _next_batch(self) -> tuple[list[_Asked], int] | None:
        """Wait for calls, take along those that came meanwhile, and count; None when the thread shall end."""
        batch = self._batches.get()
        if batch is None:
            return None
        n_passed_on = 1
        try:
            while len(batch) < BATCH:
                more = self._batches.get_nowait()
                if more is None:
                    self._batches.put(None)
                    break
                batch = batch + more
                n_passed_on += 1
        except Empty:
            pass
        return batch, n_passed_on

    def _outcomes(self, desk: Desk, calls: list[Any], afterwards: list[Callable[[], None]]) -> list[Any]:
        try:
            outcomes = self._transact(desk, calls, self._busy_seconds)
        except Exception as exc:  # noqa: BLE001 raised again in the caller of `submit`: the thread must live on
            if len(calls) > 1 and not isinstance(exc, (StoreUnavailable, StoreDamaged)):
                return [self._outcomes(desk, [call], afterwards)[0] for call in calls]
            return [self._explained(exc)] * len(calls)
        if (then := desk.committed()) is not None:
            afterwards.append(then)
        return outcomes

    def _transact(self, desk: Desk, calls: list[Any], busy_seconds: float) -> list[Any]:
        if self._lock_signal is not None:
            self._disk.check()
        connection = desk.connection
        try:
            self._take_lock(connection, busy_seconds)
            try:
                outcomes = desk.carry_out(calls)
                if self._lock_signal is not None:
                    reached("sqlite.before_commit")
                connection.execute("COMMIT")
                if self._lock_signal is not None:
                    reached("sqlite.committed")
            except BaseException:
                _roll_back(connection)
                raise
            finally:
                self._has_signalled = False
        except sqlite3.Error as exc:
            if isinstance(error := self._disk.explained(exc), StoreDamaged):
                raise error from exc
            raise
        return outcomes

    def _take_lock(self, connection: sqlite3.Connection, busy_seconds: float) -> None:
        """Begin, waiting for other processes until one of them signals: SQLite's own back-off is slow and unfair."""
        if connection.in_transaction:  # the last rollback failed too
            connection.execute("ROLLBACK")
        begin = "BEGIN" if self._lock_signal is None else "BEGIN IMMEDIATE"
        deadline = time.monotonic() + busy_seconds
        pause = SHORT_PAUSE_SECONDS
        while True:
            try:
                connection.execute(begin)
            except sqlite3.OperationalError as exc:
                if exc.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                    raise
                if time.monotonic() >= deadline:
                    raise StoreUnavailable(
                        f"the database was locked by another process for {busy_seconds:g} s; "
                        "find the process that holds it (`fuser` names it) and continue or end it"
                    ) from exc
                self._pause(random.uniform(0.1, 1.0) * pause)
                pause = min(pause * PAUSE_GROWTH, LONG_PAUSE_SECONDS)
            else:
                if self._has_signalled:
                    self._turn_began_at = time.monotonic()
                return

    def _pause(self, seconds: float) -> None:
        if self._lock_signal is None:
            time.sleep(seconds)
        else:
            self._lock_signal.wait(seconds)

    def _explained(self, error: Exception) -> Exception:
        if isinstance(error, TornCall):
            cause = error.__cause__
            return cause if isinstance(cause, Exception) else error
        return self._disk.explained(error) if isinstance(error, sqlite3.Error) else error

    def _tell(self, callback: Callable[..., None], *args: Any) -> None:
        """Call back on the event loop, unless that has ended without closing the store."""
        try:
            self._loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:
            self._usable.closed = True


def carry_out_each(connection: sqlite3.Connection, calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """Each call's result, or the error it raised before it wrote anything."""
    return [_carry_out(connection, call) for call in calls]


def _carry_out(connection: sqlite3.Connection, call: Callable[[], Any]) -> Any:
    changes = connection.total_changes
    try:
        return call()
    except OutriderError as exc:
        if connection.total_changes != changes:
            raise TornCall from exc
        return exc


def _roll_back(connection: sqlite3.Connection) -> None:
    """After some errors SQLite has done it already; one that fails is tried again before the next transaction."""
    with suppress(sqlite3.Error):
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _deliver(batch: Sequence[_Asked], outcomes: Sequence[Any], afterwards: Sequence[Callable[[], None]]) -> None:
    orphans = []
    for asked, outcome in zip(batch, outcomes, strict=True):
        if asked.future.done():
            if asked.orphaned is not None and not isinstance(outcome, Exception):
                orphans.append((asked.orphaned, outcome))
        elif isinstance(outcome, Exception):
            asked.future.set_exception(outcome)
        else:
            asked.future.set_result(outcome)
    for then in afterwards:
        then()
    for orphaned, outcome in orphans:
        orphaned(outcome)


def _succeed(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _fail(future: asyncio.Future[None], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
