"""Machines of `vmware` by a stand-in of its command line, with real local machines for guests."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from contract_machines.kinds import PROVIDERS, Stage
from hypervisor_stand_ins.stage import PROGRAMS, guest_pid, product, vmware_image


@contextmanager
def vmware(folder: Path, host: Path) -> Iterator[Stage]:
    with product(folder, host) as place:
        image = str(vmware_image(place / "image"))
        settings = {"program": str(PROGRAMS / "vmrun"), "folder": str(folder / "clones"), "probe_seconds": 3.0}
        spec = f"MachineSpec(provider='vmware', image={image!r}, settings={settings!r})"
        yield Stage(f"{PROVIDERS}.vmware:provider_of({spec})", lambda machine: [guest_pid(machine.address["vm"])])
