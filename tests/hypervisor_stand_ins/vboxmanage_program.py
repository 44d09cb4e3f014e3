"""A stand-in for `VBoxManage`: the commands that Outrider uses, answered as the real one does; others are refused."""

import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from hypervisor_stand_ins.machines import Vm, fail, note, noted, state, stays, write_down

TIMED_OUT = "Time out or interruption while waiting for a notification."
PROPERTY = "/VirtualBox/GuestInfo/Net/0/V4/IP"


def refuse(reason: str, code: str = "VBOX_E_INVALID_OBJECT_STATE (0x80bb0007)") -> NoReturn:
    details = f"VBoxManage: error: Details: code {code}, component MachineWrap"
    fail(f"VBoxManage: error: {reason}\n{details}", 1, stream=sys.stderr)


def new_uuid() -> str:
    digits = os.urandom(16).hex()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def registry() -> dict[str, dict[str, Any]]:
    return {fact["name"]: fact for fact in noted(state() / "registered")}


def register(name: str, folder: Path, memory: int) -> None:
    fact = {"name": name, "folder": str(folder), "uuid": new_uuid(), "memory": memory}
    note(state() / "registered" / f"{fact['uuid']}.json", fact)


def fact_of(name: str) -> dict[str, Any]:
    for fact in registry().values():
        if name in {fact["name"], fact["uuid"], f"{fact['folder']}/{fact['name']}.vbox"}:
            return fact
    refuse(f"Could not find a registered machine named '{name}'", "VBOX_E_OBJECT_NOT_FOUND (0x80bb0001)")


def vm_called(name: str) -> Vm:
    fact = fact_of(name)
    return Vm(Path(fact["folder"]), fact["uuid"])


def unlocked(name: str, *, off: bool = True) -> Vm:
    """A machine that has just gone off is locked, once."""
    vm = vm_called(name)
    lock = vm.folder / "locked"
    if lock.exists() or (off and vm.pid):
        lock.unlink(missing_ok=True)
        refuse(f"The machine '{name}' is already locked for a session (or being unlocked)")
    return vm


def list_machines(what: str) -> None:
    assert what == "vms"
    for fact in registry().values():
        print(f'"{fact["name"]}" {{{fact["uuid"]}}}')


def show(name: str, how: str) -> None:
    assert how == "--machinereadable"
    fact = fact_of(name)
    print(f'name="{fact["name"]}"\nUUID="{fact["uuid"]}"\nmemory={fact["memory"]}')
    print(f'VMState="{"running" if vm_called(name).pid else "poweroff"}"')


def snapshot(name: str, verb: str, what: str) -> None:
    if verb == "list":
        list_snapshots(vm_called(name))
    elif verb == "take":
        unlocked(name).take_snapshot(what)
    elif what not in vm_called(name).snapshots:
        refuse(f"Could not find a snapshot named '{what}'", "VBOX_E_OBJECT_NOT_FOUND (0x80bb0001)")
    else:
        assert verb == "restore"
        unlocked(name).revert(what)


def list_snapshots(vm: Vm) -> None:
    if not vm.snapshots:
        fail("This machine does not have any snapshots", 1)
    for number, found in enumerate(vm.snapshots):
        print(f'SnapshotName{"-1" * number}="{found}"\nSnapshotUUID{"-1" * number}="{new_uuid()}"')


def clone(name: str, *words: str) -> None:
    options = dict(zip(words[:-1:2], words[1:-1:2], strict=True))
    assert words[-1] == "--register"
    assert options["--options"] == "link"
    image = vm_called(name)
    if options["--snapshot"] not in image.snapshots:
        refuse(f"Could not find a snapshot named '{options['--snapshot']}'", "VBOX_E_OBJECT_NOT_FOUND (0x80bb0001)")
    folder = Path(options["--basefolder"]) / options["--name"]
    if options["--name"] in registry() or folder.exists():
        refuse(f"Machine settings file '{folder}' already exists", "VBOX_E_FILE_ERROR (0x80bb0004)")
    image.clone(folder, options["--snapshot"], "")
    register(options["--name"], folder, fact_of(name)["memory"])


def start(name: str, option: str, kind: str) -> None:
    assert option == "--type"
    assert kind in {"headless", "gui"}
    unlocked(name).start()
    print(f'Waiting for VM "{name}" to power on...\nVM "{name}" has been successfully started.')


def control(name: str, verb: str) -> None:
    assert verb == "poweroff"
    vm = vm_called(name)
    if not vm.pid:
        fail(f"VBoxManage: error: Machine '{name}' is not currently running.", 1, stream=sys.stderr)
    if stays():
        refuse("it will not stop", "VBOX_E_IPRT_ERROR (0x80bb0005)")
    vm.stop()
    (vm.folder / "locked").touch()


def guest_property(verb: str, name: str, what: str, *words: str) -> None:
    vm = vm_called(name)
    if verb == "get":
        address = vm.address if what == PROPERTY else None
        print(f"Value: {address}" if address else "No value set!")
        return
    assert verb == "wait"
    assert words[0] == "--timeout"
    end = time.monotonic() + int(words[1]) / 1000
    address = vm.wait_for_address(int(words[1]) / 1000)
    while address is None and time.monotonic() < end:  # of a machine that is off, nothing is heard either
        time.sleep(0.05)
    print(f"Name: {what}, value: {address}, flags: TRANSIENT, TRANSRESET" if address else TIMED_OUT)


def unregister(name: str, how: str) -> None:
    assert how == "--delete"
    vm = unlocked(name)
    shutil.rmtree(vm.folder)
    (state() / "registered" / f"{fact_of(name)['uuid']}.json").unlink()


COMMANDS: dict[str, Callable[..., None]] = {
    "clonevm": clone,
    "controlvm": control,
    "guestproperty": guest_property,
    "list": list_machines,
    "showvminfo": show,
    "snapshot": snapshot,
    "startvm": start,
    "unregistervm": unregister,
}


def main() -> None:
    words = sys.argv[1:]
    write_down(words)
    if not words or words[0] not in COMMANDS:
        fail(f"VBoxManage: error: Invalid command '{words[0] if words else ''}'.", 2, stream=sys.stderr)
    COMMANDS[words[0]](*words[1:])
