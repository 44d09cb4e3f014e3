"""Machines that are browsers: a Chromium whose contexts are its holder's, and a reset that disposes of them.

A browser ends with the process that made it, so none is ever adopted. What is left of one is found by its folder, which
tells its owner, and by the name of that folder on the command line of its processes.
"""

import asyncio
import json
import os
import re
import stat
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec import Struct

from outrider.core.bounds import PositiveCount, check_bounds
from outrider.core.errors import InvalidInput, MachineError
from outrider.core.files import write_private
from outrider.core.memory import check_room
from outrider.core.settings import settings_of
from outrider.core.tasks import uninterrupted
from outrider.pool.browser import process
from outrider.pool.browser.computer import BrowserComputer, Hands, Pages
from outrider.pool.browser.executable import VARIABLE, find_chromium, require_display
from outrider.pool.browser.process import Shape
from outrider.pool.browser.relay import Relay
from outrider.pool.provider import Ability, Address
from outrider.pool.spec import MachineSpec, refuse

MIB = 2**20
MACHINE_BYTES = 220 * MIB
"""What an idle browser takes of memory, without what all Chromiums of a host share."""

PROBE_SECONDS = 5.0
SIZES = range(320, 7681)
MAX_FOLDER = 60
"""How long the path of a browser's folder may be: Chromium has a socket in it, far below."""

_NOTE = "machine.json"
_HOME = "h"
_MARKED_SITE = "outrider.invalid"
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class BrowserSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The process of a browser is replaced after `max_uses_per_process` resets, and whenever it cannot be cleaned."""

    max_uses_per_process: PositiveCount = 200

    def __post_init__(self) -> None:
        check_bounds(self)


class BrowserMachine:
    """One Chromium at a time. Holders reach it through the relay, by an address that ends with their lease."""

    def __init__(
        self, machine_id: str, folder: Path, shape: Shape, settings: BrowserSettings, *, owner: str, relay: Relay
    ) -> None:
        self.computer = BrowserComputer(self._current, shape.size)
        self._machine_id = machine_id
        self._owner = owner
        self._folder = folder
        self._shape = shape
        self._settings = settings
        self._relay = relay
        self._pages: Pages | None = None
        self._n_uses = 0
        self._is_proved = False
        """Whether its last reset has opened a page and run a script in it."""
        self._changing = asyncio.Lock()
        self._is_destroyed = False

    @property
    def address(self) -> Address:
        chromium = self._current().chromium
        return {
            "machine_id": self._machine_id,
            "pid": chromium.pid,
            "started": chromium.started,
            "devtools": self._relay.address,
        }

    def _current(self) -> Pages:
        if self._pages is None:
            raise MachineError(f"browser {self._machine_id} is not there", stage="machine.call")
        return self._pages

    async def begin(self) -> None:
        """Start its first process, and let holders in."""
        async with self._changing:
            await self._start()
            self._let_in()

    async def reset(self) -> str | None:
        """Clean the process there is, or replace it, and return why."""
        async with self._changing:
            if self._is_destroyed:
                raise MachineError(f"browser {self._machine_id} is destroyed", stage="machine.reset")
            self._relay.cut()
            self.computer.hands = Hands()
            self._n_uses += 1
            reason = await self._cleaned()
            self._is_proved = reason is None
            if reason is not None:
                await self._start()
            self._let_in()
            return None if reason is None else f"its process was replaced: {reason}"

    async def _cleaned(self) -> str | None:
        """Clean the process there is: why that could not be done, or None."""
        if self._n_uses >= self._settings.max_uses_per_process:
            return f"it was used {self._n_uses} times"
        return "there was none" if self._pages is None else await self._pages.chromium.clean()

    async def probe(self) -> None:
        """Raise `MachineError` unless it answers, opens a page, and runs a script in it, as a reset has done."""
        chromium, is_proved, self._is_proved = self._current().chromium, self._is_proved, False
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                if is_proved:
                    await chromium.line.call("Browser.getVersion")
                    return
                answer = await chromium.evaluate("6 * 7")
        except TimeoutError as exc:
            reason = f"browser {self._machine_id} did not answer within {PROBE_SECONDS:g} s"
            raise MachineError(reason, stage="machine.probe") from exc
        if answer != 6 * 7:
            raise MachineError(f"browser {self._machine_id} cannot count: {answer!r}", stage="machine.probe")

    async def plant(self, marker: str) -> None:
        """As a cookie in a context of its own, and in the one that no holder is to use."""
        chromium = self._current().chromium
        context = await chromium.new_context()
        cookie = {"name": marker, "value": "1", "domain": _MARKED_SITE, "path": "/"}
        await chromium.line.call("Storage.setCookies", cookies=[cookie], browserContextId=context)
        await chromium.line.call("Storage.setCookies", cookies=[cookie])

    async def has(self, marker: str) -> bool:
        return any(cookie["name"] == marker for cookie in await self._current().chromium.cookies())

    async def wait_until_dead(self) -> str:
        while True:
            chromium = self._current().chromium
            await chromium.ended.wait()
            async with self._changing:
                if chromium is self._current().chromium:
                    return f"process {chromium.pid} of browser {self._machine_id} has ended: {chromium.last_words}"

    async def destroy(self) -> None:
        async with self._changing:
            if not self._is_destroyed:
                await uninterrupted(self._destroy())

    async def _destroy(self) -> None:
        await self._relay.close()
        if self._pages is not None:
            await self._pages.chromium.end()
        await process.remove(self._folder)
        self._is_destroyed = True

    async def _start(self) -> None:
        """A new process, in place of the one there is."""
        if self._pages is not None:
            await uninterrupted(self._pages.chromium.end())
        chromium = await process.start(self._shape, self._folder / _HOME, self._machine_id)
        self._pages = Pages(chromium, self._shape.size)
        self._n_uses = 0
        chromium.on_end = self._relay.cut
        if chromium.ended.is_set():
            raise MachineError(f"browser {self._machine_id} ended at once", stage="machine.create")
        await self._pages.watch()

    def _let_in(self) -> None:
        self._relay.lead_to(self._current().chromium.line)
        _note(self._folder, {"owner": self._owner, "address": dict(self.address)})


class BrowserProvider:
    """Browsers with a screen of one size. All that is kept of them lies in `folder`, which only this user may enter."""

    name = "browser"
    abilities = frozenset({Ability.SCREEN, Ability.TREE, Ability.DEVTOOLS})

    def __init__(
        self,
        *,
        executable: str | None = None,
        width: int = 1280,
        height: int = 800,
        headless: bool = True,
        settings: BrowserSettings | None = None,
        folder: Path | None = None,
    ) -> None:
        for name, value in (("width", width), ("height", height)):
            if value not in SIZES:
                raise InvalidInput(f"a browser's {name} is between {SIZES[0]} and {SIZES[-1]} pixels, not {value}")
        self._executable = executable
        self._size = (width, height)
        self._headless = headless
        self._settings = settings or BrowserSettings()
        self._folder = folder or Path(tempfile.gettempdir()) / f"outrider-browsers-{os.geteuid()}"

    async def check(self, n_machines: int) -> None:
        self._shape()
        if not self._headless:
            require_display()
        check_room(n_machines, "browsers", MACHINE_BYTES)
        self._open_folder()

    async def create(self, machine_id: str, owner: str) -> BrowserMachine:
        folder, shape = self._place(machine_id), self._shape()
        self._open_folder()
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError as exc:
            raise MachineError(f"there is a browser {machine_id} already: {folder}", stage="machine.create") from exc
        machine = BrowserMachine(machine_id, folder, shape, self._settings, owner=owner, relay=(relay := Relay()))
        try:
            _note(folder, {"owner": owner, "address": {"machine_id": machine_id, "pid": None}})
            await relay.open()
            await machine.begin()
        except BaseException:
            await machine.destroy()
            raise
        return machine

    async def adopt(self, machine_id: str, address: Address) -> None:
        """No browser outlives its maker: what is left of one is ended."""
        folder = self._place(machine_id)
        if _noted(folder).get("address", {}).get("pid", ...) == address.get("pid"):
            await uninterrupted(process.end_left(folder / _HOME))
            await process.remove(folder)

    async def owned(self, owner: str) -> tuple[Address, ...]:
        folders = sorted(self._folder.iterdir()) if self._folder.is_dir() else ()
        return tuple(note["address"] for note in map(_noted, folders) if note.get("owner") == owner)

    async def close(self) -> None:
        with suppress(OSError):
            self._folder.rmdir()

    def _shape(self) -> Shape:
        program = find_chromium(self._executable)
        if program is None:
            raise InvalidInput(
                f"the only Chromium here is Playwright's: name it by {VARIABLE} or as image, or `apt install chromium`"
            )
        return Shape(program, self._size, self._headless)

    def _place(self, machine_id: str) -> Path:
        folder = self._folder / machine_id
        if not _ID.fullmatch(machine_id):
            raise InvalidInput(f"machine id {machine_id!r}: use letters, digits, dots, dashes and underscores")
        if len(os.fsencode(folder)) > MAX_FOLDER:
            raise InvalidInput(f"{folder} is too long a path for the sockets in it; choose a shorter folder")
        return folder

    def _open_folder(self) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = self._folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
            raise InvalidInput(f"{self._folder} must be a folder of this user alone; remove it or choose another")


def _note(folder: Path, facts: Mapping[str, Any]) -> None:
    new = folder / f"{_NOTE}.new"
    write_private(new, json.dumps(facts))
    new.replace(folder / _NOTE)


def _noted(folder: Path) -> dict[str, Any]:
    try:
        facts: dict[str, Any] = json.loads((folder / _NOTE).read_text())
    except (OSError, ValueError):
        return {}
    return facts


def provider_of(spec: MachineSpec) -> BrowserProvider:
    refuse(spec, snapshot="a browser starts anew each time")
    settings = settings_of(BrowserSettings, spec.settings, "settings of browser")
    given: dict[str, Any] = {"width": spec.width, "height": spec.height, "headless": spec.headless}
    return BrowserProvider(
        executable=spec.image, settings=settings, **{name: value for name, value in given.items() if value is not None}
    )
