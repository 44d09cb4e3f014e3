"""VMware Workstation, Fusion or Player: how `vmrun` is called, and what its answers mean."""

import ipaddress
import re
import sys
from contextlib import suppress
from pathlib import Path

from outrider.core.errors import InvalidInput, MachineError
from outrider.core.settings import settings_of
from outrider.pool.hypervisor.product import CommandLine, HypervisorSettings, folder_of, labels_in, remove_files
from outrider.pool.hypervisor.provider import HypervisorProvider
from outrider.pool.spec import MachineSpec

MIB = 2**20
_MEMORY = re.compile(r'^\s*memsize\s*=\s*"(\d+)"', re.MULTILINE | re.IGNORECASE)


class VmwareSettings(HypervisorSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`host_type` is what `vmrun -T` takes: ws, fusion or player."""

    host_type: str = "fusion" if sys.platform == "darwin" else "ws"


class _Vmrun(CommandLine):
    async def ask(self, *words: str, seconds: float | None = None) -> str:
        """As told; a failure is known by what it writes, for its exit status may be 0."""
        said = await super().ask(*words, seconds=seconds)
        if said.startswith("Error:"):
            raise MachineError(f"vmrun {' '.join(words)}: {said.strip()}", stage=f"machine.{words[0]}")
        return said


class Vmware:
    """A machine is known by the path of its .vmx file."""

    name = "vmware"
    to_install = "install VMware Workstation Pro or Fusion, which bring it along"

    def __init__(self, image: Path, settings: VmwareSettings) -> None:
        self.program = settings.program or "vmrun"
        self.folder = folder_of(settings, self.name)
        self._image = image
        self._seconds = settings.boot_seconds
        self._vmrun = _Vmrun(self.program, "-T", settings.host_type, seconds=settings.command_seconds)

    async def check_image(self) -> None:
        if not self._image.is_file():
            raise InvalidInput(f"there is no image {self._image}; give the path of a .vmx file")

    async def snapshots(self, vm: str) -> tuple[str, ...]:
        return tuple((await self._vmrun.ask("listSnapshots", vm)).splitlines()[1:])

    async def memory_bytes(self, vm: str) -> int | None:
        return _memory_of(Path(vm))

    async def labels(self) -> tuple[str, ...]:
        return tuple(sorted(labels_in(self.folder)))

    def clone_called(self, label: str) -> str:
        return str(self.folder / label / f"{label}.vmx")

    async def clone(self, snapshot: str, label: str) -> None:
        (self.folder / label).mkdir(mode=0o700, parents=True)
        place = self.clone_called(label)
        await self._vmrun.do("clone", str(self._image), place, "linked", f"-snapshot={snapshot}", f"-cloneName={label}")

    async def take_snapshot(self, vm: str, name: str) -> None:
        await self._vmrun.do("snapshot", vm, name)

    async def revert(self, vm: str, snapshot: str) -> None:
        await self._vmrun.do("revertToSnapshot", vm, snapshot)

    async def start(self, vm: str, *, headless: bool) -> None:
        await self._vmrun.do("start", vm, "nogui" if headless else "gui")

    async def is_running(self, vm: str) -> bool:
        return vm in (await self._vmrun.ask("list")).splitlines()[1:]

    async def host_of(self, vm: str) -> str | None:
        """As told; it waits until the guest's tools tell."""
        with suppress(MachineError, ValueError):  # while the tools start, it may fail, or answer `unknown`
            said = await self._vmrun.ask("getGuestIPAddress", vm, "-wait", seconds=self._seconds)
            return str(ipaddress.ip_address(said.strip()))
        return None

    async def stop(self, vm: str) -> None:
        if await self.is_running(vm):
            await self._vmrun.do("stop", vm, "hard")

    async def delete(self, label: str) -> None:
        """As told; of a clone that vmrun does not know, since it was not finished, the files alone."""
        vm = self.clone_called(label)
        with suppress(MachineError):
            await self._vmrun.do("deleteVM", vm)
        if await self.is_running(vm):
            raise MachineError(f"{vm} is still running", stage="machine.destroy")
        remove_files(self.folder / label)


def _memory_of(vm: Path) -> int | None:
    try:
        found = _MEMORY.search(vm.read_text(errors="replace"))
    except OSError as exc:
        raise MachineError(f"{vm} cannot be read: {exc}", stage="machine.check") from exc
    return int(found[1]) * MIB if found else None


def provider_of(spec: MachineSpec) -> HypervisorProvider:
    """The image is the path of a .vmx file."""
    if spec.image is None:
        raise InvalidInput("provider vmware needs an image: --path-to-vm with the path of a .vmx file")
    settings = settings_of(VmwareSettings, spec.settings, "settings of vmware")
    image = Path(spec.image).expanduser().resolve()
    product = Vmware(image, settings)
    return HypervisorProvider(product, str(image), spec, settings, product.folder)
