"""What a holder can do with a virtual machine: screen, mouse and keyboard by the monitor, the rest by its agent."""

import asyncio
import shlex
from collections.abc import Callable, Sequence
from pathlib import PurePosixPath

from outrider.core.errors import MachineError, MachineRefusal
from outrider.pool.computer import Executed, Input, Pause, Press
from outrider.pool.qemu import keys
from outrider.pool.qemu.template import Template
from outrider.pool.qemu.vm import Vm

ANSWER_SECONDS = 30.0
"""How much longer than a command may take its answer may take, with a guest that software runs."""

N_AT_ONCE = 4
"""Strokes that the guest need not have taken yet: eight events each at the most, and it has room for 64."""

_TRANSFER_SECONDS = 300.0
_HOME = "/home/user"


class QemuComputer:
    """One machine. `vm` gives the process that runs it now: a reset may start another."""

    def __init__(self, vm: Callable[[], Vm], source: Template) -> None:
        self._vm = vm
        self._screen = source.facts.screen
        self._terminal = source.hardware.image.description.terminal
        self._tree = source.hardware.image.description.tree
        self._typing = asyncio.Lock()
        self._looking = asyncio.Lock()

    @property
    def screen_size(self) -> tuple[int, int]:
        return self._screen

    async def screenshot(self) -> bytes:
        async with self._looking:  # all go through one file
            return await self._vm().screenshot(seconds=ANSWER_SECONDS)

    async def input(self, events: Sequence[Input]) -> None:
        """What the guest cannot do is refused before the first is done.

        Few are on their way at once, since a guest drops what it has no room for. A pause while a button is held begins
        when all before it has arrived: moves that come together are one to a window manager, and no drag.
        """
        keys.check(events, self._screen)
        async with self._typing:
            vm = self._vm()
            n_sent, is_held = 0, False
            for event in events:
                if isinstance(event, Press):
                    is_held = event.down
                if isinstance(event, Pause):
                    if is_held:
                        await vm.agent.ping(ANSWER_SECONDS)
                    await asyncio.sleep(event.seconds)
                for stroke in keys.strokes(event, self._screen):
                    await vm.qmp.execute("input-send-event", events=stroke)
                    n_sent += 1
                    if n_sent % N_AT_ONCE == 0:
                        await vm.agent.ping(ANSWER_SECONDS)
            await vm.agent.ping(ANSWER_SECONDS)

    async def execute(self, command: Sequence[str] | str, *, timeout: float = 120.0) -> Executed:
        answer = await self._vm().agent.execute(_script(command), timeout, grace_seconds=ANSWER_SECONDS)
        return Executed(
            returncode=None if answer.status == "late" else int(answer.status),
            stdout=answer.output.decode(errors="replace"),
            stderr=answer.errors.decode(errors="replace"),
        )

    async def launch(self, command: Sequence[str] | str) -> None:
        await self._vm().agent.ask("launch", 0, _script(command), seconds=ANSWER_SECONDS)

    async def read_file(self, path: str) -> bytes | None:
        answer = await self._vm().agent.ask("read", 0, _path(path), seconds=_TRANSFER_SECONDS)
        match answer.status:
            case "0":
                return answer.output
            case "1":
                return None
            case _:
                raise MachineError(f"{path} cannot be read: {_text(answer.errors)}", stage="machine.read_file")

    async def write_file(self, path: str, data: bytes) -> None:
        """Folders that are missing on the way are made."""
        answer = await self._vm().agent.ask("write", 0, _path(path), data, seconds=_TRANSFER_SECONDS)
        if answer.status != "0":
            raise MachineError(f"{path} cannot be written: {_text(answer.errors)}", stage="machine.write_file")

    async def accessibility_tree(self) -> str:
        """The windows, not what is in them: program, title, place, focus."""
        if not self._tree:
            raise MachineRefusal("this virtual machine has no accessibility tree", stage="machine.accessibility_tree")
        told = await self.execute(self._tree, timeout=ANSWER_SECONDS)
        if told.returncode != 0:
            raise MachineError(f"the windows cannot be listed: {told.stderr}", stage="machine.accessibility_tree")
        return told.stdout

    async def terminal_text(self) -> str | None:
        if not self._terminal:
            return None
        shown = await self.execute(self._terminal, timeout=ANSWER_SECONDS)
        match shown.returncode:
            case 0:
                return "\n".join(line.rstrip() for line in shown.stdout.splitlines()).rstrip()
            case 1:
                return None
            case _:
                raise MachineError(f"the terminal cannot be read: {shown.stderr}", stage="machine.terminal_text")


def _script(command: Sequence[str] | str) -> bytes:
    return (command if isinstance(command, str) else shlex.join(command)).encode()


def _path(path: str) -> bytes:
    """From the home folder, if it does not begin elsewhere."""
    return str(PurePosixPath(_HOME, path.removeprefix("~/") if path != "~" else "")).encode()


def _text(errors: bytes) -> str:
    return errors.decode(errors="replace").strip()
