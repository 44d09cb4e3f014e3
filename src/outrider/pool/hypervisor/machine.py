"""A virtual machine of a product, started and reverted by its command line and reached by OSWorld's protocol."""

import asyncio
from contextlib import suppress
from typing import NamedTuple

from outrider.core.errors import MachineError, boundary
from outrider.core.tasks import uninterrupted
from outrider.pool.hypervisor.places import Place
from outrider.pool.hypervisor.product import Hypervisor, HypervisorSettings
from outrider.pool.osworld_protocol.machine import Endpoint, OsworldMachine
from outrider.pool.provider import Address

STINT_SECONDS = 10.0
"""So long an address is tried before it is asked for again: it may be the one of the guest's last life."""

HOST_AGAIN_SECONDS = 0.5


class Wishes(NamedTuple):
    """What the machines of a provider are made with."""

    snapshot: str
    headless: bool
    width: int | None
    height: int | None


class HypervisorMachine(OsworldMachine):
    """Made, but not yet started."""

    def __init__(self, place: Place, hypervisor: Hypervisor, wishes: Wishes, settings: HypervisorSettings) -> None:
        super().__init__(Endpoint(place.host, settings.port), probe_seconds=settings.probe_seconds)
        self._place = place
        self._hypervisor = hypervisor
        self._wishes = wishes
        self._settings = settings
        self._is_destroyed = False

    @property
    def address(self) -> Address:
        return address_of(self._place, self._settings)

    async def make(self) -> None:
        """What was begun is ended if this fails."""
        await self._place.claim()
        async with self.changing:
            try:
                await self._place.make()
                await self._boot()
            except BaseException:
                await uninterrupted(self._end())
                raise

    async def take_over(self) -> None:
        """For a machine that runs. One that does not answer is left to its next reset."""
        with suppress(MachineError, TimeoutError):
            async with asyncio.timeout(self._settings.probe_seconds):
                await self.connect()

    async def reset(self) -> None:
        async with self.changing:
            if self._is_destroyed:
                raise MachineError(f"machine {self._place.vm} is destroyed", stage="machine.reset")
            await self.move(self.endpoint)
            await self._hypervisor.revert(self._place.vm, self._wishes.snapshot)
            await self._boot()

    async def probe(self) -> None:
        await super().probe()
        self._check_screen()

    async def destroy(self) -> None:
        async with self.changing:
            await uninterrupted(self._end())

    async def _end(self) -> None:
        await self.let_go()
        if not self._is_destroyed:
            await self._place.remove()
            self._is_destroyed = True

    async def _boot(self) -> None:
        """Start it, and wait until its server answers."""
        seconds = self._settings.boot_seconds
        said = [f"{self._hypervisor.name} knows no address of it"]
        try:
            async with asyncio.timeout(seconds):
                if not await self._hypervisor.is_running(self._place.vm):  # it may be, by a snapshot of a running one
                    await self._hypervisor.start(self._place.vm, headless=self._wishes.headless)
                while not await self._answers(said):
                    pass
        except TimeoutError as exc:
            raise MachineError(
                f"the guest of {self._place.vm} was not up within {seconds:g} s: {said[-1]}; look whether it boots, "
                f"starts OSWorld's server on port {self._settings.port}, and is on a network that this host reaches",
                stage="machine.boot",
            ) from exc
        with boundary(MachineError, "machine.boot"):
            self._place.write_host(self.endpoint.host)
        self._check_screen()

    async def _answers(self, said: list[str]) -> bool:
        host = await self._hypervisor.host_of(self._place.vm)
        if host is None:
            if not await self._hypervisor.is_running(self._place.vm):
                raise MachineError(f"{self._place.vm} went off while it was starting", stage="machine.boot")
            await asyncio.sleep(HOST_AGAIN_SECONDS)
            return False
        if host != self.endpoint.host:
            await self.move(Endpoint(host, self._settings.port))
        try:
            await self.answering(STINT_SECONDS)
        except MachineError as exc:
            said.append(str(exc))
            return False
        return True

    def _check_screen(self) -> None:
        size = self._ours.screen_size
        for name, wish, found in zip(("width", "height"), (self._wishes.width, self._wishes.height), size, strict=True):
            if wish not in {None, found}:
                raise MachineError(
                    f"the screen of {self._place.vm} is {size[0]} x {size[1]} and its {name} was to be {wish}; change "
                    "it in the image and take the snapshot again, or leave the size out",
                    stage="machine.probe",
                )


def address_of(place: Place, settings: HypervisorSettings) -> Address:
    return {"machine_id": place.label.machine_id, "vm": place.vm, "host": place.host, "port": settings.port}
