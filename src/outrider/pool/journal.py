"""The journal of a pool: every move of every machine, kept where it outlives the process that owns them.

Invariants:
- Moves are written in the order they were made, each once, many in one write.
- A machine is in nobody's hands before the journal knows that it is: `flushed` is awaited in between.
- Whoever opens a pool begins a new epoch of it; the writes of whoever had it before are refused from then on.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from outrider.core.clock import Clock, sleep
from outrider.core.crash_points import reached
from outrider.core.errors import MachineError, StoreError, StoreUnavailable
from outrider.core.machine import MachineMove, MachineRecord, MachineState

_log = logging.getLogger(__name__)

WRITE_SECONDS = 10.0
"""How long one write may take before it is tried again."""

PAUSE_SECONDS = 0.2
MAX_PAUSE_SECONDS = 5.0


class MachineJournal(Protocol):
    """Where moves are kept; every store is one. Raises `StoreUnavailable` if it cannot be reached just now."""

    async def open_pool(self, name: str) -> int:
        """Take the pool over, whoever had it: the epoch that writes must name from now on."""

    async def query_machines(
        self, pool: str | None = None, states: Collection[MachineState | str] | None = None
    ) -> tuple[MachineRecord, ...]:
        """The machines of the pool in these states, as they were last written."""

    async def write_machines(
        self, pool: str, epoch: int, number: int, records: Sequence[MachineRecord], moves: Sequence[MachineMove]
    ) -> None:
        """Replace these records and append these moves, in one step.

        Writes are numbered from 1 within an epoch; one that was carried out before changes nothing. Raises `PoolLost`
        if the epoch is over, and changes nothing then.
        """


class NoJournal:
    """Keeps nothing: machines of a process that is killed are found by their provider alone."""

    async def open_pool(self, name: str) -> int:  # noqa: ARG002 the protocol's
        return 1

    async def query_machines(
        self,
        pool: str | None = None,  # noqa: ARG002
        states: Collection[MachineState | str] | None = None,  # noqa: ARG002
    ) -> tuple[MachineRecord, ...]:
        return ()

    async def write_machines(
        self, pool: str, epoch: int, number: int, records: Sequence[MachineRecord], moves: Sequence[MachineMove]
    ) -> None: ...


class JournalWriter:
    """Writes what was added, one batch after the other. `run` is its only task; `on_lost` is told of an epoch's end."""

    def __init__(
        self, journal: MachineJournal, pool: str, epoch: int, clock: Clock, on_lost: Callable[[str], None]
    ) -> None:
        self._journal = journal
        self._pool = pool
        self._epoch = epoch
        self._clock = clock
        self._on_lost = on_lost
        self._records: dict[str, MachineRecord] = {}
        self._moves: list[MachineMove] = []
        self._n_added = 0
        self._n_written = 0
        self._n_writes = 0
        self._added = asyncio.Event()
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._is_lost = False
        self.known: set[str] = set()
        """Machines that could be found again by what is written."""
        self.trouble = ""
        """Why nothing can be written just now."""

    def add(self, records: Sequence[MachineRecord], moves: Sequence[MachineMove]) -> None:
        """Records of one machine that come before they are written replace each other; moves do not."""
        if not records and not moves:
            return
        self._records.update((record.machine_id, record) for record in records)
        self._moves.extend(moves)
        self._n_added += 1
        self._added.set()

    async def flushed(self) -> None:
        """Wait until all that was added before is written. Raises `MachineError` if the pool was taken over."""
        if self._is_lost:
            raise MachineError(self.trouble)
        if self._n_written >= self._n_added:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((self._n_added, waiter))
        await waiter

    async def run(self) -> None:
        """Write until cancelled, or until the pool was taken over."""
        while not self._is_lost:
            await self._added.wait()
            self._added.clear()
            records, self._records = tuple(self._records.values()), {}
            moves, self._moves = tuple(self._moves), []
            n_added = self._n_added
            self._n_writes += 1
            await self._insist(records, moves)
            reached("pool.journal_written")
            self._n_written = n_added
            self._wake()

    async def _insist(self, records: Sequence[MachineRecord], moves: Sequence[MachineMove]) -> None:
        """Write this batch, again and again with the same number while the journal cannot be reached."""
        pause = PAUSE_SECONDS
        while True:
            try:
                async with asyncio.timeout(WRITE_SECONDS):
                    await self._journal.write_machines(self._pool, self._epoch, self._n_writes, records, moves)
            except (StoreUnavailable, TimeoutError) as exc:
                is_new = not self.trouble
                self.trouble = f"the journal cannot be written ({exc or 'no answer'})"
                level = logging.WARNING if is_new else logging.DEBUG
                _log.log(level, "pool %s: %s; it is tried again until it can be", self._pool, self.trouble)
            except StoreError as exc:
                self._lose(exc)
                return
            else:
                if self.trouble:
                    _log.warning("pool %s: the journal is written again", self._pool)
                self.trouble = ""
                self.known.update(record.machine_id for record in records if record.address)
                return
            await sleep(self._clock, pause)
            pause = min(pause * 2, MAX_PAUSE_SECONDS)

    def _lose(self, exc: StoreError) -> None:
        self._is_lost = True
        self.trouble = f"pool {self._pool!r} belongs to another process now ({exc})"
        self._on_lost(self.trouble)

    def _wake(self) -> None:
        waiting, self._waiters = self._waiters, []
        for n_added, waiter in waiting:
            if waiter.done():
                continue
            if self._is_lost:
                waiter.set_exception(MachineError(self.trouble))
            elif n_added <= self._n_written:
                waiter.set_result(None)
            else:
                self._waiters.append((n_added, waiter))
