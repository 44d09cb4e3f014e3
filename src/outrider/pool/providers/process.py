"""Machines that are sandboxes on this host: no screen, no network, and a reset that takes a tenth of a second.

A sandbox does not depend on the process that made it. It is found again by its folder, which tells its owner, and by
the socket in it: the kernel says which process listens there.
"""

import asyncio
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from outrider.core.errors import InvalidInput, MachineError
from outrider.core.memory import check_room
from outrider.core.settings import settings_of
from outrider.core.tasks import uninterrupted
from outrider.pool.provider import Ability, Address
from outrider.pool.sandbox import walls
from outrider.pool.sandbox.channel import SandboxComputer
from outrider.pool.sandbox.resident import HOME
from outrider.pool.sandbox.walls import Bounds, Sandbox
from outrider.pool.spec import MachineSpec, refuse

PROBE_SECONDS = 5.0
MACHINE_BYTES = 32 * 2**20
"""What an idle sandbox takes of memory, at the most."""

MAX_SOCKET_PATH = 107
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_MARKED = (HOME, "/tmp")  # noqa: S108 inside


class ProcessMachine:
    """One sandbox, and the next one in its place after each reset."""

    def __init__(self, machine_id: str, folder: Path, bounds: Bounds, sandbox: Sandbox) -> None:
        self.computer = SandboxComputer(folder / "socket", machine_id)
        self._machine_id = machine_id
        self._folder = folder
        self._bounds = bounds
        self._sandbox = sandbox
        self._changing = asyncio.Lock()
        self._is_destroyed = False

    @property
    def address(self) -> Address:
        return _address(self._machine_id, self._folder, self._sandbox.first.pid)

    async def reset(self) -> None:
        async with self._changing:
            if self._is_destroyed:
                raise MachineError(f"machine {self._machine_id} is destroyed", stage="machine.reset")
            await uninterrupted(self._sandbox.end())
            self._sandbox = await walls.build(self._folder, self._bounds)

    async def probe(self) -> None:
        answer = await self.computer.execute(["true"], timeout=PROBE_SECONDS)
        if answer.returncode != 0:
            raise MachineError(f"machine {self._machine_id} runs no command: {answer}", stage="machine.probe")

    async def plant(self, marker: str) -> None:
        for place in _MARKED:
            await self.computer.write_file(f"{place}/{marker}", b"")

    async def has(self, marker: str) -> bool:
        for place in _MARKED:
            if await self.computer.read_file(f"{place}/{marker}") is not None:
                return True
        return False

    async def wait_until_dead(self) -> str:
        while True:
            sandbox = self._sandbox
            await sandbox.first.ended.wait()
            async with self._changing:
                if sandbox is self._sandbox:
                    return f"the first process ({sandbox.first.pid}) of machine {self._machine_id} has ended"

    async def destroy(self) -> None:
        async with self._changing:
            if not self._is_destroyed:
                await uninterrupted(self._destroy())

    async def _destroy(self) -> None:
        await self._sandbox.end()
        _remove(self._folder)
        self._is_destroyed = True


class ProcessProvider:
    """Sandboxes by bubblewrap. All that is kept of them lies in `folder`, which only this user may enter."""

    name = "process"
    abilities = frozenset({Ability.COMMANDS})

    def __init__(self, *, folder: Path | None = None, bounds: Bounds | None = None) -> None:
        self._folder = folder or Path(tempfile.gettempdir()) / f"outrider-sandboxes-{os.geteuid()}"
        self._bounds = bounds or Bounds()

    async def check(self, n_machines: int) -> None:
        if walls.bubblewrap() is None:
            raise InvalidInput(
                "process machines need bubblewrap; install the package `bubblewrap`, which brings `bwrap`"
            )
        check_room(n_machines, "process machines", MACHINE_BYTES)
        self._open_folder()

    async def create(self, machine_id: str, owner: str) -> ProcessMachine:
        folder = self._place(machine_id)
        self._open_folder()
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError as exc:
            raise MachineError(f"there is a machine {machine_id} already: {folder}", stage="machine.create") from exc
        try:
            walls.note(folder, owner=owner, machine_id=machine_id)
            sandbox = await walls.build(folder, self._bounds)
        except BaseException:
            _remove(folder)
            raise
        return ProcessMachine(machine_id, folder, self._bounds, sandbox)

    async def adopt(self, machine_id: str, address: Address) -> ProcessMachine | None:
        """As told; what is left of a machine that has died is removed."""
        folder = self._place(machine_id)
        if address.get("folder") != str(folder) or not folder.is_dir():
            return None
        pid = walls.resident_of(folder)
        if pid is None:  # a sandbox that was not finished when its maker died ends by itself
            _remove(folder)
            return None
        if pid != address.get("pid"):
            return None
        with suppress(ProcessLookupError):
            return ProcessMachine(machine_id, folder, self._bounds, Sandbox(walls.FirstProcess(pid)))
        return None

    async def owned(self, owner: str) -> tuple[Address, ...]:
        """As told. Machines that have died and left a folder are among them, until somebody tries to adopt them."""
        found = []
        for folder in sorted(self._folder.iterdir()) if self._folder.is_dir() else ():
            facts = walls.noted(folder)
            if facts.get("owner") == owner:
                found.append(_address(folder.name, folder, walls.resident_of(folder) or facts.get("pid")))
        return tuple(found)

    async def close(self) -> None:
        with suppress(OSError):
            self._folder.rmdir()

    def _place(self, machine_id: str) -> Path:
        folder = self._folder / machine_id
        if not _ID.fullmatch(machine_id):
            raise InvalidInput(f"machine id {machine_id!r}: use letters, digits, dots, dashes and underscores")
        if len(os.fsencode(folder / "socket")) > MAX_SOCKET_PATH:
            raise InvalidInput(f"{folder} is too long a path for a socket in it; choose a shorter folder")
        return folder

    def _open_folder(self) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = self._folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
            raise InvalidInput(f"{self._folder} must be a folder of this user alone; remove it or choose another")


def _address(machine_id: str, folder: Path, pid: object) -> Mapping[str, Any]:
    return {"machine_id": machine_id, "folder": str(folder), "pid": pid}


def _remove(folder: Path) -> None:
    with suppress(FileNotFoundError):
        shutil.rmtree(folder)


def provider_of(spec: MachineSpec) -> ProcessProvider:
    screen = "a sandbox has no screen"
    refuse(
        spec,
        image="a sandbox is made of what this host has installed",
        snapshot="a sandbox starts anew each time",
        width=screen,
        height=screen,
    )
    return ProcessProvider(bounds=settings_of(Bounds, spec.settings, "settings of process"))
