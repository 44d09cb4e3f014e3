"""Those who hand out machines in this benchmark: our pool, a model of AgentFlow's, and what is between the two.

The models are written by us from what their source does, on the same providers, without any overhead of its own.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from typing import Protocol

from outrider.core.clock import Clock
from outrider.core.errors import MachineError
from outrider.core.ids import new_id
from outrider.core.machine import MachineState
from outrider.pool import Lease, MachinePool, PoolConfig
from outrider.pool.computer import Computer
from outrider.pool.provider import Provider, RunningMachine
from outrider.pool.statistics import Durations
from outrider.store import Store

US = "outrider"
LOCK = "model of AgentFlow"
IN_RELEASE = "reset in release, no lock"
ANEW = "destroyed and made anew in release"

TAKE_SECONDS = 1e5
READY_SECONDS = 1000.0
"""Both bound what has gone wrong; modelled machines take long."""


class Held(Protocol):
    """A machine in somebody's hands."""

    @property
    def computer(self) -> Computer: ...


class System(Protocol):
    """Hands out machines."""

    async def take(self, holder: str) -> Held: ...

    async def release(self, held: Held) -> None: ...

    async def handovers(self) -> Durations:
        """How long machines that were clean and free stood until somebody had them, the first of each left out."""


class OurPool:
    """A `MachinePool` that journals into a store."""

    def __init__(self, pool: MachinePool, store: Store) -> None:
        self.pool = pool
        self._store = store

    async def take(self, holder: str) -> Lease:
        (lease,) = await self.pool.take(deadline=TAKE_SECONDS, run="bench", holder=holder)
        return lease

    async def release(self, held: Lease) -> None:
        held.release()

    async def handovers(self) -> Durations:
        """As the journal has it."""
        found, seen = Durations(), set()
        page = await self._store.query_machine_moves(pool=self.pool.name)
        for move in sorted(page.items, key=lambda move: move.at):
            if move.state is MachineState.LEASED:
                if move.machine_id in seen:
                    found.add(move.seconds)
                seen.add(move.machine_id)
        return found


@asynccontextmanager
async def our_pool(
    provider: Provider, n_machines: int, store: Store, clock: Clock | None = None
) -> AsyncIterator[OurPool]:
    """With its machines ready."""
    config = PoolConfig(n_machines=n_machines)
    async with MachinePool(provider, config, journal=store, clock=clock) as pool:
        await pool.wait_until_ready(deadline=READY_SECONDS)
        yield OurPool(pool, store)


@dataclass(slots=True)
class Entry:
    """A machine of a model."""

    running: RunningMachine
    freed_at: float | None = None
    """None until it was given back for the first time."""

    @property
    def computer(self) -> Computer:
        return self.running.computer


class Model:
    """Machines in a queue of free ones, first come, first served; whoever gives one back waits for its reset.

    `locks`: as AgentFlow's manager does it, everything is done while the lock of the whole pool is held, also the
    reset; whoever was given a machine by the queue needs the lock before it is in his hands. Its deadline of 30 s,
    after which a task fails, is left out, and so is what it does with a failed reset, which is to hand the machine out.
    """

    def __init__(self, provider: Provider, *, locks: bool = False, anew: bool = False) -> None:
        self._provider = provider
        self._owner = new_id("model")
        self._numbers = itertools.count(1)
        self._free: asyncio.Queue[Entry] = asyncio.Queue()
        self._line = asyncio.Lock()
        self._entries: list[Entry] = []
        self._lock: AbstractAsyncContextManager[None] = asyncio.Lock() if locks else nullcontext()
        self._anew = anew
        self._handovers = Durations()

    async def start(self, n_machines: int) -> None:
        """Machines are made one after the other."""
        for _ in range(n_machines):
            entry = Entry(await self._create())
            self._entries.append(entry)
            self._free.put_nowait(entry)

    async def take(self, holder: str) -> Entry:  # noqa: ARG002 the protocol's
        async with asyncio.timeout(TAKE_SECONDS):
            async with self._line:
                entry = await self._free.get()
            async with self._lock:
                if entry.freed_at is not None:
                    self._handovers.add(asyncio.get_running_loop().time() - entry.freed_at)
                return entry

    async def release(self, held: Entry) -> None:
        async with self._lock:
            if self._anew:
                await held.running.destroy()
                held.running = await self._create()
            else:
                await held.running.reset()
            held.freed_at = asyncio.get_running_loop().time()
            self._free.put_nowait(held)

    async def handovers(self) -> Durations:
        return self._handovers

    async def close(self) -> None:
        await asyncio.gather(*(entry.running.destroy() for entry in self._entries))
        await self._provider.close()
        if left := await self._provider.owned(self._owner):
            raise MachineError(f"the model left machines behind: {left}")

    async def _create(self) -> RunningMachine:
        return await self._provider.create(f"m{next(self._numbers)}", self._owner)


@asynccontextmanager
async def model(name: str, provider: Provider, n_machines: int) -> AsyncIterator[Model]:
    """The model of this name, with its machines ready."""
    made = Model(provider, locks=name == LOCK, anew=name == ANEW)
    try:
        await made.start(n_machines)
        yield made
    finally:
        await made.close()
