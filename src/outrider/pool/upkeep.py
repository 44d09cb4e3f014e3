"""The hands of a pool: makes, resets, watches and ends machines as its fleet decides, and reports what came of it.

Invariants:
- One thing at a time is done to a machine; what ends it first stops the other.
- Every call of a provider has a deadline, and whatever it raises is that machine's failure, never the pool's.
- A machine is ready only if a marker that was planted before its reset is gone after it, and it answers.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import assert_never

from outrider.core.clock import Clock, TimerHandle
from outrider.core.crash_points import reached
from outrider.core.errors import MachineError, boundary
from outrider.core.ids import new_id
from outrider.pool.config import PoolConfig
from outrider.pool.fleet import Fleet
from outrider.pool.jobs import Jobs
from outrider.pool.journal import JournalWriter
from outrider.pool.lease import Lease
from outrider.pool.orders import Create, Destroy, Grant, Lose, Order, Refuse, Reset
from outrider.pool.provider import Provider, RunningMachine
from outrider.pool.waiting import Ticket

_log = logging.getLogger(__name__)

LEAST_TIMER_SECONDS = 0.001
"""A loop may call a little too early; it is then asked again after this."""

JOURNAL_SECONDS = 2.0
"""How long the end of a machine waits for being written."""


@dataclass(slots=True)
class _Kept:
    """What is at hand of a machine."""

    running: RunningMachine | None = None
    job: "asyncio.Task[None] | None" = None
    watch: "asyncio.Task[None] | None" = None
    lease: Lease | None = None


class Upkeep:
    """Carries out a fleet's orders. Everything here happens on one event loop; `pump` after each change."""

    def __init__(
        self,
        provider: Provider,
        config: PoolConfig,
        fleet: Fleet,
        *,
        owner: str,
        writer: JournalWriter,
        jobs: Jobs,
        clock: Clock,
    ) -> None:
        self._provider = provider
        self._config = config
        self._fleet = fleet
        self._writer = writer
        self._jobs = jobs
        self._clock = clock
        self._kept: dict[str, _Kept] = {}
        self._asking: dict[Ticket, asyncio.Future[tuple[Lease, ...]]] = {}
        self._timer: TimerHandle | None = None
        self._changed = asyncio.Event()
        self._owner = owner

    async def changed(self) -> None:
        """Wait until something was done or has happened."""
        await self._changed.wait()

    def give_up(self, ticket: Ticket) -> None:
        """Whoever drew it waits no more: what it was given meanwhile goes back."""
        self._fleet.withdraw(ticket, self._clock.time())
        self._asking.pop(ticket, None)
        self.pump()

    def attach(self, machine_id: str, running: RunningMachine) -> None:
        """A machine that exists already."""
        self._kept[machine_id] = _Kept(running=running)
        self._watch(machine_id)

    def abandon(self, machine_ids: set[str]) -> None:
        """Let go of these without ending them: they belong to somebody else."""
        for machine_id in machine_ids & set(self._kept):
            self._kept[machine_id].running = None

    def expect(self, ticket: Ticket) -> "asyncio.Future[tuple[Lease, ...]]":
        """What the ticket will get, or `MachineError`."""
        self._asking[ticket] = answer = asyncio.get_running_loop().create_future()
        return answer

    def pump(self) -> None:
        """Carry out what the fleet wants now, hand its moves to the journal, and come back when something is due."""
        now = self._clock.time()
        orders = self._fleet.decide(now)
        self._writer.add(*self._fleet.drain())
        for order in orders:
            self._carry_out(order)
        if self._timer is not None:
            self._timer.cancel()
        due = self._fleet.next_due(now)
        self._timer = None if due is None else self._clock.call_later(max(due - now, LEAST_TIMER_SECONDS), self.pump)
        self._changed.set()
        self._changed = asyncio.Event()

    def halt(self) -> None:
        """No more timers."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _carry_out(self, order: Order) -> None:
        match order:
            case Create(machine_id):
                self._kept[machine_id] = kept = _Kept()
                kept.job = self._jobs.start(self._create(machine_id), f"create machine {machine_id}")
            case Reset(machine_id, is_fresh):
                self._kept[machine_id].job = self._jobs.start(
                    self._reset(machine_id, is_fresh=is_fresh), f"reset machine {machine_id}"
                )
            case Destroy(machine_id):
                kept = self._kept.setdefault(machine_id, _Kept())
                kept.job = self._jobs.start(self._destroy(machine_id, kept, kept.job), f"destroy machine {machine_id}")
            case Grant(ticket, machines):
                self._hand_out(ticket, machines)
            case Refuse(ticket, reason):
                answer = self._asking.pop(ticket)
                if not answer.done():
                    answer.set_exception(MachineError(reason, stage="pool.acquire"))
            case Lose(machine_id, epoch, reason):
                lease = self._kept[machine_id].lease
                if lease is not None and lease.epoch == epoch:
                    lease.lose(reason)
            case _:
                assert_never(order)

    def _hand_out(self, ticket: Ticket, machines: tuple[tuple[str, int], ...]) -> None:
        leases = tuple(self._lease(machine_id, epoch, ticket.holder) for machine_id, epoch in machines)
        answer = self._asking.pop(ticket)
        if not answer.done():
            answer.set_result(leases)
            return
        for lease in leases:  # whoever asked left in this very moment
            asyncio.get_running_loop().call_soon(lease.release)

    def _lease(self, machine_id: str, epoch: int, holder: str) -> Lease:
        kept = self._kept[machine_id]
        if kept.running is None:
            raise AssertionError(f"machine {machine_id} was handed out and does not exist")
        kept.lease = Lease(
            machine_id,
            epoch,
            holder=holder,
            address=kept.running.address,
            computer=kept.running.computer,
            on_release=self._released,
        )
        return kept.lease

    def _released(self, lease: Lease) -> None:
        self._fleet.release(lease.machine_id, lease.epoch, self._clock.time())
        self.pump()

    async def _create(self, machine_id: str) -> None:
        try:
            async with self._within(self._config.create_seconds, machine_id, "create"):
                reached("pool.before_create")
                running = await self._provider.create(machine_id, self._owner)
            reached("pool.machine_made")
            if machine_id not in self._kept:  # given up meanwhile, and made all the same
                async with self._within(self._config.destroy_seconds, machine_id, "destroy"):
                    await running.destroy()
                return
        except MachineError as exc:
            _log.warning("%s", exc)
            self._fleet.create_failed(machine_id, str(exc), self._clock.time())
            if not self._fleet.has(machine_id):
                self._kept.pop(machine_id, None)
        else:
            self._kept[machine_id].running = running
            self._watch(machine_id)
            self._fleet.created(machine_id, running.address, self._clock.time())
        self.pump()

    async def _reset(self, machine_id: str, *, is_fresh: bool) -> None:
        if not await self._is_ours():
            return
        running = self._running(machine_id)
        remark: str | None = None
        try:
            async with self._within(self._config.reset_seconds, machine_id, "reset"):
                await self._settle(machine_id)
                if not is_fresh:
                    remark = await self._clean(machine_id, running)
                async with self._within(self._config.probe_seconds, machine_id, "probe"):
                    await running.probe()
        except MachineError as exc:
            _log.warning("%s", exc)
            self._fleet.reset_failed(machine_id, str(exc), self._clock.time())
        else:
            self._fleet.was_reset(machine_id, running.address, self._clock.time(), remark=remark)
        self.pump()

    async def _is_ours(self) -> bool:
        """Whether the journal has taken all moves so far: if not, the machines belong to another pool now."""
        try:
            await self._writer.flushed()
        except MachineError:
            return False
        return True

    async def _settle(self, machine_id: str) -> None:
        """The last holder's calls end before the machine is touched."""
        lease, self._kept[machine_id].lease = self._kept[machine_id].lease, None
        if lease is not None:
            async with self._within(self._config.probe_seconds, machine_id, "last call"):
                await lease.settled()

    async def _clean(self, machine_id: str, running: RunningMachine) -> str | None:
        """Reset it and prove that what was in it before is gone; what the machine remarks about its reset.

        A reset may end what the machine runs in, so it is not watched meanwhile: it fails or is late if it dies then.
        """
        marker, seconds = new_id("mark"), self._config.probe_seconds
        async with self._within(seconds, machine_id, "plant a marker"):
            await running.plant(marker)
        self._unwatch(machine_id)
        remark = await running.reset()
        reached("pool.machine_reset")
        self._watch(machine_id)
        async with self._within(seconds, machine_id, "look for the marker"):
            is_there = await running.has(marker)
        if is_there:
            raise MachineError(f"machine {machine_id} was reset, and what was left in it is still there", stage="reset")
        return remark

    async def _destroy(self, machine_id: str, kept: _Kept, before: "asyncio.Task[None] | None") -> None:
        try:
            async with self._within(self._config.destroy_seconds, machine_id, "destroy"):
                if before is not None and not before.done():
                    before.cancel()
                    await asyncio.wait([before])
                self._unwatch(machine_id)
                with suppress(TimeoutError):  # a machine must end, whether that is written or not
                    async with asyncio.timeout(JOURNAL_SECONDS):
                        await self._is_ours()
                if kept.running is not None:
                    await kept.running.destroy()
                    reached("pool.machine_destroyed")
        except MachineError as exc:
            _log.warning("%s", exc)
            self._fleet.destroy_failed(machine_id, str(exc), self._clock.time())
        else:
            self._kept.pop(machine_id)
            self._fleet.destroyed(machine_id, self._clock.time())
        self.pump()

    def _watch(self, machine_id: str) -> None:
        running = self._running(machine_id)

        async def watch() -> None:
            try:
                with boundary(MachineError, "watch"):
                    reason = await running.wait_until_dead()
            except MachineError as exc:
                reason = f"it cannot be watched: {exc}"
            self._fleet.died(machine_id, f"machine {machine_id} died: {reason}", self._clock.time())
            self.pump()

        self._kept[machine_id].watch = self._jobs.start(watch(), f"watch machine {machine_id}")

    def _unwatch(self, machine_id: str) -> None:
        watch, self._kept[machine_id].watch = self._kept[machine_id].watch, None
        if watch is not None and watch is not asyncio.current_task():
            watch.cancel()

    def _running(self, machine_id: str) -> RunningMachine:
        running = self._kept[machine_id].running
        if running is None:
            raise AssertionError(f"machine {machine_id} does not exist")
        return running

    @asynccontextmanager
    async def _within(self, seconds: float, machine_id: str, what: str) -> AsyncIterator[None]:
        """Whatever fails or is late inside is this machine's `MachineError`."""
        try:
            with boundary(MachineError, what):
                try:
                    async with asyncio.timeout(seconds) as limit:
                        yield
                except TimeoutError as exc:
                    late = f"not done after {seconds:g} s" if limit.expired() else f"TimeoutError: {exc}"
                    raise MachineError(late, stage=what) from exc
        except MachineError as exc:
            if machine_id in str(exc):
                raise
            raise MachineError(f"machine {machine_id}, {what}: {exc}", stage=what) from exc
