"""A stand-in for `vmrun`: the commands that Outrider uses, answered as the real one does; others are refused."""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from hypervisor_stand_ins.machines import Vm, fail, running, stays, write_down

FAILED = 255
FOREVER = 10_000.0


def refuse(reason: str) -> NoReturn:
    fail(f"Error: {reason}", FAILED)


def vm_at(path: str) -> Vm:
    if not Path(path).is_file():
        refuse(f"Cannot open VM: {path}, The virtual machine cannot be found")
    return Vm(Path(path).parent, path)


def with_snapshot(path: str, name: str) -> Vm:
    vm = vm_at(path)
    if name not in vm.snapshots:
        refuse("The snapshot does not exist")
    return vm


def off(path: str) -> Vm:
    vm = vm_at(path)
    if vm.pid:
        refuse("The virtual machine should not be powered on. It is already running.")
    return vm


def list_running() -> None:
    found = running()
    print("\n".join((f"Total running VMs: {len(found)}", *found)))


def list_snapshots(path: str) -> None:
    found = vm_at(path).snapshots
    print("\n".join((f"Total snapshots: {len(found)}", *found)))


def clone(path: str, place: str, kind: str, snapshot: str, name: str) -> None:
    if kind not in {"full", "linked"} or not snapshot.startswith("-snapshot=") or not name.startswith("-cloneName="):
        refuse("Invalid argument")
    chosen = snapshot.partition("=")[2]
    image = with_snapshot(path, chosen)
    if Path(place).exists():
        refuse("The file already exists")
    image.clone(Path(place).parent, chosen, place)
    shutil.copy(path, place)


def take_snapshot(path: str, name: str) -> None:
    if name in vm_at(path).snapshots:
        refuse("The snapshot name is already in use")
    vm_at(path).take_snapshot(name)


def start(path: str, how: str) -> None:
    if how not in {"gui", "nogui"}:
        refuse("Invalid argument")
    off(path).start()


def stop(path: str, how: str) -> None:
    vm = vm_at(path)
    if not vm.pid:
        refuse(f"The virtual machine is not powered on: {path}")
    if stays():
        refuse("it will not stop")
    assert how == "hard"
    vm.stop()


def guest_address(path: str, how: str = "") -> None:
    vm = vm_at(path)
    if not vm.pid:
        refuse(f"The virtual machine is not powered on: {path}")
    address = vm.wait_for_address(FOREVER if how == "-wait" else 0)
    print(address) if address else refuse("Unable to get the IP address")


def delete(path: str) -> None:
    shutil.rmtree(off(path).folder)


COMMANDS: dict[str, Callable[..., None]] = {
    "clone": clone,
    "deleteVM": delete,
    "getGuestIPAddress": guest_address,
    "list": list_running,
    "listSnapshots": list_snapshots,
    "revertToSnapshot": lambda path, name: with_snapshot(path, name).revert(name),
    "snapshot": take_snapshot,
    "start": start,
    "stop": stop,
}


def main() -> None:
    words = sys.argv[1:]
    write_down(words)
    if words[:1] == ["-T"] and words[1] in {"ws", "fusion", "player"}:
        words = words[2:]
    if not words or words[0] not in COMMANDS:
        fail(f"Unrecognized command: {words[0] if words else ''}", FAILED)
    COMMANDS[words[0]](*words[1:])
