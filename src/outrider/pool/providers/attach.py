"""Machines that somebody else runs: a list of host:port that speak OSWorld's in-guest HTTP protocol.

Nothing is started or ended here. A machine is held by a lock on a file that tells who has it, so that two pools on this
host never have the same one; the kernel takes the lock from a process that dies.
"""

import asyncio
import fcntl
import json
import os
import re
import shlex
import signal
import tempfile
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
from msgspec import Struct

from outrider.core.errors import InvalidInput, MachineError
from outrider.core.settings import settings_of
from outrider.core.tasks import uninterrupted
from outrider.pool.osworld_protocol.client import CONNECT_SECONDS, DEFAULT_PORT, OsworldComputer
from outrider.pool.provider import Ability, Address
from outrider.pool.spec import MachineSpec, refuse

SHELL_SECONDS = 20.0
ANSWER_AGAIN_SECONDS = 0.25
CLOSE_SECONDS = 5.0
SAID_BYTES = 2000
_HTTP_OK = 200
_ENDPOINT = re.compile(r"(?:\[(?P<v6>[^\]]+)\]|(?P<host>[^:\s/]+))(?::(?P<port>\d{1,5}))?")


class AttachSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which machines there are, and how they come back to their clean state."""

    machines: tuple[str, ...]
    """host or host:port; the port is 5000 unless it is said."""

    reset_command: str | None = None
    """A command to run here. `{host}` and `{port}` stand for the machine."""

    reset_url: str | None = None
    """An address to POST to. `{host}` and `{port}` stand for the machine."""

    reset_seconds: float = 300.0
    """How long a reset may take until the machine answers again."""

    probe_seconds: float = 10.0
    """How long a sound machine takes, at the most, to answer and to show its screen."""

    reuse: bool = False
    """Hand a machine on as its last holder left it, where there is no way to reset it."""


class Endpoint(NamedTuple):
    """Where a machine answers."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def fill(self, template: str) -> str:
        return template.replace("{host}", self.host).replace("{port}", str(self.port))


class _Claim:
    """A lock on the file of one endpoint. The file tells which machine it is, and whose."""

    def __init__(self, folder: Path, endpoint: Endpoint) -> None:
        self.path = folder / re.sub(r"[^\w.]", "_", str(endpoint))
        self._descriptor: int | None = None

    def take(self) -> bool:
        """Whether it is ours now."""
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return self._lock(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))

    def take_over(self, machine_id: str) -> bool:
        """Whether it is ours now; only if it was this machine's and nobody holds it."""
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        if not self._lock(descriptor):
            return False
        if _facts(self.path).get("machine_id") == machine_id:
            return True
        self.let_go(forget=False)
        return False

    def _lock(self, descriptor: int) -> bool:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), self.path.stat()):  # else it was let go of meanwhile
                self._descriptor = descriptor
        except (BlockingIOError, FileNotFoundError):
            pass
        finally:
            if self._descriptor is None:
                os.close(descriptor)
        return self._descriptor is not None

    def write(self, facts: Mapping[str, Any]) -> None:
        assert self._descriptor is not None
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, json.dumps(facts).encode(), 0)

    def let_go(self, *, forget: bool) -> None:
        if self._descriptor is not None:
            if forget:
                self.path.unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = None


class AttachedMachine:
    """A machine of the list."""

    def __init__(self, machine_id: str, endpoint: Endpoint, settings: AttachSettings, claim: _Claim) -> None:
        self.computer = OsworldComputer(*endpoint)
        self.endpoint = endpoint
        self._ours = OsworldComputer(*endpoint)
        self._machine_id = machine_id
        self._settings = settings
        self._claim = claim
        self._marker: str | None = None
        self._changing = asyncio.Lock()

    @property
    def address(self) -> Address:
        return {"machine_id": self._machine_id, "host": self.endpoint.host, "port": self.endpoint.port}

    @property
    def was_used(self) -> bool:
        return self.computer.n_acts > 0

    async def connect(self) -> None:
        await self._ours.connect()
        await self.computer.connect()

    async def reset(self) -> None:
        async with self._changing:
            if self._settings.reset_command or self._settings.reset_url:
                await self._reset_by_hook()
            elif self.was_used and not self._settings.reuse:
                raise MachineError(
                    f"machine {self.endpoint} was used and there is no way to reset it; set reset_command or "
                    "reset_url, or reuse to hand it on as it is",
                    stage="machine.reset",
                )
            elif self._marker is not None:
                await self._shell(f"rm -f {_places(self._marker)}")
            self.computer.n_acts = 0

    async def _reset_by_hook(self) -> None:
        try:
            async with asyncio.timeout(self._settings.reset_seconds):
                if self._settings.reset_command:
                    await _run(self.endpoint.fill(self._settings.reset_command))
                if self._settings.reset_url:
                    await _post(self.endpoint.fill(self._settings.reset_url))
                await self._answering()
        except TimeoutError as exc:
            message = f"machine {self.endpoint} was not reset within {self._settings.reset_seconds:g} s"
            raise MachineError(message, stage="machine.reset") from exc

    async def _answering(self) -> None:
        while True:
            with suppress(MachineError):
                return await self.connect()
            await asyncio.sleep(ANSWER_AGAIN_SECONDS)  # another host tells nobody when it is up

    async def probe(self) -> None:
        try:
            async with asyncio.timeout(self._settings.probe_seconds):
                await self._ours.connect()
                if self._ours.screen_size[0]:
                    await self._ours.screenshot()
        except TimeoutError as exc:
            raise MachineError(f"machine {self.endpoint} does not answer", stage="machine.probe") from exc

    async def plant(self, marker: str) -> None:
        self._marker = marker
        await self._shell(f"touch {_places(marker)}")

    async def has(self, marker: str) -> bool:
        return bool(await self._shell(f"ls -d {_places(marker)} 2>/dev/null || true"))

    async def _shell(self, command: str) -> str:
        done = await self._ours.execute(command, timeout=SHELL_SECONDS)
        if done.returncode != 0:
            raise MachineError(f"machine {self.endpoint}: {command}: {done.stderr.strip()}", stage="machine.execute")
        return done.stdout

    async def wait_until_dead(self) -> str:
        """Known by a connection that is held to it: the kernel over there ends it with the server."""
        while True:
            reason = await self._until_cut()
            async with self._changing:
                if reason is not None:
                    reason = await self._until_cut(only_try=True)
                if reason is not None:
                    return f"machine {self.endpoint} is gone: {reason}"

    async def _until_cut(self, *, only_try: bool = False) -> str | None:
        """Hold a connection until it ends; the reason why there can be none."""
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                reader, writer = await asyncio.open_connection(*self.endpoint)
        except TimeoutError:
            return f"no connection within {CONNECT_SECONDS:g} s"
        except OSError as exc:
            return str(exc)
        try:
            with suppress(OSError):
                while not only_try and await reader.read(4096):
                    pass
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()
        await asyncio.sleep(0 if only_try else ANSWER_AGAIN_SECONDS)  # some servers cut idle connections at once
        return None

    async def destroy(self) -> None:
        """Let go of it; it goes on where it is."""
        await uninterrupted(self._close())

    async def _close(self) -> None:
        async with asyncio.timeout(CLOSE_SECONDS):
            await self.computer.close()
            await self._ours.close()
        self._claim.let_go(forget=True)


class AttachProvider:
    """The machines of a list. Those that were used and cannot be reset are not given again."""

    name = "attach"
    abilities = frozenset({Ability.SCREEN, Ability.COMMANDS, Ability.TREE, Ability.TERMINAL})

    def __init__(self, settings: AttachSettings, *, folder: Path | None = None) -> None:
        """`folder` holds the locks; pools that share machines must share it."""
        if settings.reset_command and settings.reset_url:
            raise InvalidInput("attach: set reset_command or reset_url, not both")
        self._settings = settings
        self._endpoints = tuple(dict.fromkeys(map(_endpoint, settings.machines)))
        self._folder = folder or Path(tempfile.gettempdir()) / f"outrider-attached-{os.geteuid()}"
        self._given: dict[Endpoint, AttachedMachine] = {}

    async def check(self, n_machines: int) -> None:
        if n_machines > len(self._endpoints):
            raise InvalidInput(f"{n_machines} machines are wanted, and attach lists {len(self._endpoints)}; list more")
        problems = await asyncio.gather(*map(_problem, self._endpoints))
        if found := [problem for problem in problems if problem is not None]:
            raise InvalidInput("these machines do not answer as OSWorld's do: " + "; ".join(found))

    async def create(self, machine_id: str, owner: str) -> AttachedMachine:
        spent = {endpoint for endpoint, given in self._given.items() if given.was_used and not self._can_reuse}
        for endpoint in self._endpoints:
            claim = _Claim(self._folder, endpoint)
            if endpoint not in spent and claim.take():
                machine = AttachedMachine(machine_id, endpoint, self._settings, claim)
                claim.write(dict(machine.address) | {"owner": owner})
                return await self._opened(machine)
        reason = "in use" if not spent else "in use, or used and without a way to reset them"
        raise MachineError(f"all {len(self._endpoints)} attached machines are {reason}", stage="machine.create")

    async def adopt(self, machine_id: str, address: Address) -> AttachedMachine | None:
        """As told. Whether it was used is not known any more, so it counts as used."""
        endpoint = Endpoint(str(address.get("host")), int(address.get("port", 0)))
        claim = _Claim(self._folder, endpoint)
        if endpoint not in self._endpoints or not claim.take_over(machine_id):
            return None
        machine = AttachedMachine(machine_id, endpoint, self._settings, claim)
        machine.computer.n_acts = 1
        try:
            return await self._opened(machine)
        except MachineError:
            return None

    async def owned(self, owner: str) -> tuple[Address, ...]:
        return tuple(
            {"machine_id": facts["machine_id"], "host": endpoint.host, "port": endpoint.port}
            for endpoint in self._endpoints
            if (facts := _facts(_Claim(self._folder, endpoint).path)).get("owner") == owner
        )

    async def close(self) -> None:
        self._given.clear()
        with suppress(OSError):
            self._folder.rmdir()

    @property
    def _can_reuse(self) -> bool:
        return bool(self._settings.reuse or self._settings.reset_command or self._settings.reset_url)

    async def _opened(self, machine: AttachedMachine) -> AttachedMachine:
        try:
            await machine.connect()
        except BaseException:
            await machine.destroy()
            raise
        self._given[machine.endpoint] = machine
        return machine


def _facts(path: Path) -> Mapping[str, Any]:
    with suppress(OSError, ValueError):
        return dict(json.loads(path.read_bytes()))
    return {}


def _endpoint(text: str) -> Endpoint:
    found = _ENDPOINT.fullmatch(text.strip())
    port = int(found["port"] or DEFAULT_PORT) if found else 0
    if found is None or not 0 < port < 1 << 16:
        raise InvalidInput(f"attach: {text!r} is no machine; write host:port, such as 10.0.0.5:{DEFAULT_PORT}")
    return Endpoint(found["v6"] or found["host"], port)


async def _problem(endpoint: Endpoint) -> str | None:
    try:
        async with OsworldComputer(*endpoint):
            return None
    except MachineError as exc:
        return f"{endpoint} ({exc})"


def _places(marker: str) -> str:
    name = shlex.quote(marker)
    return f'"$HOME"/{name} /tmp/{name}'


async def _run(command: str) -> None:
    """Run a reset's command to its end; it is killed, and all it started, if nobody waits for it any more."""
    try:
        process = await asyncio.create_subprocess_exec(
            *shlex.split(command), stdin=DEVNULL, stdout=DEVNULL, stderr=PIPE, start_new_session=True
        )
    except (OSError, ValueError) as exc:
        raise MachineError(f"reset_command {command!r}: {exc}", stage="machine.reset") from exc
    try:
        _, said = await process.communicate()
    except BaseException:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await uninterrupted(_buried(process))
        raise
    if process.returncode != 0:
        tail = said[-SAID_BYTES:].decode(errors="replace").strip()
        raise MachineError(f"reset_command {command!r} ended with {process.returncode}: {tail}", stage="machine.reset")


async def _buried(process: Process) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(CLOSE_SECONDS):
            await process.wait()


async def _post(url: str) -> None:
    try:
        async with aiohttp.ClientSession() as session, session.post(url) as response:
            said = (await response.text())[:SAID_BYTES]
            if response.status != _HTTP_OK:
                raise MachineError(f"reset_url {url} answered {response.status}: {said}", stage="machine.reset")
    except (aiohttp.ClientError, OSError, ValueError) as exc:
        raise MachineError(f"reset_url {url}: {exc}", stage="machine.reset") from exc


def provider_of(spec: MachineSpec) -> AttachProvider:
    """The list is in the settings, or stands as the image: `host:port,host:port`."""
    size = "an attached machine has the screen that it has"
    refuse(spec, snapshot="reset_command or reset_url bring a machine back", width=size, height=size)
    listed = {} if spec.image is None else {"machines": [part for part in spec.image.split(",") if part.strip()]}
    values = {**listed, **spec.settings}
    if not values.get("machines"):
        raise InvalidInput("provider attach needs its machines: --path-to-vm host:port,host:port, or settings.machines")
    return AttachProvider(settings_of(AttachSettings, values, "settings of attach"))
