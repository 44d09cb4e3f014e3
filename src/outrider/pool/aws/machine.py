"""A machine that is an instance of EC2 and is reached by OSWorld's protocol; each reset gives it another instance."""

import asyncio
from contextlib import suppress

from outrider.core.errors import MachineError
from outrider.pool.aws.ec2 import Ec2, Instance
from outrider.pool.aws.launch import Recipe
from outrider.pool.osworld_protocol.machine import Endpoint, OsworldMachine
from outrider.pool.provider import Address

FIRST_PAUSE_SECONDS = 0.25
MAX_PAUSE_SECONDS = 5.0
PAUSE_GROWTH = 1.5
ASK_SECONDS = 5.0


class AwsMachine(OsworldMachine):
    """Has no instance until `launch`, unless it is given one."""

    def __init__(self, ec2: Ec2, recipe: Recipe, instance: Instance | None = None) -> None:
        host = instance.host if instance else ""
        super().__init__(Endpoint(host, recipe.settings.port), probe_seconds=recipe.settings.probe_seconds)
        self._instance_id = instance.instance_id if instance else ""
        self._ec2 = ec2
        self._recipe = recipe
        self._is_destroyed = False

    @property
    def address(self) -> Address:
        return address_of(self._recipe.machine_id, self._instance_id, self.endpoint)

    async def launch(self) -> None:
        """Return when its server answers. An instance that does not come to that is terminated."""
        instance_id = await self._ec2.launch(self._recipe)
        try:
            await self._boot(instance_id)
        except BaseException as exc:
            ended = await self._ec2.discard(instance_id)
            if isinstance(exc, MachineError):
                raise MachineError(f"{ended}: {exc}", stage="machine.boot") from exc
            raise
        self._instance_id = instance_id

    async def take_over(self) -> None:
        """For an instance that was found. One that does not answer is left to its next reset."""
        with suppress(MachineError, TimeoutError):
            async with asyncio.timeout(self._recipe.settings.probe_seconds):
                await self.connect()

    async def reset(self) -> None:
        async with self.changing:
            if self._is_destroyed:
                raise MachineError(f"instance {self._instance_id} is destroyed", stage="machine.reset")
            await self.move(self.endpoint)
            await self._ec2.terminate(self._instance_id)
            await self.launch()

    async def wait_until_dead(self) -> str:
        """As told; with what AWS says of it, if it does so in time."""
        reason = await super().wait_until_dead()
        with suppress(MachineError, TimeoutError):
            async with asyncio.timeout(ASK_SECONDS):
                found = await self._ec2.describe(self._instance_id)
                return f"{reason}; {found or f'{self._instance_id} is unknown to AWS'}"
        return f"{reason} ({self._instance_id})"

    async def destroy(self) -> None:
        await self.let_go()
        async with self.changing:
            if not self._is_destroyed:
                await self._ec2.terminate(self._instance_id)
                self._is_destroyed = True

    async def _boot(self, instance_id: str) -> None:
        seconds, port = self._recipe.settings.boot_seconds, self._recipe.settings.port
        end = asyncio.get_running_loop().time() + seconds
        said = ["AWS does not know it yet"]
        try:
            async with asyncio.timeout_at(end):
                await self.move(Endpoint(await self._host(instance_id, said), port))
        except TimeoutError as exc:
            message = f"it did not run at an address within {seconds:g} s: {said[-1]}"
            raise MachineError(message, stage="machine.boot") from exc
        try:
            await self.answering(end - asyncio.get_running_loop().time())
        except MachineError as exc:
            message = (
                f"no answer within {seconds:g} s of its launch: {exc}; look whether its image starts OSWorld's server, "
                f"and whether its security groups and routes let this host reach port {port}"
            )
            raise MachineError(message, stage="machine.boot") from exc

    async def _host(self, instance_id: str, said: list[str]) -> str:
        """Where it is, once it runs: EC2 tells that only to those who ask again and again."""
        pause = FIRST_PAUSE_SECONDS
        while True:
            found = await self._ec2.describe(instance_id)
            if found is not None:
                if found.state == "running" and found.host:
                    return found.host
                if found.state not in {"pending", "running"}:
                    raise MachineError(str(found), stage="machine.boot")
                said.append(f"{found} and has {found.host or 'no address of the kind that is to be used'}")
            await asyncio.sleep(pause)
            pause = min(pause * PAUSE_GROWTH, MAX_PAUSE_SECONDS)


def address_of(machine_id: str, instance_id: str, endpoint: Endpoint) -> Address:
    return {"machine_id": machine_id, "instance": instance_id, "host": endpoint.host, "port": endpoint.port}
