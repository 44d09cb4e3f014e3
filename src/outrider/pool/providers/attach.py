"""Machines that somebody else runs: a list of host:port that speak OSWorld's in-guest HTTP protocol.

Nothing is started or ended here. A machine is held by a lock on a file that tells who has it, so that two pools on this
host never have the same one; the kernel takes the lock from a process that dies.
"""

import asyncio
import os
import re
import shlex
import tempfile
from contextlib import suppress
from pathlib import Path

import aiohttp
from msgspec import Struct

from outrider.core.bounds import PositiveSeconds, check_bounds
from outrider.core.errors import InvalidInput, MachineError
from outrider.core.settings import settings_of
from outrider.pool.claims import Claim
from outrider.pool.osworld_protocol.client import DEFAULT_PORT, OsworldComputer
from outrider.pool.osworld_protocol.machine import PROBE_SECONDS, Endpoint, OsworldMachine
from outrider.pool.programs import SAID_BYTES, output_of
from outrider.pool.provider import Ability, Address
from outrider.pool.spec import MachineSpec, refuse

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

    reset_seconds: PositiveSeconds = 300.0
    """How long a reset may take until the machine answers again."""

    probe_seconds: PositiveSeconds = PROBE_SECONDS
    """How long a sound machine takes, at the most, to answer and to show its screen."""

    reuse: bool = False
    """Hand a machine on as its last holder left it, where there is no way to reset it."""

    def __post_init__(self) -> None:
        check_bounds(self)


class AttachedMachine(OsworldMachine):
    """A machine of the list."""

    def __init__(self, machine_id: str, endpoint: Endpoint, settings: AttachSettings, claim: Claim) -> None:
        super().__init__(endpoint, probe_seconds=settings.probe_seconds)
        self._machine_id = machine_id
        self._settings = settings
        self._claim = claim
        self._marker: str | None = None

    @property
    def address(self) -> Address:
        return {"machine_id": self._machine_id, "host": self.endpoint.host, "port": self.endpoint.port}

    @property
    def was_used(self) -> bool:
        return self.computer.n_acts > 0

    async def reset(self) -> None:
        async with self.changing:
            if self._settings.reset_command or self._settings.reset_url:
                await self._reset_by_hook()
            elif self.was_used and not self._settings.reuse:
                raise MachineError(
                    f"machine {self.endpoint} was used and there is no way to reset it; set reset_command or "
                    "reset_url, or reuse to hand it on as it is",
                    stage="machine.reset",
                )
            elif self._marker is not None:
                await self.remove(self._marker)
            self.computer.n_acts = 0

    async def _reset_by_hook(self) -> None:
        seconds = self._settings.reset_seconds
        try:
            async with asyncio.timeout(seconds):
                if self._settings.reset_command:
                    await _run(self.endpoint.fill(self._settings.reset_command), seconds)
                if self._settings.reset_url:
                    await _post(self.endpoint.fill(self._settings.reset_url))
                await self.answering(seconds)
        except TimeoutError as exc:
            message = f"machine {self.endpoint} was not reset within {seconds:g} s"
            raise MachineError(message, stage="machine.reset") from exc

    async def plant(self, marker: str) -> None:
        self._marker = marker
        await super().plant(marker)

    async def destroy(self) -> None:
        """Let go of it; it goes on where it is."""
        try:
            await self.let_go()
        finally:
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
            claim = self._claim(endpoint)
            if endpoint not in spent and claim.take():
                machine = AttachedMachine(machine_id, endpoint, self._settings, claim)
                claim.write(dict(machine.address) | {"owner": owner})
                return await self._opened(machine)
        reason = "in use" if not spent else "in use, or used and without a way to reset them"
        raise MachineError(f"all {len(self._endpoints)} attached machines are {reason}", stage="machine.create")

    async def adopt(self, machine_id: str, address: Address) -> AttachedMachine | None:
        """As told. Whether it was used is not known any more, so it counts as used."""
        endpoint = Endpoint(str(address.get("host")), int(address.get("port", 0)))
        claim = self._claim(endpoint)
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
            if (facts := self._claim(endpoint).facts).get("owner") == owner
        )

    async def close(self) -> None:
        self._given.clear()
        with suppress(OSError):
            self._folder.rmdir()

    @property
    def _can_reuse(self) -> bool:
        return bool(self._settings.reuse or self._settings.reset_command or self._settings.reset_url)

    def _claim(self, endpoint: Endpoint) -> Claim:
        return Claim(self._folder / re.sub(r"[^\w.]", "_", str(endpoint)))

    async def _opened(self, machine: AttachedMachine) -> AttachedMachine:
        try:
            await machine.connect()
        except BaseException:
            await machine.destroy()
            raise
        self._given[machine.endpoint] = machine
        return machine


def _endpoint(text: str) -> Endpoint:
    found = _ENDPOINT.fullmatch(text.strip())
    port = int(found["port"] or DEFAULT_PORT) if found else 0
    if found is None or not 0 < port < 1 << 16:
        raise InvalidInput(f"attach: {text!r} is not a machine; write host:port, such as 10.0.0.5:{DEFAULT_PORT}")
    return Endpoint(found["v6"] or found["host"], port)


async def _problem(endpoint: Endpoint) -> str | None:
    try:
        async with OsworldComputer(*endpoint):
            return None
    except MachineError as exc:
        return f"{endpoint} ({exc})"


async def _run(command: str, seconds: float) -> None:
    try:
        words = shlex.split(command)
    except ValueError as exc:
        raise MachineError(f"reset_command {command!r}: {exc}", stage="machine.reset") from exc
    await output_of(words, seconds=seconds, stage="machine.reset")


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
