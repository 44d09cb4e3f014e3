"""Machines that are desktops on this host: an X server and a window manager behind walls, and a reset by starting anew.

A desktop ends with the process that made it, so none is ever adopted. What might be left of one is found by the label
on its command line.
"""

import asyncio
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from outrider.core.bounds import SomeBytes, check_bounds
from outrider.core.errors import InvalidInput, MachineError
from outrider.core.memory import check_room
from outrider.core.settings import settings_of
from outrider.core.tasks import uninterrupted
from outrider.pool.desktop import session as sessions
from outrider.pool.desktop.computer import DesktopComputer
from outrider.pool.desktop.session import Line, Session
from outrider.pool.desktop.walls import LABEL, Shape
from outrider.pool.provider import Ability, Address
from outrider.pool.spec import MachineSpec, refuse

MIB = 2**20
MACHINE_BYTES = 48 * MIB
"""What an idle desktop of the usual size takes of memory; the picture of a larger one comes on top."""

PROBE_SECONDS = 5.0
GONE_SECONDS = 10.0
PACKAGES = {"bwrap": "bubblewrap", "Xvfb": "xvfb", "xkbcomp": "x11-xkb-utils", "openbox": "openbox", "xterm": "xterm"}
SIZES = range(320, 7681)
TRIAL = "trial"
"""The owner, and the machine, that are started to see whether desktops can be."""

_PNG = b"\x89PNG\r\n\x1a\n"
_MARK_FOLDERS = ("/home/user", "/tmp")  # noqa: S108 inside


class DesktopMachine:
    """One desktop, and the next one in its place after each reset."""

    def __init__(self, machine_id: str, label: str, shape: Shape, session: Session) -> None:
        self.computer = DesktopComputer(self._line, (shape.width, shape.height))
        self._machine_id = machine_id
        self._label = label
        self._shape = shape
        self._session = session
        self._changing = asyncio.Lock()
        self._is_destroyed = False

    @property
    def address(self) -> Address:
        return _address(self._machine_id, self._session.pid)

    def _line(self) -> Line:
        return self._session.line

    async def reset(self) -> None:
        """Everything in it is ended and forgotten; another desktop takes its place."""
        async with self._changing:
            if self._is_destroyed:
                raise MachineError(f"desktop {self._machine_id} is destroyed", stage="machine.reset")
            await uninterrupted(self._session.end())
            self._session = await sessions.start(self._shape, self._machine_id, self._label)

    async def probe(self) -> None:
        """Raise `MachineError` unless it has a picture, and its mouse can be found."""
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                picture = await self.computer.screenshot()
                await self.computer.pointer()
        except TimeoutError as exc:
            reason = f"desktop {self._machine_id} did not answer within {PROBE_SECONDS:g} s"
            raise MachineError(reason, stage="machine.probe") from exc
        size = tuple(int.from_bytes(picture[at : at + 4], "big") for at in (16, 20))
        if not picture.startswith(_PNG) or size != self.computer.screen_size:
            raise MachineError(f"the picture of desktop {self._machine_id} is none", stage="machine.probe")

    async def plant(self, marker: str) -> None:
        """Where work would be left: in files, and on the X server."""
        for folder in _MARK_FOLDERS:
            await self.computer.write_file(f"{folder}/{marker}", b"")
        await self._line().call("mark", name=marker)

    async def has(self, marker: str) -> bool:
        for folder in _MARK_FOLDERS:
            if await self.computer.read_file(f"{folder}/{marker}") is not None:
                return True
        return bool((await self._line().call("marked", name=marker)).head.get("marked"))

    async def wait_until_dead(self) -> str:
        while True:
            session = self._session
            reason = await session.wait_until_dead()
            async with self._changing:
                if session is self._session:
                    return reason

    async def destroy(self) -> None:
        async with self._changing:
            if not self._is_destroyed:
                await uninterrupted(self._session.end())
                self._is_destroyed = True


class DesktopProvider:
    """Desktops of one size. `shown` are folders of the host that programs inside may read."""

    name = "desktop"
    abilities = frozenset({Ability.SCREEN, Ability.COMMANDS, Ability.TREE, Ability.TERMINAL})

    def __init__(
        self, *, width: int = 1920, height: int = 1080, disk_bytes: int = 256 * MIB, shown: tuple[str, ...] = ()
    ) -> None:
        for name, value in (("width", width), ("height", height)):
            if value not in SIZES:
                raise InvalidInput(f"a desktop's {name} is between {SIZES[0]} and {SIZES[-1]} pixels, not {value}")
        for folder in shown:
            if not Path(folder).is_absolute() or not Path(folder).exists():
                raise InvalidInput(
                    f"{folder!r} cannot be shown in desktops: there is no such folder; give its whole path"
                )
        self._shape = Shape(width=width, height=height, disk_bytes=disk_bytes, shown=shown)

    async def check(self, n_machines: int) -> None:
        """As told; a desktop is started, and ended, to see that it can be."""
        missing = {program: package for program, package in PACKAGES.items() if shutil.which(program) is None}
        if missing:
            raise InvalidInput(
                f"desktops need {', '.join(missing)}, which this host does not have; "
                f"install the Debian packages with: apt-get install {' '.join(missing.values())}"
            )
        each = MACHINE_BYTES + max(0, self._shape.width * self._shape.height * 12 - 12 * MIB)
        check_room(n_machines, "desktops", each)
        for pid, label in _left():
            if label == (TRIAL, TRIAL) and _is_orphan(pid):
                await uninterrupted(_end(pid, label))
        try:
            session = await sessions.start(self._shape, TRIAL, _label(TRIAL, TRIAL))
        except MachineError as exc:
            raise InvalidInput(f"no desktop can be started here: {exc}") from exc
        await uninterrupted(session.end())

    async def create(self, machine_id: str, owner: str) -> DesktopMachine:
        label = _label(machine_id, owner)
        return DesktopMachine(machine_id, label, self._shape, await sessions.start(self._shape, machine_id, label))

    async def adopt(self, machine_id: str, address: Address) -> None:
        """No desktop outlives its maker: what is left of one is ended."""
        for pid, (owner, found) in _left():
            if found == machine_id and pid == address.get("pid"):
                await uninterrupted(_end(pid, (owner, found)))

    async def owned(self, owner: str) -> tuple[Address, ...]:
        return tuple(_address(machine_id, pid) for pid, (whose, machine_id) in _left() if whose == owner)

    async def close(self) -> None:
        """Nothing is shared."""


def _address(machine_id: str, pid: int) -> Address:
    return {"machine_id": machine_id, "pid": pid}


def _label(machine_id: str, owner: str) -> str:
    if "\n" in owner or "\0" in owner or not machine_id.isprintable():
        raise InvalidInput(f"a desktop cannot be labelled with owner {owner!r} and machine {machine_id!r}")
    return f"{owner}\n{machine_id}"


def _left() -> Iterator[tuple[int, tuple[str, str]]]:
    """First processes of desktops on this host, with owner and machine."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and (label := _label_of(int(folder.name))):
            yield int(folder.name), label


def _label_of(pid: int) -> tuple[str, str] | None:
    """Owner and machine, if this is the first process of a desktop."""
    with suppress(OSError, ValueError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if LABEL.encode() in words and _is_first(pid):
            owner, machine_id = words[words.index(LABEL.encode()) + 1].decode().split("\n")
            return owner, machine_id
    return None


def _is_first(pid: int) -> bool:
    """Whether it is the first process of a namespace below ours."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        match line.split():
            case ["NSpid:", _, *_, "1"]:
                return True
    return False


def _is_orphan(pid: int) -> bool:
    """Whether the bubblewrap that started it is gone."""
    with suppress(OSError):
        parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
        return LABEL.encode() not in Path(f"/proc/{parent}/cmdline").read_bytes()
    return True


async def _end(pid: int, label: tuple[str, str]) -> None:
    """Kill it if it is still the same, and wait until all below it has ended."""
    with suppress(ProcessLookupError):
        descriptor = os.pidfd_open(pid)
        if _label_of(pid) != label:
            os.close(descriptor)
            return
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_reader(descriptor, ended.set)
        try:
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            async with asyncio.timeout(GONE_SECONDS):
                await ended.wait()
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)


class DesktopSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`disk_bytes` bounds each of home, `/tmp`, `/run` and shared memory; `shown` are folders of the host to read."""

    disk_bytes: SomeBytes = 256 * MIB
    shown: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_bounds(self)


def provider_of(spec: MachineSpec) -> DesktopProvider:
    refuse(spec, image="a desktop is made of what this host has installed", snapshot="a desktop starts anew each time")
    settings = settings_of(DesktopSettings, spec.settings, "settings of desktop")
    size = {name: value for name, value in (("width", spec.width), ("height", spec.height)) if value is not None}
    return DesktopProvider(**size, disk_bytes=settings.disk_bytes, shown=settings.shown)
