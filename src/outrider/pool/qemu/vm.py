"""A virtual machine that runs: its process, its monitor and the agent inside, held together."""

import asyncio
import shlex
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

from outrider.core.errors import MachineError
from outrider.pool.processes import Process
from outrider.pool.qemu.agent import Agent
from outrider.pool.qemu.qmp import Event, Qmp
from outrider.pool.qemu.sockets import listen

MONITOR, PORT, LOG = "qmp", "agent", "log"

_START_SECONDS = 60.0
_FIND_SECONDS = 10.0
_WAITS = ": info: QEMU waiting for connection"
_LOG_BYTES = 400


class Vm:
    """Made by `start` or `find`. Its sockets and its log lie in `folder`, which is the caller's."""

    def __init__(self, folder: Path, process: Process) -> None:
        self.folder = folder
        self.process = process
        self._qmp: Qmp | None = None
        self._agent: Agent | None = None
        self._migrated: asyncio.Future[str] | None = None
        self.ending = ""
        """What the guest did to end, as far as it told."""

    @classmethod
    async def start(cls, folder: Path, arguments: Sequence[str]) -> Self:
        """Start QEMU, and connect to it. If this fails or is cancelled, it has ended.

        QEMU waits for the connection to its monitor. One that it takes while it sets the monitor up may stay unheard.
        """
        with listen(folder / MONITOR) as monitor, listen(folder / PORT) as port:
            handed = [
                *("-chardev", f"socket,id=monitor,fd={monitor.fileno()},server=on,wait=on"),
                *("-mon", "chardev=monitor,mode=control"),
                *("-chardev", f"socket,id=agent,fd={port.fileno()},server=on,wait=off"),
            ]
            try:
                process = Process.start(
                    [*arguments, *handed], log=folder / LOG, handed=(monitor.fileno(), port.fileno())
                )
            except OSError as exc:
                raise MachineError(f"{arguments[0]} cannot be started: {exc}", stage="qemu.start") from exc
        vm = cls(folder, process)
        try:
            await vm.connect(_START_SECONDS)
        except BaseException as exc:
            await asyncio.shield(vm.end())
            if isinstance(exc, MachineError):
                raise MachineError(f"{exc}{vm.last_words()}", stage="qemu.start") from exc
            raise
        return vm

    @classmethod
    async def find(cls, folder: Path, process: Process) -> Self | None:
        """The machine that an earlier owner has started; one that does not answer is ended."""
        vm = cls(folder, process)
        try:
            await vm.connect(_FIND_SECONDS)
        except MachineError:
            await vm.end()
            return None
        except BaseException:
            await vm.close()
            raise
        return vm

    async def connect(self, seconds: float) -> None:
        self._qmp = await Qmp.open(self.folder / MONITOR, seconds=seconds, hear=self._hear)
        self._agent = await Agent.open(self.folder / PORT)

    @property
    def qmp(self) -> Qmp:
        assert self._qmp is not None, "not connected"
        return self._qmp

    @property
    def agent(self) -> Agent:
        assert self._agent is not None, "not connected"
        return self._agent

    async def reopen_agent(self) -> None:
        """Forget all that was asked of the guest and not yet answered."""
        await self.agent.close()
        self._agent = await Agent.open(self.folder / PORT)

    async def save(self, file: Path, *, seconds: float) -> None:
        """Write the state of the devices, and not the memory, which is a file already. The guest stands still then."""
        await self.qmp.execute("stop")
        await self._migrate("migrate", f"exec:cat > {shlex.quote(str(file))}", seconds)

    async def restore(self, file: Path, *, seconds: float) -> None:
        """Go on where `save` has left off. For a machine that was started to wait for that."""
        await self._migrate("migrate-incoming", f"exec:cat {shlex.quote(str(file))}", seconds)
        await self.qmp.execute("cont")

    async def command(self, line: str, *, seconds: float) -> None:
        """Give a command that exists for people only: it says something if it has failed."""
        said = await self.qmp.execute("human-monitor-command", seconds=seconds, **{"command-line": line})
        if said.strip():
            raise MachineError(f"QEMU: {line}: {said.strip()}", stage="qemu.monitor")

    async def screenshot(self, *, seconds: float) -> bytes:
        """The screen as PNG."""
        file = self.folder / "screen.png"
        try:
            await self.qmp.execute("screendump", seconds=seconds, filename=str(file), format="png")
            return file.read_bytes()
        except OSError as exc:
            raise MachineError(f"the screenshot cannot be read: {exc}", stage="qemu.screenshot") from exc

    async def wait_until_dead(self) -> str:
        await self.process.wait()
        if self._qmp is not None:
            await self._qmp.heard_out()
        return self.ending or f"QEMU, process {self.process.pid}, has ended{self.last_words()}"

    async def end(self) -> None:
        """End the process, and wait for that; once more changes nothing."""
        try:
            await self.process.kill()
        finally:
            await self.close()

    async def close(self) -> None:
        """Let go of it; it goes on."""
        self.process.close()
        if self._agent is not None:
            await self._agent.close()
        if self._qmp is not None:
            await self._qmp.close()

    def last_words(self) -> str:
        """What QEMU has written at last, to be put behind a message."""
        with suppress(OSError):
            written = (self.folder / LOG).read_bytes()[-_LOG_BYTES:].decode(errors="replace")
            if said := "\n".join(line for line in written.splitlines() if _WAITS not in line).strip():
                return f"; it said: {said}"
        return ""

    async def _migrate(self, command: str, address: str, seconds: float) -> None:
        self._migrated = asyncio.get_running_loop().create_future()
        wanted = [{"capability": name, "state": True} for name in ("events", "x-ignore-shared")]
        await self.qmp.execute("migrate-set-capabilities", capabilities=wanted)
        await self.qmp.execute(command, uri=address)
        try:
            async with asyncio.timeout(seconds):
                status = await self._migrated
        except TimeoutError as exc:
            raise MachineError(f"QEMU did not finish {command} within {seconds:g} s", stage="qemu.snapshot") from exc
        if status != "completed":
            raise MachineError(f"QEMU: {command} has {status}{self.last_words()}", stage="qemu.snapshot")
        wanted = [{"capability": "x-ignore-shared", "state": False}]
        await self.qmp.execute("migrate-set-capabilities", capabilities=wanted)

    def _hear(self, event: Event) -> None:
        match event:
            case {"event": "MIGRATION", "data": {"status": "completed" | "failed" as status}}:
                if self._migrated is not None and not self._migrated.done():
                    self._migrated.set_result(status)
            case {"event": "GUEST_PANICKED"}:
                self.ending = "the guest panicked"
            case {"event": "SHUTDOWN", "data": {"guest": True, "reason": reason}}:
                self.ending = self.ending or f"the guest ended: {reason}"


def remove(folder: Path) -> None:
    """A folder and what is in it, if it is there."""
    with suppress(FileNotFoundError):
        shutil.rmtree(folder)
