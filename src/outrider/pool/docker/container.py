"""A container that is a machine: made, watched, replaced, removed."""

import asyncio
import re
import secrets
from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Struct

from outrider.core.bounds import MAX_BYTES, MAX_COUNT, PositiveCount, Within, check_bounds
from outrider.core.errors import MachineError
from outrider.core.tasks import uninterrupted
from outrider.pool.docker.command import run
from outrider.pool.docker.computer import DockerComputer
from outrider.pool.docker.engine import CONFLICT, NOT_FOUND, START_SECONDS, Engine
from outrider.pool.provider import Address

OWNER, MACHINE = "outrider.owner", "outrider.machine"
"""The labels of a container."""

PROBE_SECONDS = 10.0
SHELL_SECONDS = 20.0
_MAX_HOSTNAME = 63
_PLANT = 'mkdir -p "${HOME:=/}" /tmp && : > "$HOME/$1" && : > "/tmp/$1"'
_HAS = '[ -e "${HOME:-}/$1" ] || [ -e "/tmp/$1" ] && echo yes || echo no'


class DockerSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the engine is, and what its containers are and may use. What is None is not bounded."""

    socket: str | None = None
    """The engine's Unix socket; else that of DOCKER_HOST, else /var/run/docker.sock."""

    command: tuple[str, ...] = ("sleep", "2147483647")
    """What runs all the time, below an init that buries the dead."""

    network: str = "none"
    """A network of the engine's, such as `bridge`."""

    user: str | None = None
    """Who runs it all; else whom the image names, else root."""

    memory_bytes: Annotated[int, Within(6 * 2**20, MAX_BYTES)] | None = None
    n_cpus: Annotated[float, Within(0, MAX_COUNT, above=True)] | None = None
    n_processes: PositiveCount | None = 1024
    """Processes and threads."""

    def __post_init__(self) -> None:
        check_bounds(self)


class Recipe(Struct, frozen=True, kw_only=True):
    """All that one container after the other is made from."""

    image: str
    settings: DockerSettings
    owner: str
    machine_id: str

    @property
    def name(self) -> str:
        return f"outrider-{_plain(self.machine_id)}-{secrets.token_hex(4)}"

    def asked(self) -> Mapping[str, Any]:
        settings = self.settings
        host: dict[str, Any] = {"Init": True, "NetworkMode": settings.network, "LogConfig": {"Type": "none"}}
        host |= {"SecurityOpt": ["no-new-privileges"], "PidsLimit": settings.n_processes}
        if settings.memory_bytes is not None:
            host |= {"Memory": settings.memory_bytes, "MemorySwap": settings.memory_bytes}
        if settings.n_cpus is not None:
            host |= {"NanoCpus": round(settings.n_cpus * 1e9)}
        return {
            "Image": self.image,
            "Entrypoint": [],
            "Cmd": list(settings.command),
            "User": settings.user or "",
            "Hostname": _plain(self.machine_id)[:_MAX_HOSTNAME],
            "Labels": {OWNER: self.owner, MACHINE: self.machine_id},
            "HostConfig": host,
        }


class DockerMachine:
    """One container, and the next one in its place after each reset."""

    def __init__(self, engine: Engine, recipe: Recipe, container: str) -> None:
        self.computer = DockerComputer(engine, container, recipe.machine_id)
        self._engine = engine
        self._recipe = recipe
        self._changing = asyncio.Lock()
        self._is_destroyed = False

    @property
    def address(self) -> Address:
        return address_of(self._recipe.machine_id, self.computer.container)

    async def reset(self) -> None:
        async with self._changing:
            if self._is_destroyed:
                raise MachineError(f"machine {self._recipe.machine_id} is destroyed", stage="machine.reset")
            await uninterrupted(self._replace())

    async def _replace(self) -> None:
        await remove(self._engine, self.computer.container)
        self.computer.container = await start(self._engine, self._recipe)

    async def probe(self) -> None:
        """A container whose first process stands still runs commands, but buries nobody."""
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                told = await self._shell("cat /proc/1/status")
        except TimeoutError as exc:
            raise MachineError(f"machine {self._recipe.machine_id} does not answer", stage="machine.probe") from exc
        state = re.search(r"^State:\s+(.*)$", told, re.MULTILINE)
        if state is None or state[1][0] in "TtZX":
            standing = state[1] if state else told
            message = f"the first process of machine {self._recipe.machine_id} does not run: {standing}"
            raise MachineError(message, stage="machine.probe")

    async def plant(self, marker: str) -> None:
        await self._shell(_PLANT, marker)

    async def has(self, marker: str) -> bool:
        return await self._shell(_HAS, marker) == "yes\n"

    async def wait_until_dead(self) -> str:
        while True:
            container = self.computer.container
            reason = await self._until_ended(container)
            async with self._changing:
                if container == self.computer.container:
                    return f"machine {self._recipe.machine_id}: {reason}"

    async def _until_ended(self, container: str) -> str:
        try:
            told = await self._engine.ask(
                "POST", f"/containers/{container}/wait", seconds=None, none_if=(NOT_FOUND, CONFLICT)
            )
        except MachineError as exc:
            return str(exc)
        return "its container is gone" if told is None else f"its container has ended with {told.get('StatusCode')}"

    async def destroy(self) -> None:
        async with self._changing:
            await uninterrupted(remove(self._engine, self.computer.container))
            self._is_destroyed = True

    async def _shell(self, script: str, *arguments: str) -> str:
        words = ("/bin/sh", "-c", script, "sh", *arguments)
        ended = await run(self._engine, self.computer.container, words, seconds=SHELL_SECONDS)
        stdout, stderr = (output.decode(errors="replace") for output in (ended.stdout, ended.stderr))
        if ended.returncode != 0:
            reason = stderr.strip() or f"ended with {ended.returncode}"
            raise MachineError(f"machine {self._recipe.machine_id}: {script}: {reason}", stage="machine.execute")
        return stdout


async def start(engine: Engine, recipe: Recipe) -> str:
    """A new container that runs, by its id. Nothing is left of one that cannot be started. Not to be interrupted."""
    asked = recipe.asked()
    made = await engine.ask(
        "POST", "/containers/create", params={"name": recipe.name}, json=asked, seconds=START_SECONDS
    )
    container = str(made["Id"])
    try:
        await engine.ask("POST", f"/containers/{container}/start", seconds=START_SECONDS)
    except MachineError:
        await remove(engine, container)
        raise
    return container


async def remove(engine: Engine, container: str) -> None:
    """End a container, whatever its state, with its files and volumes; none is left when this returns."""
    how = {"force": "1", "v": "1"}
    place = f"/containers/{container}"
    await engine.ask("DELETE", place, params=how, seconds=START_SECONDS, none_if=(NOT_FOUND, CONFLICT))
    gone = {"condition": "removed"}  # a conflict: somebody else is removing it
    await engine.ask("POST", f"{place}/wait", params=gone, seconds=START_SECONDS, none_if=(NOT_FOUND,))


def address_of(machine_id: str, container: str) -> Address:
    return {"machine_id": machine_id, "container": container}


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9-]", "-", name).strip("-") or "machine"
