"""Machines of an image, made by a product's command line.

Invariants:
- A clone's name tells its owner, so that it is found whoever made it, and whether it was finished or not.
- A command that changes a machine is not broken off: the product's own service would go on with it unseen.
"""

import shutil
from contextlib import suppress
from pathlib import Path

from outrider.core.errors import InvalidInput, MachineError
from outrider.core.memory import check_room
from outrider.pool.hypervisor.machine import HypervisorMachine, Wishes, address_of
from outrider.pool.hypervisor.places import Clone, Label, Original, Place, claim_of, source_of
from outrider.pool.hypervisor.product import DEFAULT_SNAPSHOT, Hypervisor, HypervisorSettings
from outrider.pool.provider import Ability, Address
from outrider.pool.spec import MachineSpec

MIB = 2**20


class HypervisorProvider:
    """`image` is the machine that others are made of, as the command line knows it."""

    abilities = frozenset({Ability.SCREEN, Ability.COMMANDS, Ability.TREE, Ability.TERMINAL})

    def __init__(
        self, hypervisor: Hypervisor, image: str, spec: MachineSpec, settings: HypervisorSettings, folder: Path
    ) -> None:
        self.name = hypervisor.name
        snapshot = spec.snapshot or DEFAULT_SNAPSHOT
        headless = True if spec.headless is None else spec.headless
        self._wishes = Wishes(snapshot, headless, spec.width, spec.height)
        self._hypervisor = hypervisor
        self._image = image
        self._settings = settings
        self._folder = folder
        self._source = source_of(image, snapshot)

    async def check(self, n_machines: int) -> None:
        program = self._hypervisor.program
        if shutil.which(program) is None:
            raise InvalidInput(
                f"provider {self.name} needs the program {program}, which is not there; {self._hypervisor.to_install}. "
                "It is looked up in PATH; the setting `program` names another place"
            )
        if n_machines > 1 and not self._settings.clone:
            raise InvalidInput(f"{n_machines} machines need clones of {self._image}, and the setting `clone` is false")
        try:
            await self._hypervisor.check_image()
            snapshots = await self._hypervisor.snapshots(self._image)
            each = await self._hypervisor.memory_bytes(self._image)
        except MachineError as exc:
            raise InvalidInput(f"{self.name} cannot tell of {self._image}: {exc}") from exc
        if self._wishes.snapshot not in snapshots:
            there = f"there are {', '.join(snapshots)}" if snapshots else "it has none; take one while it is off"
            raise InvalidInput(f"{self._image} has no snapshot {self._wishes.snapshot!r}: {there}")
        if each is not None:
            check_room(n_machines, "machines", each)

    async def create(self, machine_id: str, owner: str) -> HypervisorMachine:
        machine = self._machine(self._place(Label(owner, machine_id, self._source)))
        await machine.make()
        return machine

    async def adopt(self, machine_id: str, address: Address) -> HypervisorMachine | None:
        """A machine that is off, or was made of another snapshot, is ended."""
        place = await self._found(machine_id, address)
        if place is None:
            return None
        machine = self._machine(place)
        if place.label.source == self._source and await self._hypervisor.is_running(place.vm):
            await machine.take_over()
            return machine
        await machine.destroy()
        return None

    async def owned(self, owner: str) -> tuple[Address, ...]:
        if self._settings.clone:
            labels = await self._clones()
            places = [self._place(label) for label in labels if label.owner == owner]
        else:
            facts = claim_of(self._folder, self._source).facts
            label = Label(owner, str(facts.get("machine_id")), self._source)
            places = [self._place(label)] if facts.get("owner") == owner else []
        return tuple(address_of(place, self._settings) for place in places)

    async def close(self) -> None:
        with suppress(OSError):
            self._folder.rmdir()

    async def _found(self, machine_id: str, address: Address) -> Place | None:
        if self._settings.clone:
            places = [self._place(label) for label in await self._clones() if label.machine_id == machine_id]
            return next((place for place in places if place.vm == address.get("vm")), None)
        claim = claim_of(self._folder, self._source)
        if address.get("vm") != self._image or not claim.take_over(machine_id):
            return None
        label = Label(str(claim.facts.get("owner")), machine_id, self._source)
        return Original(self._hypervisor, claim, label, vm=self._image, snapshot=self._wishes.snapshot)

    async def _clones(self) -> list[Label]:
        return [label for text in await self._hypervisor.labels() if (label := Label.read(text)) is not None]

    def _place(self, label: Label) -> Place:
        snapshot = self._wishes.snapshot
        if self._settings.clone:
            return Clone(self._hypervisor, self._folder, label, snapshot)
        claim = claim_of(self._folder, self._source)
        return Original(self._hypervisor, claim, label, vm=self._image, snapshot=snapshot)

    def _machine(self, place: Place) -> HypervisorMachine:
        return HypervisorMachine(place, self._hypervisor, self._wishes, self._settings)
