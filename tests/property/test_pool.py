"""Thousands of leases on virtual time, with everything going wrong that can: what must never happen does not."""

import asyncio
import itertools
import logging
import random
from collections import Counter
from contextlib import suppress

import pytest

from outrider.core.errors import MachineError
from outrider.core.machine import AFTER, MachineState
from outrider.pool import Lease, MachinePool, PoolConfig
from outrider.pool.upkeep import Upkeep
from outrider.store import Store, open_store
from outrider.testing import LoopClock, run_virtual
from outrider.testing.fake_machines import FakeMachine, FakeProvider, Fault, MemoryJournal, RandomPlan

N_LEASES = 1000
"""Of one seed; there are ten."""

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


class StoredJournal(MemoryJournal):
    """What a real store takes, which refuses what is out of order."""

    def __init__(self, store: Store) -> None:
        super().__init__()
        self._store = store

    async def open_pool(self, name: str) -> int:
        await super().open_pool(name)
        return await self._store.open_pool(name)

    async def query_machines(self, pool=None, states=None):
        found = await self._store.query_machines(pool, states)
        assert {one.machine_id: one for one in found} == {
            one.machine_id: one for one in await super().query_machines(pool, states)
        }
        return found

    async def write_machines(self, *step) -> None:
        await self._store.write_machines(*step)
        await super().write_machines(*step)


class World:
    """One pool after the other on one host, with holders who misbehave."""

    def __init__(self, seed: int, monkeypatch: pytest.MonkeyPatch, n_leases: int = N_LEASES) -> None:
        self.rng = random.Random(seed)
        self.plan = RandomPlan(self.rng, seconds=SECONDS, faults=FAULTS)
        self.host = Host(self.plan)
        self.journal = MemoryJournal()
        self.held: dict[str, Lease] = {}
        self.asked = {run: itertools.count() for run in "abc"}
        self.served = dict.fromkeys("abc", -1)
        self.numbers = itertools.count()
        self.n_leases = 0
        self.n_wanted = n_leases
        self.outcomes: Counter[str] = Counter()
        self.pool = self.new_pool()
        check = self.check
        pump = Upkeep.pump

        def pump_and_check(upkeep: Upkeep) -> None:
            pump(upkeep)
            check()

        monkeypatch.setattr(Upkeep, "pump", pump_and_check)

    def new_pool(self) -> MachinePool:
        self.served = dict.fromkeys("abc", -1)
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
        return MachinePool(
            self.host,
            config,
            journal=self.journal,
            clock=LoopClock(),
            new_machine_id=lambda: f"m{next(self.numbers)}",
        )

    def check(self) -> None:
        """What holds whenever the pool has decided something."""
        assert not self.host.is_overfull, "more machines than M"
        fleet = self.pool._fleet
        head = fleet._line.next
        assert head is None or fleet._closed or fleet.n(MachineState.READY) < head.n, (
            "somebody waits for a ready machine"
        )
        leased = {record.machine_id for record in fleet.records() if record.state is MachineState.LEASED}
        self.held = {id: lease for id, lease in self.held.items() if not lease.is_over}
        assert set(self.held) <= leased

    def took(self, run: str, number: int, leases: tuple[Lease, ...]) -> None:
        assert number > self.served[run], "first come, first served"
        self.served[run] = number
        assert len({lease.machine_id for lease in leases}) == len(leases)
        for lease in leases:
            self.n_leases += 1
            machine = self.host.machines.get(lease.machine_id)
            assert lease.is_over or (machine is not None and not machine.is_dirty), "handed out dirty"
            before = self.held.get(lease.machine_id)
            assert before is None or before.is_over, "used by two"
            self.held[lease.machine_id] = lease
            assert self.journal.records[lease.machine_id].state is MachineState.LEASED or lease.is_over

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
        self.took(run, number, leases)
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
            with pytest.raises(MachineError, match="the lease is over"):
                await lease.computer.write_file("late", b"")
            assert machine is None or machine.files == files

    async def disturb(self, pool: MachinePool) -> None:
        """One thing from outside."""
        rng = self.rng
        machines = list(self.host.machines.values())
        known = [record.machine_id for record in pool.machines]
        match rng.choice(["die", "die", "revoke", "reset", "stop", "resize", "nothing", "nothing"]):
            case "die" if machines:
                rng.choice(machines).die("pulled the plug")
            case "revoke" if known:
                pool.revoke(rng.choice(known), "somebody said so")
            case "reset" if known:
                pool.reset(rng.choice(known))
            case "stop" if known:
                pool.stop(rng.choice(known))
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
        tasks = asyncio.all_tasks()
        while self.n_leases < self.n_wanted:
            await self.live(min(self.n_leases + self.rng.randrange(50, 300), self.n_wanted))
            self.pool = self.new_pool()
        self.plan.is_calm = True
        async with self.pool:
            await self.pool.wait_until_ready(deadline=1000)
        assert self.host.machines == {}
        assert self.pool.statistics().n_leaks == 0
        assert asyncio.all_tasks() == tasks
        for move in self.journal.moves:
            assert move.before is None or move.state in AFTER[move.before]
        assert {record.state for record in self.journal.records.values()} == {MachineState.GONE}


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


@pytest.fixture(autouse=True)
def quiet(caplog):
    """Thousands of warnings are what is wanted here, not what is to be kept."""
    caplog.set_level(logging.ERROR, "outrider.pool")


@pytest.mark.parametrize("seed", range(10))
def test_no_machine_is_leaked_dirty_or_shared_whatever_goes_wrong(seed, monkeypatch):
    world = World(seed, monkeypatch)
    run_virtual(world.run(), limit_seconds=3e6)
    assert world.n_leases >= N_LEASES


def test_a_store_takes_every_move_of_a_pool_that_dies_again_and_again(monkeypatch):
    async def run() -> None:
        store = await open_store("memory://", clock=LoopClock())
        world = World(5, monkeypatch, n_leases=500)
        world.journal = StoredJournal(store)
        world.pool = world.new_pool()
        try:
            await world.run()
            moves = await store.query_machine_moves()
            assert moves.total == len(world.journal.moves) > 500
        finally:
            await store.close()

    run_virtual(run(), limit_seconds=3e6)


def test_the_same_seed_gives_the_same_moves(monkeypatch):
    def moves() -> list[object]:
        with monkeypatch.context() as patch:
            world = World(77, patch, n_leases=200)
            run_virtual(world.run(), limit_seconds=3e6)
            return world.journal.moves

    first, second = moves(), moves()
    assert len(first) > 200
    assert first == second
