"""A lease: one machine in one holder's hands, until it is released or lost.

Invariants:
- Nothing reaches the machine through a lease that is over: a call is refused before it begins, is cut off where it
  stands when the lease ends, and its answer is not given out.
- The machine is not touched by its pool before the calls of its last holder have ended.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from outrider.core.errors import MachineError
from outrider.pool.computer import Computer, Executed, Input
from outrider.pool.provider import Address

R = TypeVar("R")


class Fence:
    """Lets calls through while the lease lasts."""

    def __init__(self, machine_id: str, epoch: int) -> None:
        self._name = f"{machine_id} (epoch {epoch})"
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._calls: set[asyncio.Task[Any]] = set()
        self.reason = ""
        """Why the lease is over."""

    @property
    def is_over(self) -> bool:
        return self._over.done()

    def end(self, reason: str) -> None:
        """From now on nothing gets through; what is on its way is cancelled."""
        if self.is_over:
            return
        self.reason = reason
        self._over.set_result(None)
        for call in self._calls:
            call.cancel()

    def check(self) -> None:
        if self.is_over:
            raise MachineError(f"the lease is over for machine {self._name}: {self.reason}", stage="machine.call")

    async def call(self, work: Callable[[], Coroutine[Any, Any, R]]) -> R:
        self.check()
        call = asyncio.create_task(work(), name=f"call of machine {self._name}")
        self._calls.add(call)
        call.add_done_callback(self._forget)
        both: set[asyncio.Future[Any]] = {call, self._over}
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not call.done():
                call.cancel()
        self.check()
        if call.cancelled():
            raise MachineError(f"a call of machine {self._name} was cut off", stage="machine.call")
        return call.result()

    async def settled(self) -> None:
        """Wait until no call is on its way. Bound it: a call that ignores its cancellation may never end."""
        while self._calls:
            await asyncio.wait(set(self._calls))

    def _forget(self, call: asyncio.Task[Any]) -> None:
        self._calls.discard(call)
        if not call.cancelled():
            call.exception()


class LeasedComputer:
    """A computer behind a fence."""

    def __init__(self, computer: Computer, fence: Fence) -> None:
        self._computer = computer
        self._fence = fence

    @property
    def screen_size(self) -> tuple[int, int]:
        self._fence.check()
        return self._computer.screen_size

    async def screenshot(self) -> bytes:
        return await self._fence.call(self._computer.screenshot)

    async def input(self, events: Sequence[Input]) -> None:
        await self._fence.call(lambda: self._computer.input(events))

    async def execute(self, command: Sequence[str] | str, *, timeout: float = 120.0) -> Executed:
        return await self._fence.call(lambda: self._computer.execute(command, timeout=timeout))

    async def launch(self, command: Sequence[str] | str) -> None:
        await self._fence.call(lambda: self._computer.launch(command))

    async def read_file(self, path: str) -> bytes | None:
        return await self._fence.call(lambda: self._computer.read_file(path))

    async def write_file(self, path: str, data: bytes) -> None:
        await self._fence.call(lambda: self._computer.write_file(path, data))

    async def accessibility_tree(self) -> str:
        return await self._fence.call(self._computer.accessibility_tree)

    async def terminal_text(self) -> str | None:
        return await self._fence.call(self._computer.terminal_text)


class Lease:
    """One machine, held. `release` when done; whoever uses it after that, or after it was lost, gets `MachineError`."""

    def __init__(
        self,
        machine_id: str,
        epoch: int,
        *,
        holder: str,
        address: Address,
        computer: Computer,
        on_release: "Callable[[Lease], None]",
    ) -> None:
        self.machine_id = machine_id
        self.epoch = epoch
        self.holder = holder
        self.address = address
        """Where the machine is. What is done there without `computer` is fenced only if its provider says so."""
        self._fence = Fence(machine_id, epoch)
        self._on_release = on_release
        self._lost = asyncio.Event()
        self.computer: Computer = LeasedComputer(computer, self._fence)

    @property
    def is_over(self) -> bool:
        """Released or lost."""
        return self._fence.is_over

    @property
    def lost(self) -> str | None:
        """Why the machine was taken away or died; None while it is held, and if it was released."""
        return self._fence.reason if self._lost.is_set() else None

    async def wait_until_lost(self) -> str:
        """Return the reason as soon as the lease is lost; never, if it is not."""
        await self._lost.wait()
        return self._fence.reason

    def release(self) -> None:
        """Give the machine back. Returns at once; again, or after it was lost, changes nothing."""
        if not self._fence.is_over:
            self._fence.end("it was released")
            self._on_release(self)

    def lose(self, reason: str) -> None:
        """For the pool: the holder has it no more."""
        if not self._fence.is_over:
            self._fence.end(reason)
            self._lost.set()

    async def settled(self) -> None:
        """For the pool: wait until the holder's last call has ended."""
        await self._fence.settled()
