"""Machines that are not there, with scripted durations and faults, for trying what a pool does with them.

All durations pass on the event loop, so on virtual time they cost nothing. The provider outlives the pools that use it,
as a host does: what a pool has left behind is still there for the next.
"""

import asyncio
import random
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import StrEnum
from typing import Any

from msgspec import Struct

from outrider.core.errors import InvalidInput, MachineError, PoolLost, StoreUnavailable
from outrider.core.machine import MachineMove, MachineRecord, MachineState
from outrider.pool.computer import Executed, Input
from outrider.pool.provider import Address


class Fault(StrEnum):
    """What goes wrong in one operation, at its end unless it says otherwise."""

    FAIL = "fail"
    HANG = "hang"
    """It never ends."""
    LEAVE = "leave"
    """A reset that leaves everything as it was."""
    DIE = "die"
    """The machine dies, and the operation fails."""


class Step(Struct, frozen=True, kw_only=True):
    """How one operation goes."""

    seconds: float = 0.0
    fault: Fault | None = None


Plan = Callable[[str], Step]
"""How the next operation of this name goes: check, create, reset, probe, plant, has, destroy, adopt, call."""


class RandomPlan:
    """Durations about a mean, and faults by chance; the same for the same seed."""

    def __init__(
        self,
        rng: random.Random,
        *,
        seconds: Mapping[str, float] | None = None,
        faults: Mapping[str, Mapping[Fault, float]] | None = None,
    ) -> None:
        self._rng = rng
        self._seconds = dict(seconds or {})
        self._faults = faults or {}
        self.is_calm = False
        """No more faults."""

    def __call__(self, operation: str) -> Step:
        mean = self._seconds.get(operation, 0.0)
        seconds = self._rng.expovariate(1 / mean) if mean else 0.0
        choice = self._rng.random()
        for fault, rate in () if self.is_calm else self._faults.get(operation, {}).items():
            if choice < rate:
                return Step(seconds=seconds, fault=fault)
            choice -= rate
        return Step(seconds=seconds)


class FakeProvider:
    """`plan` says how each operation goes; what was given to `script` comes before it."""

    name = "fake"

    def __init__(self, plan: Plan | None = None, *, capacity: int = 1_000_000) -> None:
        self._plan = plan or (lambda _: Step())
        self._scripted: dict[str, deque[Step]] = defaultdict(deque)
        self._capacity = capacity
        self.machines: dict[str, FakeMachine] = {}
        """All that exist, those being made included."""
        self.n_most = 0
        """How many have existed at the same time."""
        self.n_made = 0
        self.is_closed = False

    def script(self, operation: str, *steps: Fault | Step) -> None:
        """The next operations of this name go like this."""
        self._scripted[operation].extend(Step(fault=step) if isinstance(step, Fault) else step for step in steps)

    async def go(self, operation: str, machine: "FakeMachine | None" = None) -> Fault | None:
        """Carry out one operation; the fault that its caller has to see to."""
        scripted = self._scripted[operation]
        step = scripted.popleft() if scripted else self._plan(operation)
        if step.seconds:
            await asyncio.sleep(step.seconds)
        match step.fault:
            case Fault.HANG:
                await asyncio.get_running_loop().create_future()
            case Fault.FAIL:
                raise MachineError(f"{operation} failed, as it was told to")
            case Fault.DIE if machine is not None:
                machine.die(f"during {operation}")
        if machine is not None and machine.cause_of_death and operation != "destroy":
            raise MachineError(f"machine {machine.machine_id} is dead: {machine.cause_of_death}")
        return step.fault

    async def check(self, n_machines: int) -> None:
        if n_machines > self._capacity:
            raise InvalidInput(f"{n_machines} machines do not fit: there is room for {self._capacity}")
        await self.go("check")

    async def create(self, machine_id: str, owner: str) -> "FakeMachine":
        machine = FakeMachine(self, machine_id, owner)
        self.machines[machine_id] = machine
        self.n_most = max(self.n_most, len(self.machines))
        try:
            await self.go("create", machine)
        except BaseException:
            del self.machines[machine_id]
            raise
        self.n_made += 1
        return machine

    async def adopt(self, machine_id: str, address: Address) -> "FakeMachine | None":
        await self.go("adopt")
        machine = self.machines.get(address["machine_id"])
        same = machine is not None and machine.machine_id == machine_id and machine.address == address
        return machine if same else None

    async def owned(self, owner: str) -> tuple[Address, ...]:
        return tuple(machine.address for machine in self.machines.values() if machine.owner == owner)

    async def close(self) -> None:
        self.is_closed = True


class FakeMachine:
    """A machine of a `FakeProvider`: some files, and a death."""

    screen_size = (640, 480)

    def __init__(self, provider: FakeProvider, machine_id: str, owner: str) -> None:
        self._provider = provider
        self._died = asyncio.Event()
        self.machine_id = machine_id
        self.owner = owner
        self.n_boots = 1
        self.files: dict[str, bytes] = {}
        self.inputs: list[Input] = []
        self.cause_of_death = ""

    @property
    def address(self) -> Address:
        """Another after each reset."""
        return {"machine_id": self.machine_id, "boot": self.n_boots}

    @property
    def computer(self) -> "FakeMachine":
        return self

    @property
    def is_dirty(self) -> bool:
        """Whether anything of a former holder, or of the pool, is left in it."""
        return bool(self.files or self.inputs)

    def die(self, reason: str = "killed") -> None:
        self.cause_of_death = self.cause_of_death or reason
        self._died.set()

    async def wait_until_dead(self) -> str:
        await self._died.wait()
        return self.cause_of_death

    async def reset(self) -> None:
        if await self._provider.go("reset", self) is not Fault.LEAVE:
            self.files.clear()
            self.inputs.clear()
            self.n_boots += 1

    async def probe(self) -> None:
        await self._provider.go("probe", self)

    async def plant(self, marker: str) -> None:
        await self._provider.go("plant", self)
        self.files[marker] = b""

    async def has(self, marker: str) -> bool:
        await self._provider.go("has", self)
        return marker in self.files

    async def destroy(self) -> None:
        await self._provider.go("destroy", self)
        self.die("destroyed")
        self._provider.machines.pop(self.machine_id, None)

    async def screenshot(self) -> bytes:
        await self._provider.go("call", self)
        return b"a picture"

    async def input(self, events: Sequence[Input]) -> None:
        await self._provider.go("call", self)
        self.inputs.extend(events)

    async def execute(self, command: Sequence[str] | str, *, timeout: float = 120.0) -> Executed:
        await self._provider.go("call", self)
        self.files["history"] = self.files.get("history", b"") + f"{command} {timeout}\n".encode()
        return Executed(returncode=0)

    async def launch(self, command: Sequence[str] | str) -> None:
        await self.execute(command)

    async def read_file(self, path: str) -> bytes | None:
        await self._provider.go("call", self)
        return self.files.get(path)

    async def write_file(self, path: str, data: bytes) -> None:
        await self._provider.go("call", self)
        self.files[path] = data

    async def accessibility_tree(self) -> str:
        await self._provider.go("call", self)
        return "<desktop/>"

    async def terminal_text(self) -> str | None:
        await self._provider.go("call", self)
        return None


class MemoryJournal:
    """A journal that outlives the pools that write it, as long as this object does."""

    def __init__(self) -> None:
        self.records: dict[str, MachineRecord] = {}
        self.moves: list[MachineMove] = []
        self.n_writes = 0
        self.seconds = 0.0
        """How long a write takes."""
        self.is_down = False
        self._epochs: dict[str, tuple[int, int]] = {}

    async def open_pool(self, name: str) -> int:
        epoch = self._epochs.get(name, (0, 0))[0] + 1
        self._epochs[name] = (epoch, 0)
        return epoch

    async def query_machines(
        self, pool: str | None = None, states: Collection[MachineState | str] | None = None
    ) -> tuple[MachineRecord, ...]:
        return tuple(
            record
            for record in self.records.values()
            if record.pool == (pool or record.pool) and (states is None or record.state in states)
        )

    async def write_machines(
        self, pool: str, epoch: int, number: int, records: Sequence[MachineRecord], moves: Sequence[MachineMove]
    ) -> None:
        if self.seconds:
            await asyncio.sleep(self.seconds)
        if self.is_down:
            raise StoreUnavailable("the journal is down")
        current, written = self._epochs[pool]
        if epoch != current:
            raise PoolLost(pool, epoch, current)
        if number <= written:
            return
        self._epochs[pool] = (epoch, number)
        self.n_writes += 1
        self.records.update((record.machine_id, record) for record in records)
        self.moves.extend(moves)

    def states_of(self, machine_id: str) -> list[Any]:
        """The states that the machine went through."""
        return [move.state for move in self.moves if move.machine_id == machine_id]
