"""A machine that is reached at an endpoint where OSWorld's in-guest server answers, whoever runs the machine."""

import asyncio
import shlex
import socket
from contextlib import suppress
from typing import NamedTuple

from outrider.core.errors import MachineError
from outrider.core.tasks import uninterrupted
from outrider.pool.osworld_protocol.client import CONNECT_SECONDS, OsworldComputer

PROBE_SECONDS = 10.0
SHELL_SECONDS = 20.0
ANSWER_AGAIN_SECONDS = 0.25
CLOSE_SECONDS = 5.0
_KEPT_ALIVE = ((socket.TCP_KEEPIDLE, 5), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))
"""A host that vanished without a word is missed after 20 s."""


class Endpoint(NamedTuple):
    """Where a machine answers."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def fill(self, template: str) -> str:
        return template.replace("{host}", self.host).replace("{port}", str(self.port))


class OsworldMachine:
    """What a `RunningMachine` at an endpoint does alike, however it is reset and ended.

    A kind holds `changing` while it resets the machine, so that this is not taken for its death.
    """

    def __init__(self, endpoint: Endpoint, *, probe_seconds: float = PROBE_SECONDS) -> None:
        self.endpoint = endpoint
        self.computer = OsworldComputer(*endpoint)
        self.changing = asyncio.Lock()
        self._ours = OsworldComputer(*endpoint)
        self._probe_seconds = probe_seconds

    async def connect(self) -> None:
        await self._ours.connect()
        await self.computer.connect()

    async def answering(self, seconds: float) -> None:
        """Return as soon as it answers, and raise `MachineError` if that takes longer."""
        reason = ""
        try:
            async with asyncio.timeout(seconds):
                while True:
                    try:
                        return await self.connect()
                    except MachineError as exc:
                        reason = f": {exc}"
                    await asyncio.sleep(ANSWER_AGAIN_SECONDS)  # another host tells nobody when it is up
        except TimeoutError as exc:
            message = f"machine {self.endpoint} did not answer within {seconds:g} s{reason}"
            raise MachineError(message, stage="machine.boot") from exc

    async def move(self, endpoint: Endpoint) -> None:
        """It answers elsewhere from now on. What its computer was asked before, and has not answered, fails."""
        self.endpoint = endpoint
        for computer in (self.computer, self._ours):
            await computer.move(*endpoint)

    async def probe(self) -> None:
        try:
            async with asyncio.timeout(self._probe_seconds):
                await self._ours.connect()
                if self._ours.screen_size[0]:
                    await self._ours.screenshot()
        except TimeoutError as exc:
            raise MachineError(f"machine {self.endpoint} does not answer", stage="machine.probe") from exc

    async def plant(self, marker: str) -> None:
        await self._shell(f"touch {_places(marker)}")

    async def has(self, marker: str) -> bool:
        return bool(await self._shell(f"ls -d {_places(marker)} 2>/dev/null || true"))

    async def remove(self, marker: str) -> None:
        """For a machine that is handed on as it is."""
        await self._shell(f"rm -f {_places(marker)}")

    async def _shell(self, command: str) -> str:
        done = await self._ours.execute(command, timeout=SHELL_SECONDS)
        if done.returncode != 0:
            raise MachineError(f"machine {self.endpoint}: {command}: {done.stderr.strip()}", stage="machine.execute")
        return done.stdout

    async def wait_until_dead(self) -> str:
        """Known by a connection that is held to it: the kernel over there ends it with the server."""
        while True:
            reason = await self._until_cut()
            async with self.changing:
                if reason is not None:
                    reason = await self._until_cut(only_try=True)
                if reason is not None:
                    return f"machine {self.endpoint} is gone: {reason}"

    async def _until_cut(self, *, only_try: bool = False) -> str | None:
        """Hold a connection until it ends; the reason why there can be none."""
        if not self.endpoint.host:  # asyncio would take it for this host
            return "it has no address yet"
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                reader, writer = await asyncio.open_connection(*self.endpoint)
        except TimeoutError:
            return f"no connection within {CONNECT_SECONDS:g} s"
        except OSError as exc:
            return str(exc)
        try:
            _keep_alive(writer.get_extra_info("socket"))
            with suppress(OSError):
                while not only_try and await reader.read(4096):
                    pass
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()
        await asyncio.sleep(0 if only_try else ANSWER_AGAIN_SECONDS)  # some servers cut idle connections at once
        return None

    async def let_go(self) -> None:
        """Break off what is under way; its computer serves nobody from now on. The machine itself goes on."""
        await uninterrupted(self._close())

    async def _close(self) -> None:
        async with asyncio.timeout(CLOSE_SECONDS):
            await self.computer.close()
            await self._ours.close()


def _keep_alive(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEPT_ALIVE:
        connection.setsockopt(socket.IPPROTO_TCP, option, value)


def _places(marker: str) -> str:
    name = shlex.quote(marker)
    return f'"$HOME"/{name} /tmp/{name}'
