"""Where episodes get their machines from: a pool in this process, or one in another."""

from typing import Protocol

from outrider.pool.computer import Computer
from outrider.pool.lease import Lease
from outrider.pool.provider import Address


class Machine(Protocol):
    """A machine in the hands of an episode, for as long as its lease lasts."""

    @property
    def machine_id(self) -> str: ...

    @property
    def address(self) -> Address: ...

    @property
    def computer(self) -> Computer: ...


class Machines(Protocol):
    """What `MachinePool.take` does: see there."""

    async def take(self, n: int = 1, *, deadline: float, run: str = "", holder: str = "") -> tuple[Lease, ...]: ...
