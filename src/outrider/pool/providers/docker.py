"""Machines that are containers of a docker engine on this host; no container depends on the process that made it."""

from typing import Any
from urllib.parse import quote

import msgspec

from outrider.core.errors import InvalidInput, MachineError
from outrider.core.settings import settings_of
from outrider.core.tasks import uninterrupted
from outrider.pool.docker.container import (
    MACHINE,
    OWNER,
    DockerMachine,
    DockerSettings,
    Recipe,
    address_of,
    remove,
    start,
)
from outrider.pool.docker.engine import NOT_FOUND, Engine, socket_at
from outrider.pool.provider import Ability, Address
from outrider.pool.spec import MachineSpec, refuse

MIB = 2**20
IDLE_BYTES = 16 * MIB
"""What a container takes of memory when nothing runs in it, with the engine's process for it."""

_SUPPORT = {"memory_bytes": "MemoryLimit", "n_cpus": "CpuCfsQuota", "n_processes": "PidsLimit"}
"""Which of the engine's abilities a setting asks for."""


class DockerProvider:
    """Containers of one image, which the engine must have: nothing is ever fetched."""

    name = "docker"
    abilities = frozenset({Ability.COMMANDS})

    def __init__(self, image: str, settings: DockerSettings | None = None) -> None:
        self._image = image
        self._settings = settings or DockerSettings()
        self._engine = Engine(socket_at(self._settings.socket))

    async def check(self, n_machines: int) -> None:
        try:
            info = await self._engine.ask("GET", "/info")
            image = await self._engine.ask("GET", f"/images/{quote(self._image)}/json", none_if=(NOT_FOUND,))
        except MachineError as exc:
            raise InvalidInput(
                f"{exc}; install a docker engine (the package `docker.io`) and start it, run as a user who may use "
                "its socket (group `docker`), or set settings.socket or DOCKER_HOST"
            ) from exc
        if image is None:
            raise InvalidInput(
                f"the docker engine {self._engine.socket} has no image {self._image!r}, and none is fetched by itself; "
                f"get it with `docker pull {self._image}`, or make it with `docker import root.tar {self._image}`"
            )
        for setting, ability in _SUPPORT.items():
            if getattr(self._settings, setting) is not None and not info.get(ability, True):
                raise InvalidInput(f"this docker engine does not bound what {setting} does; set {setting} to null")
        self._check_memory(n_machines, int(info["MemTotal"]))

    def _check_memory(self, n_machines: int, total: int) -> None:
        each = self._settings.memory_bytes or IDLE_BYTES
        if n_machines * each > total:
            raise InvalidInput(
                f"{n_machines} containers of {each // MIB} MiB need {n_machines * each // MIB} MiB of memory, and the "
                f"docker engine has {total // MIB} MiB: {total // each} would fit"
            )

    async def create(self, machine_id: str, owner: str) -> DockerMachine:
        made: list[DockerMachine] = []
        try:
            # whoever hangs up on the engine does not know whether there is a container
            await uninterrupted(self._make(machine_id, owner, made))
        except BaseException:
            for machine in made:
                await machine.destroy()
            raise
        return made[0]

    async def _make(self, machine_id: str, owner: str, made: list[DockerMachine]) -> None:
        recipe = self._recipe(machine_id, owner)
        made.append(DockerMachine(self._engine, recipe, await start(self._engine, recipe)))

    async def adopt(self, machine_id: str, address: Address) -> DockerMachine | None:
        """As told; what is left of a machine that has died is removed."""
        place = f"/containers/{address.get('container')}/json"
        found = await self._engine.ask("GET", place, none_if=(NOT_FOUND,))
        if found is None or found["Config"]["Labels"].get(MACHINE) != machine_id:
            return None
        if not found["State"]["Running"]:
            await uninterrupted(remove(self._engine, found["Id"]))
            return None
        return DockerMachine(self._engine, self._recipe(machine_id, found["Config"]["Labels"][OWNER]), found["Id"])

    async def owned(self, owner: str) -> tuple[Address, ...]:
        """As told. Containers that have ended are among them, until somebody tries to adopt them."""
        labels = msgspec.json.encode({"label": [f"{OWNER}={owner}"]}).decode()
        found: list[dict[str, Any]] = await self._engine.ask(
            "GET", "/containers/json", params={"all": "1", "filters": labels}
        )
        return tuple(address_of(each["Labels"][MACHINE], each["Id"]) for each in found)

    async def close(self) -> None:
        await self._engine.close()

    def _recipe(self, machine_id: str, owner: str) -> Recipe:
        return Recipe(image=self._image, settings=self._settings, owner=owner, machine_id=machine_id)


def provider_of(spec: MachineSpec) -> DockerProvider:
    screen = "a container has no screen"
    refuse(spec, snapshot="a container starts anew from its image each time", width=screen, height=screen)
    if not spec.image:
        raise InvalidInput("provider docker needs an image that its engine has, such as debian:12: --path-to-vm NAME")
    return DockerProvider(spec.image, settings_of(DockerSettings, spec.settings, "settings of docker"))
