"""What a machine lives in: a clone of the image, or the image itself."""

import hashlib
import os
from pathlib import Path
from typing import NamedTuple, Protocol, Self
from urllib.parse import quote, unquote

from outrider.core.errors import MachineError
from outrider.core.files import write_private
from outrider.pool.claims import Claim
from outrider.pool.hypervisor.product import Hypervisor

PREFIX = "outrider"
_HOST = "guest-host"
_N_PARTS = 4


class Label(NamedTuple):
    """The name of a clone tells whose it is, which machine it is, and what it was made of."""

    owner: str
    machine_id: str
    source: str

    def __str__(self) -> str:
        return "+".join(quote(part, safe="").replace("%", "=") for part in (PREFIX, *self))

    @classmethod
    def read(cls, text: str) -> Self | None:
        """None: it is the name of something else."""
        parts = [unquote(part.replace("=", "%")) for part in text.split("+")]
        return cls(*parts[1:]) if len(parts) == _N_PARTS and parts[0] == PREFIX else None


def source_of(image: str, snapshot: str) -> str:
    """Short for an image and its snapshot, so that a clone of another is not taken for one of these."""
    return hashlib.sha256(f"{image}\0{snapshot}".encode()).hexdigest()[:8]


class Place(Protocol):
    """`host` is where the guest was last, as far as it was written down; empty: nowhere yet."""

    vm: str
    label: Label

    @property
    def host(self) -> str: ...

    def write_host(self, host: str) -> None: ...

    async def claim(self) -> None:
        """Raise `MachineError` if it is taken. Nothing needs to be removed then."""

    async def make(self) -> None:
        """Ready to be started in its clean state."""

    async def remove(self) -> None:
        """Switch it off, and leave nothing behind; once more changes nothing."""


class Clone:
    """A linked clone. It has a snapshot of its own, by the name of the image's, to be reverted to."""

    def __init__(self, hypervisor: Hypervisor, folder: Path, label: Label, snapshot: str) -> None:
        self.vm = hypervisor.clone_called(str(label))
        self.label = label
        self._hypervisor = hypervisor
        self._host_file = folder / str(label) / _HOST
        self._snapshot = snapshot

    @property
    def host(self) -> str:
        try:
            return self._host_file.read_text()
        except OSError:
            return ""

    def write_host(self, host: str) -> None:
        new = self._host_file.with_suffix(".new")
        write_private(new, host)
        new.replace(self._host_file)

    async def claim(self) -> None:
        if str(self.label) in await self._hypervisor.labels():
            raise MachineError(f"there is a machine {self.vm} already", stage="machine.create")

    async def make(self) -> None:
        try:
            await self._hypervisor.clone(self._snapshot, str(self.label))
        except (MachineError, OSError) as exc:
            hint = "a linked clone needs a snapshot that was taken while the machine was off, and room on the disk"
            raise MachineError(f"{exc}\n({hint})", stage="machine.create") from exc
        await self._hypervisor.take_snapshot(self.vm, self._snapshot)

    async def remove(self) -> None:
        if str(self.label) in await self._hypervisor.labels():
            await self._hypervisor.stop(self.vm)
            await self._hypervisor.delete(str(self.label))


class Original:
    """The image itself. A claim on it keeps two pools of this host from having it at once."""

    def __init__(self, hypervisor: Hypervisor, claim: Claim, label: Label, *, vm: str, snapshot: str) -> None:
        self.vm = vm
        self.label = label
        self._hypervisor = hypervisor
        self._claim = claim
        self._snapshot = snapshot

    @property
    def host(self) -> str:
        return str(self._claim.facts.get("host", ""))

    def write_host(self, host: str) -> None:
        self._claim.write({"machine_id": self.label.machine_id, "owner": self.label.owner, "host": host})

    async def claim(self) -> None:
        if not self._claim.take():
            whose = f"machine {self._claim.facts.get('machine_id')} of {self._claim.facts.get('owner')}"
            raise MachineError(f"{self.vm} is in use by {whose}, and it is not cloned", stage="machine.create")
        self.write_host("")

    async def make(self) -> None:
        await self._hypervisor.revert(self.vm, self._snapshot)

    async def remove(self) -> None:
        if self._claim.is_held:
            await self._hypervisor.stop(self.vm)
            self._claim.let_go(forget=True)


def claim_of(folder: Path, source: str) -> Claim:
    return Claim(folder / f"{PREFIX}-{source}-{os.geteuid()}.claim")
