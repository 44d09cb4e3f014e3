"""Machines for episodes: one lease each, held from boot to close."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from outrider.core.errors import MachineError
from outrider.pool.lease import Lease
from outrider.pool.source import Machines

R = TypeVar("R")

WAIT_SECONDS = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Supply:
    """Where the machines of a worker's episodes come from, for which run, and how long each may wait for its own."""

    machines: Machines
    run: str = ""
    wait_seconds: float = WAIT_SECONDS

    async def lease(self, holder: str) -> Lease:
        (lease,) = await self.machines.take(deadline=self.wait_seconds, run=self.run, holder=holder)
        return lease


async def while_held(lease: Lease, work: Coroutine[Any, Any, R]) -> R:
    """What the work comes to. If the machine is lost before, the work is stopped: there is nothing left to work on."""
    working = asyncio.ensure_future(work)
    losing = asyncio.ensure_future(lease.wait_until_lost())
    try:
        await asyncio.wait({working, losing}, return_when=asyncio.FIRST_COMPLETED)
        if losing.done() and not working.done():
            raise MachineError(f"machine {lease.machine_id} was lost: {losing.result()}", stage="machine")
        return working.result()
    finally:
        for task in (working, losing):
            task.cancel()
        await asyncio.wait({working, losing})
        if not working.cancelled():
            working.exception()  # looked at, whoever raises what
