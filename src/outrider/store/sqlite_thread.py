"""A thread that owns one SQLite connection and carries out what many coroutines ask of it, many in one transaction.

Invariants:
- An operation is acknowledged only after the commit of the transaction it ran in.
- An operation that fails, however it fails, leaves nothing behind and harms no other: the batch is rolled back and
  each is run by itself.
- Every wait for another process's lock is bounded by `busy_seconds`.
"""

import asyncio
import os
import random
import sqlite3
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

from outrider.core.errors import OutriderError, StoreError, StoreUnavailable

C = TypeVar("C")
R = TypeVar("R")

BATCH = 256
"""Operations in one transaction at most, so that no caller waits long for its neighbours."""


@dataclass(frozen=True, slots=True)
class _Call(Generic[C]):
    operation: Callable[[C], Any]
    future: asyncio.Future[Any]


class _TornOperation(Exception):
    """An operation wrote and then failed; its writes must not be committed with its neighbours'."""


class SqliteThread(Generic[C]):
    """Runs operations on a context that `connect` makes from a connection. Create and use it on one event loop."""

    def __init__(
        self,
        name: str,
        *,
        connect: Callable[[], tuple[sqlite3.Connection, C]],
        begin: str,
        busy_seconds: float,
        after_commit: Callable[[C], Callable[[], None] | None],
    ) -> None:
        self._connect = connect
        self._begin = begin
        self._busy_seconds = busy_seconds
        self._after_commit = after_commit
        self._calls: SimpleQueue[_Call[C] | None] = SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._pid = os.getpid()
        self._closed = False
        self._started: asyncio.Future[None] = self._loop.create_future()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    async def start(self) -> None:
        """Connect; raises what connecting raised."""
        self._thread.start()
        await self._started

    async def stop(self) -> None:
        """Carry out what was asked so far, then let go of the connection."""
        if not self._closed:
            self._closed = True
            self._calls.put(None)
        await asyncio.shield(self._ended)

    def submit(self, operation: Callable[[C], R]) -> "asyncio.Future[R]":
        """Ask for an operation. It is carried out even if nobody awaits the answer any more."""
        if self._closed:
            raise StoreError("this store is closed")
        if os.getpid() != self._pid:
            raise StoreError(
                "a store cannot be used in a forked process; open it there again with open_store(store.url)"
            )
        future: asyncio.Future[R] = self._loop.create_future()
        self._calls.put(_Call(operation, future))
        return future

    def _run(self) -> None:
        try:
            connection, context = self._connect()
        except Exception as exc:  # noqa: BLE001 raised again in the caller of `start`
            self._tell(self._fail, self._started, exc)
            return
        self._tell(self._succeed, self._started)
        try:
            while batch := self._next_batch():
                outcomes = self._carry_out(connection, context, batch)
                self._tell(self._deliver, batch, outcomes, self._after_commit(context))
        finally:
            connection.close()
            self._tell(self._succeed, self._ended)

    def _next_batch(self) -> list[_Call[C]]:
        """Wait for a call, and take along those that came meanwhile; empty when the thread shall end."""
        batch: list[_Call[C]] = []
        try:
            call = self._calls.get()
            while call is not None:
                batch.append(call)
                if len(batch) == BATCH:
                    return batch
                call = self._calls.get_nowait()
        except Empty:
            return batch
        if batch:
            self._calls.put(None)
        return batch

    def _carry_out(self, connection: sqlite3.Connection, context: C, batch: list[_Call[C]]) -> list[Any]:
        try:
            return self._transact(connection, context, batch)
        except Exception as exc:  # noqa: BLE001 raised again in the caller of `submit`
            if len(batch) > 1 and not isinstance(exc, StoreUnavailable):
                return [self._carry_out(connection, context, [call])[0] for call in batch]
            return [_explain(exc)] * len(batch)

    def _transact(self, connection: sqlite3.Connection, context: C, batch: list[_Call[C]]) -> list[Any]:
        self._take_lock(connection)
        try:
            outcomes = [_attempt(connection, context, call.operation) for call in batch]
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        return outcomes

    def _take_lock(self, connection: sqlite3.Connection) -> None:
        """Begin, waiting for other processes in short random steps: SQLite's own back-off is slow and unfair."""
        deadline = time.monotonic() + self._busy_seconds
        while True:
            try:
                connection.execute(self._begin)
            except sqlite3.OperationalError as exc:
                if exc.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                    raise
                if time.monotonic() > deadline:
                    raise StoreUnavailable(
                        f"the database was locked by another process for {self._busy_seconds:g} s; "
                        "find the process that holds it (`fuser` names it) and continue or end it"
                    ) from exc
                time.sleep(random.uniform(0.0001, 0.001))
            else:
                return

    def _tell(self, callback: Callable[..., None], *args: Any) -> None:
        """Call back on the event loop, unless that has ended without closing the store."""
        try:
            self._loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:
            self._closed = True

    @staticmethod
    def _deliver(batch: list[_Call[C]], outcomes: list[Any], ring: Callable[[], None] | None) -> None:
        for call, outcome in zip(batch, outcomes, strict=True):
            if call.future.done():
                continue
            if isinstance(outcome, Exception):
                call.future.set_exception(outcome)
            else:
                call.future.set_result(outcome)
        if ring is not None:
            ring()

    @staticmethod
    def _succeed(future: asyncio.Future[None]) -> None:
        if not future.done():
            future.set_result(None)

    @staticmethod
    def _fail(future: asyncio.Future[None], error: Exception) -> None:
        if not future.done():
            future.set_exception(error)


def _attempt(connection: sqlite3.Connection, context: C, operation: Callable[[C], Any]) -> Any:
    """The operation's result, or the error it raised before it wrote anything."""
    changes = connection.total_changes
    try:
        return operation(context)
    except OutriderError as exc:
        if connection.total_changes != changes:
            raise _TornOperation from exc
        return exc


def _explain(error: Exception) -> Exception:
    if isinstance(error, _TornOperation):
        cause = error.__cause__
        return cause if isinstance(cause, Exception) else error
    if isinstance(error, sqlite3.Error):
        return StoreUnavailable(f"SQLite refused: {error}; nothing was changed (is the disk full, the file writable?)")
    return error
