"""VirtualBox: how `VBoxManage` is called, and what its answers mean."""

import asyncio
import re
from pathlib import Path

from outrider.core.bounds import Count
from outrider.core.errors import InvalidInput, MachineError
from outrider.core.settings import settings_of
from outrider.pool.hypervisor.product import CommandLine, HypervisorSettings, folder_of, labels_in, remove_files
from outrider.pool.hypervisor.provider import HypervisorProvider
from outrider.pool.spec import MachineSpec

MIB = 2**20
WAIT_SECONDS = 2.0
"""So long it is waited for news of the guest before its address is looked up again."""

LOCKED_AGAIN_SECONDS = 0.25
_OFF = frozenset({"poweroff", "saved", "aborted", "aborted-saved"})
_LOCKED = re.compile(r"locked|being unlocked|VBOX_E_INVALID_OBJECT_STATE")
_NO_SNAPSHOTS = "does not have any snapshots"
_UNKNOWN = "Could not find a registered machine"
_NAMED = re.compile(r'^"(?P<name>.*)" \{[0-9a-f-]+\}$', re.MULTILINE)
_SNAPSHOT = re.compile(r'^SnapshotName(?:-\d+)*="(?P<name>.*)"$', re.MULTILINE)


class VirtualboxSettings(HypervisorSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`network` is which of the guest's network cards this host reaches it by, counted from 0."""

    network: Count = 0


class _VBoxManage(CommandLine):
    async def do(self, *words: str) -> str:
        """As told; a machine that has just gone off stays locked for a moment."""
        end = asyncio.get_running_loop().time() + self._seconds
        while True:
            try:
                return await super().do(*words)
            except MachineError as exc:
                if not _LOCKED.search(str(exc)) or asyncio.get_running_loop().time() > end:
                    raise
            await asyncio.sleep(LOCKED_AGAIN_SECONDS)


class Virtualbox:
    """A machine is known by its name; the image also by its uuid or the path of its .vbox file."""

    name = "virtualbox"
    to_install = "install VirtualBox, which brings it along"

    def __init__(self, image: str, settings: VirtualboxSettings) -> None:
        self.program = settings.program or "VBoxManage"
        self.folder = folder_of(settings, self.name)
        self._image = image
        self._property = f"/VirtualBox/GuestInfo/Net/{settings.network}/V4/IP"
        self._manage = _VBoxManage(self.program, seconds=settings.command_seconds)

    async def check_image(self) -> None:
        try:
            await self._facts(self._image)
        except MachineError as exc:
            if _UNKNOWN not in str(exc):
                raise
            there = ", ".join(await self._names()) or "none"
            register = f"; register it with: VBoxManage registervm {self._image}"
            hint = register if Path(self._image).suffix == ".vbox" else ""
            raise InvalidInput(f"VirtualBox has no machine {self._image!r}, it has {there}{hint}") from exc

    async def snapshots(self, vm: str) -> tuple[str, ...]:
        try:
            said = await self._manage.ask("snapshot", vm, "list", "--machinereadable")
        except MachineError as exc:
            if _NO_SNAPSHOTS not in str(exc):
                raise
            return ()
        return tuple(found["name"] for found in _SNAPSHOT.finditer(said))

    async def memory_bytes(self, vm: str) -> int | None:
        memory = (await self._facts(vm)).get("memory", "")
        return int(memory) * MIB if memory.isdecimal() else None

    async def labels(self) -> tuple[str, ...]:
        return tuple(sorted({*await self._names(), *labels_in(self.folder)}))

    def clone_called(self, label: str) -> str:
        return label

    async def clone(self, snapshot: str, label: str) -> None:
        place = ("--name", label, "--basefolder", str(self.folder), "--register")
        await self._manage.do("clonevm", self._image, "--snapshot", snapshot, "--options", "link", *place)

    async def take_snapshot(self, vm: str, name: str) -> None:
        await self._manage.do("snapshot", vm, "take", name)

    async def revert(self, vm: str, snapshot: str) -> None:
        await self.stop(vm)
        await self._manage.do("snapshot", vm, "restore", snapshot)

    async def start(self, vm: str, *, headless: bool) -> None:
        await self._manage.do("startvm", vm, "--type", "headless" if headless else "gui")

    async def is_running(self, vm: str) -> bool:
        """As told; what it does not know does not run."""
        try:
            return (await self._facts(vm)).get("VMState", "") not in _OFF
        except MachineError as exc:
            if _UNKNOWN not in str(exc):
                raise
            return False

    async def host_of(self, vm: str) -> str | None:
        """As told; if it is not known, it waits a moment for news."""
        if (host := await self._host(vm)) is None:
            milliseconds = str(round(WAIT_SECONDS * 1000))
            await self._manage.ask("guestproperty", "wait", vm, self._property, "--timeout", milliseconds)
            host = await self._host(vm)
        return host

    async def stop(self, vm: str) -> None:
        if await self.is_running(vm):
            await self._manage.do("controlvm", vm, "poweroff")

    async def delete(self, label: str) -> None:
        if label in await self._names():
            await self._manage.do("unregistervm", label, "--delete")
        remove_files(self.folder / label)

    async def _host(self, vm: str) -> str | None:
        said = await self._manage.ask("guestproperty", "get", vm, self._property)
        return said.partition(":")[2].strip() or None if said.startswith("Value:") else None

    async def _names(self) -> list[str]:
        return [found["name"] for found in _NAMED.finditer(await self._manage.ask("list", "vms"))]

    async def _facts(self, vm: str) -> dict[str, str]:
        said = await self._manage.ask("showvminfo", vm, "--machinereadable")
        pairs = (line.partition("=") for line in said.splitlines())
        return {name.strip('"'): value.strip('"') for name, _, value in pairs}


def provider_of(spec: MachineSpec) -> HypervisorProvider:
    """The image is a machine that VirtualBox has: its name, its uuid, or the path of its .vbox file."""
    if spec.image is None:
        raise InvalidInput("provider virtualbox needs an image: --path-to-vm with the name of a machine")
    if Path(spec.image).suffix in {".ova", ".ovf"}:
        raise InvalidInput(
            f"{spec.image} must be imported once, and named then: VBoxManage import {spec.image} --vsys 0 "
            "--vmname osworld; VBoxManage snapshot osworld take init_state"
        )
    settings = settings_of(VirtualboxSettings, spec.settings, "settings of virtualbox")
    product = Virtualbox(spec.image, settings)
    return HypervisorProvider(product, spec.image, spec, settings, product.folder)
