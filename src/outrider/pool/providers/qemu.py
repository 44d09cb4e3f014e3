"""Virtual machines by QEMU: clones of a snapshot that share its memory, brought back by a new clone or by `loadvm`.

Invariants:
- All that a guest writes is in its memory, so a new clone, or `loadvm`, leaves nothing of what was there.
- A machine's QEMU process names its owner, its id and its snapshot among its arguments: so it is found again.
- A machine's folder goes with it; the folder of a machine that died is removed by whoever adopts it.
"""

import asyncio
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from outrider.core.decoding import convert
from outrider.core.errors import InvalidInput, MachineError
from outrider.core.memory import available_bytes
from outrider.core.settings import settings_of
from outrider.pool.processes import Process, start_time
from outrider.pool.provider import Ability, Address, RunningMachine
from outrider.pool.qemu.hardware import Accelerator
from outrider.pool.qemu.image import HOW_TO_BUILD, Image
from outrider.pool.qemu.machine import QemuAddress, QemuMachine, living
from outrider.pool.qemu.settings import QemuOptions, QemuSettings, Reset
from outrider.pool.qemu.snapshots import Snapshots
from outrider.pool.qemu.template import CLEAN
from outrider.pool.qemu.vm import Vm, remove
from outrider.pool.spec import MachineSpec

__all__ = ["Accelerator", "QemuProvider", "QemuSettings", "Reset", "provider_of"]

SAME_AS_CLEAN = (None, "init_state")
"""Not named, or by the name that OSWorld's users give it: the state that an image has by itself."""

_MIB = 2**20


class QemuProvider:
    """Makes the snapshot when the first machine is asked for, unless it is in the cache."""

    def __init__(self, settings: QemuSettings) -> None:
        self._settings = settings
        self._snapshots = Snapshots(settings)
        self._folder = Path(settings.folder or f"{tempfile.gettempdir()}/outrider-qemu-{os.geteuid()}")
        self._owners: set[str] = set()

    @property
    def name(self) -> str:
        return "qemu"

    @property
    def abilities(self) -> frozenset[Ability]:
        """What the image can do. Raises `InvalidInput` if there is none."""
        described = Image.open(self._settings.image).description
        told = {Ability.TREE: described.tree, Ability.TERMINAL: described.terminal}
        return frozenset({Ability.SCREEN, Ability.COMMANDS, *(ability for ability, how in told.items() if how)})

    async def check(self, n_machines: int) -> None:
        free = available_bytes()
        await self._snapshots.check(n_machines, None if free is None else free // _MIB)

    async def create(self, machine_id: str, owner: str) -> RunningMachine:
        source = await self._snapshots.ready()
        self._owners.add(owner)
        folder = self._folder_of(owner) / machine_id
        try:
            folder.mkdir(parents=True, mode=0o700)
        except OSError as exc:
            raise MachineError(f"no folder can be made for machine {machine_id}: {exc}", stage="qemu.create") from exc
        machine = QemuMachine(machine_id, owner, folder, source, self._settings)
        try:
            await machine.start()
        except BaseException:
            await asyncio.shield(machine.destroy())
            raise
        return machine

    async def adopt(self, machine_id: str, address: Address) -> RunningMachine | None:
        """A machine of another snapshot, or one that does not answer, is ended; of a dead one the folder is removed."""
        found = convert(address, QemuAddress)
        if found.machine_id != machine_id:
            return None
        self._owners.add(found.owner)
        folder = Path(found.folder)
        source = await self._snapshots.ready()
        process = Process.find(found.pid, found.started)
        if process is not None and (found.template, found.reset) == (source.key, self._settings.reset):
            vm = await Vm.find(folder, process)
            if vm is not None:
                machine = QemuMachine(machine_id, found.owner, folder, source, self._settings)
                machine.take(vm)
                return machine
        elif process is not None:
            await process.kill()
        if folder.is_relative_to(self._folder) and start_time(found.pid) != found.started:
            remove(folder)
        return None

    async def owned(self, owner: str) -> tuple[Address, ...]:
        """Also those of which only the folder is left: their process is 0."""
        found = list(living(owner))
        known = {one.folder for one in found}
        folder = self._folder_of(owner)
        left = [path for path in (folder.iterdir() if folder.is_dir() else ()) if str(path) not in known]
        found += [QemuAddress(machine_id=path.name, owner=owner, folder=str(path)) for path in left]
        return tuple(msgspec.structs.asdict(one) for one in found)

    async def close(self) -> None:
        """Snapshots stay in the cache for the next time; folders that are empty go."""
        for folder in (*(self._folder_of(owner) for owner in self._owners), self._folder):
            with suppress(OSError):
                folder.rmdir()

    def _folder_of(self, owner: str) -> Path:
        return self._folder / quote(owner, safe="")


def provider_of(spec: MachineSpec) -> QemuProvider:
    if spec.headless is False:
        raise InvalidInput("provider qemu opens no window on this host: leave headless out, or let it be true")
    if spec.image is None:
        raise InvalidInput(f"provider qemu needs an image, a folder; build one: {HOW_TO_BUILD}")
    image = Image.open(Path(spec.image).expanduser().absolute())
    given: dict[str, Any] = msgspec.structs.asdict(settings_of(QemuOptions, spec.settings, "settings of qemu"))
    given |= {name: size for name, size in (("width", spec.width), ("height", spec.height)) if size is not None}
    snapshot = CLEAN if spec.snapshot in SAME_AS_CLEAN else spec.snapshot
    return QemuProvider(QemuSettings(image=image.folder, snapshot=snapshot, **given))
