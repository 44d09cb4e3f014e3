"""A pool of machines under the names by which virtual machines are known: allocate, release, reset, stop."""

import asyncio
from collections import Counter
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

import msgspec

from outrider.core.errors import InvalidInput, MachineError
from outrider.pool.lease import Lease
from outrider.pool.pool import MachinePool

R = TypeVar("R")

INITIALIZE_SECONDS = 600.0
RUN = "vm-pool"


class VMPoolManager:
    """Hands machines of a `MachinePool`, which it starts and stops, to workers by their ids."""

    def __init__(self, pool: MachinePool) -> None:
        self._pool = pool
        self._leases: dict[str, Lease] = {}

    async def initialize(self, timeout: float = INITIALIZE_SECONDS) -> None:
        """Start the pool and wait until all machines are ready; `MachineError` says why if they are not in time."""
        await self._pool.start()
        try:
            await self._pool.wait_until_ready(deadline=timeout)
        except BaseException:
            await self._pool.close()
            raise

    async def allocate(self, worker_id: str, timeout: float = 30.0, *, run: str = RUN) -> Lease:
        """A clean machine for this worker, its id is `lease.machine_id`; `MachineError` if none is free in time."""
        (lease,) = await self._pool.take(deadline=timeout, run=run, holder=worker_id)
        self._leases[lease.machine_id] = lease
        return lease

    async def release(self, vm_id: str, worker_id: str | None = None) -> None:
        """Give the machine back; it is reset in the background. Refused if another than `worker_id` holds it."""
        lease = self._leases.get(vm_id)
        if lease is None or (worker_id is not None and lease.holder != worker_id):
            holder = "nobody" if lease is None else lease.holder
            raise InvalidInput(f"machine {vm_id!r} is not held by {worker_id or 'anybody'}: it is held by {holder}")
        del self._leases[vm_id]
        lease.release()

    async def reset(self, vm_id: str) -> None:
        """Reset the machine in the background. Whoever holds it loses it."""
        self._pool.reset(vm_id)

    async def stop(self, vm_id: str) -> None:
        """End the machine. Whoever holds it loses it, and another takes its place."""
        self._pool.stop(vm_id)

    async def stop_all(self) -> None:
        """End all machines. The manager is of no use after this."""
        self._leases.clear()
        await self._pool.close()

    async def get_status(self) -> Mapping[str, Any]:
        """How many machines there are in each state, and each of them."""
        machines = self._pool.machines
        return {
            "total": len(machines),
            "states": dict(Counter(str(machine.state) for machine in machines)),
            "machines": [msgspec.to_builtins(machine) for machine in machines],
        }

    async def get_stats(self) -> Mapping[str, Any]:
        """The pool's statistics; see `PoolStatistics`."""
        stats: Mapping[str, Any] = msgspec.to_builtins(self._pool.statistics())
        return stats


class ThreadedVMPoolManager:
    """The same for threads: each call runs on the event loop that the manager lives on, and waits for its end."""

    def __init__(self, manager: VMPoolManager, loop: asyncio.AbstractEventLoop) -> None:
        self._manager = manager
        self._loop = loop

    def allocate(self, worker_id: str, timeout: float = 30.0) -> Lease:
        """Use the lease's computer through `call`, since it belongs to the loop."""
        return self.call(self._manager.allocate(worker_id, timeout))

    def release(self, vm_id: str, worker_id: str | None = None) -> None:
        self.call(self._manager.release(vm_id, worker_id))

    def reset(self, vm_id: str) -> None:
        self.call(self._manager.reset(vm_id))

    def stop(self, vm_id: str) -> None:
        self.call(self._manager.stop(vm_id))

    def get_status(self) -> Mapping[str, Any]:
        return self.call(self._manager.get_status())

    def get_stats(self) -> Mapping[str, Any]:
        return self.call(self._manager.get_stats())

    def call(self, work: Coroutine[Any, Any, R]) -> R:
        """Run it on the loop, from another thread. What is waited for must have an end of its own."""
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is self._loop:
            work.close()
            raise MachineError("this would wait for itself: on the event loop use VMPoolManager", stage="pool")
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()
