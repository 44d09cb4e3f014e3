"""One virtual machine of a pool, from its first clone to its end."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import quote, unquote

from msgspec import Struct, structs

from outrider.core.errors import MachineError
from outrider.core.processes import plain_variables
from outrider.pool.computer import Computer
from outrider.pool.processes import named, start_time
from outrider.pool.provider import Address
from outrider.pool.qemu.computer import QemuComputer
from outrider.pool.qemu.hardware import quoted
from outrider.pool.qemu.settings import QemuSettings, Reset
from outrider.pool.qemu.template import Template
from outrider.pool.qemu.vm import Vm, remove

_COMMAND_SECONDS = 60.0
_SAVED = "clean"
_SAVED_IN = "snapshot.qcow2"
_LABEL = "outrider"
_MARKERS = "/home/user/.outrider-marker-"


class QemuAddress(Struct, frozen=True, kw_only=True):
    """How a machine is found again. Process 0: nothing but its folder is left."""

    machine_id: str
    owner: str
    folder: str
    pid: int = 0
    started: int = 0
    """In ticks since the boot of the host: with this, an id stands for one process only."""
    template: str = ""
    reset: str = ""
    accelerator: str = ""


class QemuMachine:
    """Made by the provider, which calls `start` or `take` before anybody else sees it. Owns its folder."""

    def __init__(self, machine_id: str, owner: str, folder: Path, source: Template, settings: QemuSettings) -> None:
        self._machine_id = machine_id
        self._owner = owner
        self._folder = folder
        self._template = source
        self._settings = settings
        self._vm: Vm | None = None
        self._computer = QemuComputer(lambda: self._running, source)
        self._changing = asyncio.Lock()

    @property
    def address(self) -> Address:
        found = QemuAddress(
            machine_id=self._machine_id,
            owner=self._owner,
            folder=str(self._folder),
            pid=self._running.process.pid,
            started=self._running.process.started,
            template=self._template.key,
            reset=self._settings.reset.value,
            accelerator=self._template.hardware.accelerator.value,
        )
        return structs.asdict(found)

    @property
    def computer(self) -> Computer:
        return self._computer

    @property
    def _running(self) -> Vm:
        assert self._vm is not None, "the machine was started"
        return self._vm

    async def start(self) -> None:
        async with self._changing, self._in_time("start"):
            await self._clone()
            if self._settings.reset is Reset.LOADVM:
                await self._running.command(f"savevm {_SAVED}", seconds=_COMMAND_SECONDS)

    def take(self, vm: Vm) -> None:
        """Go on with this process."""
        self._vm = vm

    async def reset(self) -> None:
        async with self._changing, self._in_time("reset"):
            if self._settings.reset is Reset.LOADVM:
                await self._load()
            else:
                await self._running.end()
                await self._clone()

    async def probe(self) -> None:
        """The agent answers, and there is a picture on the screen."""
        seconds = self._settings.probe_seconds
        try:
            async with asyncio.timeout(seconds):
                await self._running.agent.ping(seconds)
                await self.computer.screenshot()
        except TimeoutError as exc:
            raise MachineError(
                f"machine {self._machine_id} has not answered within {seconds:g} s", stage="machine.probe"
            ) from exc

    async def plant(self, marker: str) -> None:
        await self.computer.write_file(_MARKERS + quote(marker, safe=""), b"")

    async def has(self, marker: str) -> bool:
        return await self.computer.read_file(_MARKERS + quote(marker, safe="")) is not None

    async def wait_until_dead(self) -> str:
        while True:
            vm = self._running
            reason = await vm.wait_until_dead()
            async with self._changing:  # a reset may have ended it on purpose
                if self._vm is vm:
                    return reason

    async def destroy(self) -> None:
        async with self._changing:
            if self._vm is not None:
                await self._vm.end()
            remove(self._folder)

    async def _clone(self) -> None:
        """A new QEMU on the snapshot, which is told the time and its name."""
        seconds = self._settings.start_seconds
        arguments = self._template.arguments(self._settings.program)
        arguments += ["-name", self._label(), "-pidfile", str(self._folder / "pid")]
        if self._settings.reset is Reset.LOADVM:
            disk = self._folder / _SAVED_IN
            await _make_disk(disk)
            arguments += ["-drive", f"file={quoted(disk)},format=qcow2,if=none,id=saved"]
        vm = await Vm.start(self._folder, arguments)
        self.take(vm)
        try:
            await vm.restore(self._template.devices, seconds=seconds)
            await vm.agent.wake(self._machine_id, seconds)
        except BaseException:
            await asyncio.shield(vm.end())
            raise

    async def _load(self) -> None:
        vm = self._running
        await vm.qmp.execute("stop")
        await vm.reopen_agent()
        await vm.command(f"loadvm {_SAVED}", seconds=_COMMAND_SECONDS)
        await vm.qmp.execute("cont")
        await vm.agent.wake(self._machine_id, self._settings.start_seconds)

    @asynccontextmanager
    async def _in_time(self, what: str) -> AsyncIterator[None]:
        seconds = self._settings.start_seconds
        try:
            async with asyncio.timeout(seconds):
                yield
        except TimeoutError as exc:
            raise MachineError(
                f"the {what} of machine {self._machine_id} took longer than {seconds:g} s", stage=f"machine.{what}"
            ) from exc

    def _label(self) -> str:
        reset, accelerator = self._settings.reset.value, self._template.hardware.accelerator.value
        words = (_LABEL, self._owner, self._machine_id, self._template.key, reset, accelerator)
        return ":".join(quote(word, safe="") for word in words)


def living(owner: str) -> Iterator[QemuAddress]:
    """The addresses of all machines of this owner that have a process on this host."""
    prefix = f"{_LABEL}:{quote(owner, safe='')}:"
    for pid, arguments in named(prefix):
        label = next(argument for argument in arguments if argument.startswith(prefix))
        _, _, machine_id, template, reset, accelerator = (unquote(word) for word in label.split(":"))
        if (started := start_time(pid)) is not None:
            yield QemuAddress(
                machine_id=machine_id,
                owner=owner,
                folder=str(Path(arguments[arguments.index("-pidfile") + 1]).parent),
                pid=pid,
                started=started,
                template=template,
                reset=reset,
                accelerator=accelerator,
            )


async def _make_disk(path: Path) -> None:
    """An empty disk, for nothing but the snapshot of one machine."""
    making = await asyncio.create_subprocess_exec(
        "qemu-img", "create", "-q", "-f", "qcow2", str(path), "1M", env=plain_variables()
    )
    try:
        async with asyncio.timeout(_COMMAND_SECONDS):
            if await making.wait() != 0:
                raise MachineError(f"qemu-img cannot make {path}: is the disk full?", stage="qemu.create")
    except TimeoutError as exc:
        raise MachineError("qemu-img does not end", stage="qemu.create") from exc
    finally:
        if making.returncode is None:
            making.kill()
            await making.wait()
