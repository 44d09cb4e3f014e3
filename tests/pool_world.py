"""One pool after the other on a host of fake machines, with everything going wrong that can; `wrongs` must stay empty.

Every hand-out is compared with what is true of the machine, and every decision of the pool with what must always hold.
"""

import asyncio
import itertools
import random
from collections import Counter
from contextlib import suppress
from enum import StrEnum
from unittest.mock import patch

from outrider.core.errors import MachineError
from outrider.core.machine import AFTER, MachineState
from outrider.pool import Lease, MachinePool, PoolConfig
from outrider.pool.upkeep import Upkeep
from outrider.pool.waiting import Ticket, WaitingLine
from outrider.testing import LoopClock
from outrider.testing.fake_machines import FakeMachine, FakeProvider, Fault, MemoryJournal, RandomPlan

SECONDS = {"create": 5.0, "reset": 1.0, "probe": 0.1, "plant": 0.05, "has": 0.05, "destroy": 0.5, "call": 0.2}
FAULTS = {
    "create": {Fault.FAIL: 0.1, Fault.HANG: 0.02, Fault.DIE: 0.02},
    "reset": {Fault.FAIL: 0.02, Fault.HANG: 0.01, Fault.LEAVE: 0.03, Fault.DIE: 0.02},
    "probe": {Fault.FAIL: 0.01, Fault.HANG: 0.01, Fault.DIE: 0.01},
    "plant": {Fault.FAIL: 0.01, Fault.HANG: 0.005},
    "has": {Fault.FAIL: 0.01, Fault.HANG: 0.005},
    "destroy": {Fault.FAIL: 0.1, Fault.HANG: 0.05},
    "call": {Fault.FAIL: 0.02, Fault.HANG: 0.02, Fault.DIE: 0.02},
    "adopt": {Fault.FAIL: 0.1},
}


class Host(FakeProvider):
    """Knows how many machines may exist whenever one more is made."""

    bound = 0
    is_overfull = False

    async def create(self, machine_id: str, owner: str) -> FakeMachine:
        self.is_overfull = self.is_overfull or len(self.machines) >= self.bound
        return await super().create(machine_id, owner)


class Wrong(StrEnum):
    """What must never happen."""

    LEAK = "leak"
    DIRTY = "dirty hand-out"
    DOUBLE = "double use"
    OVERFULL = "more machines than M"
    IDLE = "a ready machine while somebody waits"
    UNFAIR = "served before somebody who came first"
    JOURNAL = "the journal is wrong"


class World:
    """One pool after the other on one host, with holders who misbehave."""

    def __init__(self, seed: int, n_leases: int, journal: MemoryJournal | None = None) -> None:
        self.rng = random.Random(seed)
        self.plan = RandomPlan(self.rng, seconds=SECONDS, faults=FAULTS)
        self.host = Host(self.plan)
        self.journal = journal or MemoryJournal()
        self.held: dict[str, Lease] = {}
        self.asked = {run: itertools.count() for run in "abc"}
        self.numbers = itertools.count()
        self.n_leases = 0
        self.n_wanted = n_leases
        self.outcomes: Counter[str] = Counter()
        self.wrongs: Counter[Wrong] = Counter()
        self.pool = self.new_pool()

    def must(self, holds: bool, wrong: Wrong) -> None:
        if not holds:
            self.wrongs[wrong] += 1

    def new_pool(self) -> MachinePool:
        self.host.bound = self.rng.choice([1, 3, 6])
        config = PoolConfig(
            name="pool",
            n_machines=self.host.bound,
            max_creating=3,
            max_resetting=2,
            create_seconds=30,
            reset_seconds=20,
            probe_seconds=5,
            destroy_seconds=5,
            close_seconds=600,
            max_hold_seconds=60,
            max_uses=self.rng.choice([None, 7]),
            max_age_seconds=self.rng.choice([None, 200.0]),
            quarantine_seconds=self.rng.choice([0.0, 50.0]),
            max_quarantined=self.rng.choice([0, 2]),
        )
        pool = MachinePool(
            self.host,
            config,
            journal=self.journal,
            clock=LoopClock(),
            new_machine_id=lambda: f"m{next(self.numbers)}",
        )
        self.watch_turns(pool._fleet._line)
        return pool

    def watch_turns(self, line: WaitingLine) -> None:
        """Whom the pool serves came first of their run. Who is woken first is the event loop's choice."""
        serve = line.serve

        def watched(ticket: Ticket) -> None:
            first = min(other.number for other in line.tickets if other.run == ticket.run)
            self.must(ticket.number == first, Wrong.UNFAIR)
            serve(ticket)

        line.serve = watched  # type: ignore[method-assign]

    def check(self) -> None:
        """What holds whenever the pool has decided something."""
        self.must(not self.host.is_overfull, Wrong.OVERFULL)
        fleet = self.pool._fleet
        head = fleet._line.next
        self.must(head is None or fleet._closed or fleet.n(MachineState.READY) < head.n, Wrong.IDLE)
        leased = {record.machine_id for record in fleet.records() if record.state is MachineState.LEASED}
        self.held = {id: lease for id, lease in self.held.items() if not lease.is_over}
        self.must(set(self.held) <= leased, Wrong.DOUBLE)

    def took(self, leases: tuple[Lease, ...]) -> None:
        self.must(len({lease.machine_id for lease in leases}) == len(leases), Wrong.DOUBLE)
        for lease in leases:
            self.n_leases += 1
            machine = self.host.machines.get(lease.machine_id)
            self.must(lease.is_over or (machine is not None and not machine.is_dirty), Wrong.DIRTY)
            before = self.held.get(lease.machine_id)
            self.must(before is None or before.is_over, Wrong.DOUBLE)
            self.held[lease.machine_id] = lease
            written = self.journal.records[lease.machine_id].state
            self.must(lease.is_over or written is MachineState.LEASED, Wrong.JOURNAL)

    async def hold(self, pool: MachinePool) -> None:
        rng = self.rng
        run = rng.choice("aaaabbc")
        n = min(rng.choice([1, 1, 1, 1, 2, 3]), pool._fleet.n_machines)
        number = next(self.asked[run])
        holder = rng.choice(["poison", f"{run}{number}", f"{run}{number}", f"{run}{number}"])
        try:
            leases = await pool.take(n, deadline=rng.choice([0.0, 5.0, 100.0, 400.0]), run=run, holder=holder)
        except MachineError as exc:
            self.outcomes[str(exc)[:9]] += 1
            return
        self.took(leases)
        try:
            for lease in leases:
                await self.use(lease, holder)
        finally:
            if rng.random() < 0.9:
                for lease in leases:
                    lease.release()
            # else it is never released

    async def use(self, lease: Lease, holder: str) -> None:
        rng = self.rng
        machine = self.host.machines.get(lease.machine_id)
        with suppress(MachineError):
            await lease.computer.write_file(holder, b"work")
            await asyncio.sleep(rng.expovariate(1 / 3))
            if holder == "poison" and machine is not None:
                machine.die("poisoned")
            if rng.random() < 0.03:
                await lease.wait_until_lost()
            await lease.computer.execute("more work")
        if lease.is_over:
            files = None if machine is None else dict(machine.files)
            self.must(await _is_refused(lease), Wrong.DOUBLE)
            self.must(machine is None or machine.files == files, Wrong.DOUBLE)

    async def disturb(self, pool: MachinePool) -> None:
        """One thing from outside."""
        rng = self.rng
        machines = list(self.host.machines.values())
        known = [record.machine_id for record in pool.machines]
        match rng.choice(["die", "die", "revoke", "reset", "stop", "resize", "journal", "nothing"]):
            case "die" if machines:
                rng.choice(machines).die("pulled the plug")
            case "revoke" if known:
                pool.revoke(rng.choice(known), "somebody said so")
            case "reset" if known:
                pool.reset(rng.choice(known))
            case "stop" if known:
                pool.stop(rng.choice(known))
            case "journal":
                self.journal.is_down = True
                await asyncio.sleep(rng.expovariate(1 / 5))
                self.journal.is_down = False
            case "resize":
                n = rng.choice([1, 3, 6])
                self.host.bound = max(self.host.bound, n)
                await pool.resize(n)
                await asyncio.sleep(0.01)  # what was about to be made has been called off
                self.host.bound = n

    async def live(self, n_leases: int) -> None:
        """One pool, until so many leases were given; then it is closed or dies, whatever is going on."""
        rng, pool = self.rng, self.pool
        await pool.start()
        holders: list[asyncio.Task[None]] = []
        while self.n_leases < n_leases:
            holders = [task for task in holders if not _ended(task)]
            while len(holders) < 12:
                holders.append(asyncio.create_task(self.hold(pool)))
            if rng.random() < 0.2:
                rng.choice(holders).cancel()
            if rng.random() < 0.1:
                await self.disturb(pool)
            await asyncio.sleep(rng.expovariate(1.0))
            assert asyncio.get_running_loop().time() < 1e6, self.outcomes
        if rng.random() < 0.5:
            await pool.close()
        else:
            await _kill(pool)
        for task in holders:
            task.cancel()
        await asyncio.wait(holders)
        for task in holders:
            _ended(task)

    async def run(self) -> None:
        pump, check = Upkeep.pump, self.check

        def pump_and_check(upkeep: Upkeep) -> None:
            pump(upkeep)
            check()

        with patch.object(Upkeep, "pump", pump_and_check):
            await self._run()

    async def _run(self) -> None:
        tasks = asyncio.all_tasks()
        while self.n_leases < self.n_wanted:
            await self.live(min(self.n_leases + self.rng.randrange(50, 300), self.n_wanted))
            self.pool = self.new_pool()
        self.plan.is_calm = True
        async with self.pool:
            await self.pool.wait_until_ready(deadline=1000)
        self.must(not self.host.machines, Wrong.LEAK)
        self.must(self.pool.statistics().n_leaks == 0, Wrong.LEAK)
        self.must(asyncio.all_tasks() == tasks, Wrong.LEAK)
        for move in self.journal.moves:
            self.must(move.before is None or move.state in AFTER[move.before], Wrong.JOURNAL)
        self.must({record.state for record in self.journal.records.values()} == {MachineState.GONE}, Wrong.JOURNAL)


async def _is_refused(lease: Lease) -> bool:
    try:
        await lease.computer.write_file("late", b"")
    except MachineError as exc:
        return "the lease is over" in str(exc)
    return False


def _ended(task: asyncio.Task[None]) -> bool:
    """Whether it has; what it found wrong is raised here."""
    if task.done() and not task.cancelled():
        task.result()
    return task.done()


async def _kill(pool: MachinePool) -> None:
    """The process of the pool is gone; its machines are not."""
    pool._upkeep.halt()
    for record in pool.machines:
        lease = pool._upkeep._kept[record.machine_id].lease if record.machine_id in pool._upkeep._kept else None
        if lease is not None:
            lease._on_release = lambda _: None
            lease.lose("the process is gone")
    for answer in pool._upkeep._asking.values():
        if not answer.done():
            answer.set_exception(MachineError("gone"))
    pool._upkeep.pump = lambda: None  # type: ignore[method-assign]
    await pool._jobs.stop(1000)
