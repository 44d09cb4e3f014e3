"""A pool of machines: N holders share M machines, one after the other, each of them clean.

```python
async with MachinePool(provider, PoolConfig(n_machines=3)) as pool:
    async with pool.acquire(deadline=60, run="run-1", holder="ro-1") as lease:
        await lease.computer.screenshot()
```

Invariants:
- No more than M machines exist, whatever their state.
- A machine is held by one at a time, and only after a reset that was proved.
- First come, first served within a run; runs take turns.
- A machine that fails or dies is replaced; its holder is told, and nobody else notices.
- When the pool is closed, however that comes about, no machine is left, or the journal and `n_leaks` say which.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Self

from outrider.core.clock import Clock, SteadyClock, SystemClock
from outrider.core.crash_points import reached
from outrider.core.errors import InvalidInput, MachineError, boundary
from outrider.core.ids import new_id
from outrider.core.machine import MachineRecord, MachineState
from outrider.core.tasks import uninterrupted
from outrider.pool.adoption import find_left_behind
from outrider.pool.config import PoolConfig
from outrider.pool.fleet import Fleet
from outrider.pool.jobs import Jobs
from outrider.pool.journal import JournalWriter, MachineJournal, NoJournal
from outrider.pool.lease import Lease
from outrider.pool.provider import Provider
from outrider.pool.statistics import PoolStatistics
from outrider.pool.upkeep import Upkeep

_log = logging.getLogger(__name__)

CLOSED = "the pool is closed"

JOURNAL_SECONDS = 5.0
"""How long a pool that is being closed waits for its last moves to be written."""

LEAST_JOURNAL_SECONDS = 1.0
"""So much longer may it take, past the deadline, until it is written who has a machine that was free in time."""


class MachinePool:
    """The only owner of its machines, and of its provider, which it closes. Use it on one event loop."""

    def __init__(
        self,
        provider: Provider,
        config: PoolConfig,
        *,
        journal: MachineJournal | None = None,
        clock: Clock | None = None,
        new_machine_id: Callable[[], str] | None = None,
    ) -> None:
        self.name = config.name or new_id("pool")
        self._provider = provider
        self._config = config
        self._journal = journal or NoJournal()
        self._clock = SteadyClock(clock or SystemClock())  # what is held and rests must not end by a jump
        self._fleet = Fleet(
            config, pool=self.name, provider=provider.name, new_machine_id=new_machine_id or _new_machine_id
        )
        self._jobs = Jobs(self._crashed)
        self._writer: JournalWriter | None = None
        self._upkeep: Upkeep | None = None
        self._closing: asyncio.Future[None] | None = None
        self._crash: BaseException | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Take over what the pool's last owner left, and begin to make what is missing. Does not wait for it."""
        self._check_unused()
        try:
            await self._provider.check(max(self._config.n_machines - await self._n_left_behind(), 1))
            upkeep = await self._open()
            upkeep.pump()
        except BaseException:
            await self.close()
            raise

    async def _n_left_behind(self) -> int:
        """How many machines of the last owner are there: they have their memory already."""
        try:
            with boundary(MachineError, "owned"):
                async with asyncio.timeout(self._config.probe_seconds):
                    return len(await self._provider.owned(self.name))
        except MachineError:
            return 0  # if nothing can be had here, the check says so best

    async def end_left_behind(self) -> int:
        """Instead of `start`: take over what the last owner left, only to end it; how many machines that were."""
        self._check_unused()
        try:
            await self._open()
            return self._fleet.n(*MachineState)
        finally:
            await self.close()

    def _check_unused(self) -> None:
        if self._upkeep is not None or self._closing is not None:
            raise InvalidInput(f"pool {self.name!r} was started already")

    async def _open(self) -> Upkeep:
        """Be the owner from now on, of all there is."""
        epoch = await self._journal.open_pool(self.name)
        reached("pool.opened")
        records = await self._journal.query_machines(self.name, [state for state in MachineState if state.exists])
        self._writer = JournalWriter(self._journal, self.name, epoch, self._clock, self._taken_over)
        self._upkeep = Upkeep(
            self._provider,
            self._config,
            self._fleet,
            owner=self.name,
            writer=self._writer,
            jobs=self._jobs,
            clock=self._clock,
        )
        self._jobs.start(self._writer.run(), f"journal of pool {self.name}")
        await self._take_over(self._upkeep, records)
        return self._upkeep

    async def _take_over(self, upkeep: Upkeep, records: tuple[MachineRecord, ...]) -> None:
        left = await find_left_behind(self._provider, self.name, records, self._config.probe_seconds)
        now = self._clock.time()
        for record, running in left.found:
            self._fleet.adopt(record, now)
            upkeep.attach(record.machine_id, running)
        for record in left.missing:
            self._fleet.forget(record, now)
        for running in left.unknown:
            upkeep.attach(self._fleet.adopt_unknown(running.address, now), running)

    @asynccontextmanager
    async def acquire(self, *, deadline: float, run: str = "", holder: str = "") -> AsyncIterator[Lease]:
        """One machine; see `take`. It is released at the end of the block."""
        async with self.acquire_all(1, deadline=deadline, run=run, holder=holder) as leases:
            yield leases[0]

    @asynccontextmanager
    async def acquire_all(
        self, n: int, *, deadline: float, run: str = "", holder: str = ""
    ) -> AsyncIterator[tuple[Lease, ...]]:
        """`n` machines at once, or none; see `take`."""
        leases = await self.take(n, deadline=deadline, run=run, holder=holder)
        try:
            yield leases
        finally:
            for lease in leases:
                lease.release()

    async def take(self, n: int = 1, *, deadline: float, run: str = "", holder: str = "") -> tuple[Lease, ...]:
        """`n` machines at once, or none; whoever gets them releases each lease.

        Waits for its turn at most `deadline` seconds, then raises `MachineError` with what there is and what went wrong
        last. Refuses a holder under whom too many machines were lost. Cancelled, it leaves no trace. Whoever holds a
        machine must not wait here for another: ask for all of them at once.
        """
        upkeep, writer = self._started
        ticket = self._fleet.ask(run=run, holder=holder, n=n, now=self._clock.time())
        answer = upkeep.expect(ticket)
        upkeep.pump()
        ends_at = asyncio.get_running_loop().time() + deadline
        try:
            async with asyncio.timeout_at(ends_at):
                leases = await answer
            async with asyncio.timeout_at(max(ends_at, asyncio.get_running_loop().time() + LEAST_JOURNAL_SECONDS)):
                await writer.flushed()
                reached("pool.lease_written")
                return leases
        except BaseException as exc:
            upkeep.give_up(ticket)
            if answer.done() and not answer.cancelled() and answer.exception() is None:
                for lease in answer.result():
                    lease.release()
            if isinstance(exc, TimeoutError):
                raise self._late(holder, deadline, writer) from None
            raise

    def revoke(self, machine_id: str, reason: str) -> None:
        """Take the machine from its holder, whose lease is lost from this moment; it is reset for the next."""
        upkeep, _ = self._started
        self._fleet.revoke(machine_id, reason, self._clock.time())
        upkeep.pump()

    def reset(self, machine_id: str, reason: str = "asked to be reset") -> None:
        """Reset the machine in the background, also if somebody holds it, who loses it then."""
        upkeep, _ = self._started
        self._fleet.reset(machine_id, reason, self._clock.time())
        upkeep.pump()

    def stop(self, machine_id: str, reason: str = "asked to be stopped") -> None:
        """End the machine in the background, also if somebody holds it. Another takes its place."""
        upkeep, _ = self._started
        self._fleet.stop(machine_id, reason, self._clock.time())
        upkeep.pump()

    async def resize(self, n_machines: int) -> None:
        """Another M. More are made at once; those that are too many end when nobody holds them."""
        upkeep, _ = self._started
        if n_machines > self._fleet.n_machines:
            await self._provider.check(n_machines)
        self._fleet.resize(n_machines, self._clock.time())
        upkeep.pump()

    async def wait_until_ready(self, n: int | None = None, *, deadline: float, max_failures: int | None = None) -> None:
        """Wait until so many machines, by default all, are ready or in use.

        `MachineError` after `deadline` seconds, and as soon as so many more have failed to be made.
        """
        upkeep, writer = self._started
        try:
            async with asyncio.timeout(deadline):
                while self._fleet.n(MachineState.READY, MachineState.LEASED) < (n or self._fleet.n_machines):
                    if max_failures is not None and self._fleet.counts.failures["create"] >= max_failures:
                        standing = self._fleet.standing(self._clock.time())
                        raise MachineError(f"pool {self.name} gets no machine: {standing}", stage="pool.create")
                    await upkeep.changed()
        except TimeoutError:
            raise self._late(f"pool {self.name}", deadline, writer) from None

    @property
    def machines(self) -> tuple[MachineRecord, ...]:
        """Those that exist, as they are now."""
        return self._fleet.records()

    def statistics(self) -> PoolStatistics:
        return self._fleet.statistics(self._clock.time())

    async def close(self) -> None:
        """End all machines; leases are lost, waiters refused. Bounded, and carried to its end even when cancelled."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        await uninterrupted(self._closing)

    async def _close(self) -> None:
        self._fleet.close(CLOSED, self._clock.time())
        if self._upkeep is not None and self._writer is not None:
            self._upkeep.pump()
            await self._end_machines(self._upkeep)
            await self._write_last(self._writer)
        left = await self._jobs.stop(self._config.destroy_seconds)
        if left:
            _log.error("pool %s is closed, and these did not end: %s", self.name, ", ".join(left))
        try:
            with boundary(MachineError, "close"):
                async with asyncio.timeout(self._config.destroy_seconds):
                    await self._provider.close()
        except MachineError as exc:
            _log.error("pool %s is closed, but its provider is not: %s", self.name, exc)
        if self._crash is not None:
            raise self._crash

    async def _end_machines(self, upkeep: Upkeep) -> None:
        try:
            async with asyncio.timeout(self._config.close_seconds):
                while self._fleet.n(*MachineState):
                    await upkeep.changed()
        except TimeoutError:
            left = ", ".join(record.machine_id for record in self.machines)
            self._fleet.counts.n_leaks = self._fleet.n(*MachineState)
            _log.error("pool %s is closed, and these machines could not be ended: %s", self.name, left)
        upkeep.halt()

    async def _write_last(self, writer: JournalWriter) -> None:
        try:
            async with asyncio.timeout(JOURNAL_SECONDS):
                await writer.flushed()
        except (TimeoutError, MachineError) as exc:
            _log.warning("the last moves of pool %s are not written: %s", self.name, writer.trouble or exc)

    def _late(self, who: str, deadline: float, writer: JournalWriter) -> MachineError:
        standing = self._fleet.standing(self._clock.time())
        trouble = f"; {writer.trouble}" if writer.trouble else ""
        return MachineError(f"no machine for {who} after {deadline:g} s: {standing}{trouble}", stage="pool.acquire")

    def _taken_over(self, reason: str) -> None:
        """The machines that the journal knows belong to the new owner: they are let go of, the others are ended."""
        upkeep, writer = self._started
        upkeep.abandon(writer.known)
        self._stop_serving(reason)

    def _crashed(self, exc: BaseException) -> None:
        _log.error("pool %s failed", self.name, exc_info=exc)
        self._crash = self._crash or exc
        self._stop_serving(f"the pool failed: {exc!r}")

    def _stop_serving(self, reason: str) -> None:
        self._fleet.close(reason, self._clock.time())
        if self._upkeep is not None:
            self._upkeep.pump()

    @property
    def _started(self) -> tuple[Upkeep, JournalWriter]:
        if self._upkeep is None or self._writer is None:
            raise InvalidInput(f"pool {self.name!r} is not started; use it as `async with MachinePool(…) as pool`")
        return self._upkeep, self._writer


def _new_machine_id() -> str:
    return new_id("ma")
