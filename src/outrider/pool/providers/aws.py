"""Machines that are instances of Amazon's EC2. They cost money until they are ended; see `max_minutes`."""

import logging

from outrider.core.errors import InvalidInput
from outrider.core.settings import settings_of
from outrider.pool.aws.ec2 import AwsError, Ec2
from outrider.pool.aws.launch import AwsSettings, Recipe
from outrider.pool.aws.machine import AwsMachine, address_of
from outrider.pool.osworld_protocol.machine import Endpoint
from outrider.pool.provider import Ability, Address
from outrider.pool.spec import MachineSpec, refuse

_log = logging.getLogger(__name__)

_CREDENTIALS = (
    "boto3 looks for credentials in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, in ~/.aws/credentials and "
    "~/.aws/config (AWS_PROFILE chooses), and in the role of the instance it runs on"
)
_PERMISSIONS = (
    "allow ec2:RunInstances, ec2:CreateTags, ec2:DescribeInstances, ec2:DescribeSubnets and ec2:TerminateInstances, "
    "with iam_instance_profile iam:PassRole as well"
)
_LIMIT = (
    "ask for fewer machines or a smaller instance_type, have the account's quota raised, or end what an earlier run "
    "has left: outrider pool gc"
)
_HINTS = {
    "AuthFailure": _CREDENTIALS,
    "InvalidClientTokenId": _CREDENTIALS,
    "NoCredentialsError": _CREDENTIALS,
    "PartialCredentialsError": _CREDENTIALS,
    "ProfileNotFound": _CREDENTIALS,
    "RequestExpired": "set this host's clock, or renew the credentials",
    "NoRegionError": "set settings.region, AWS_DEFAULT_REGION, or the region in ~/.aws/config",
    "EndpointConnectionError": "look whether the region is right, and whether this host reaches it",
    "UnauthorizedOperation": _PERMISSIONS,
    "InvalidAMIID.Malformed": "give the id of an AMI of this region, such as ami-0123456789abcdef0",
    "InvalidAMIID.NotFound": "AMIs belong to a region: copy it into this one, or set settings.region to its own",
    "InstanceLimitExceeded": _LIMIT,
    "VcpuLimitExceeded": _LIMIT,
    "InsufficientInstanceCapacity": "take another instance_type, or a subnet in another zone",
}


class AwsProvider:
    """Instances of one AMI."""

    name = "aws"
    abilities = frozenset({Ability.SCREEN, Ability.COMMANDS, Ability.TREE, Ability.TERMINAL})

    def __init__(self, image: str, settings: AwsSettings | None = None, *, wish: tuple[int | None, ...] = ()) -> None:
        """`wish` is a size of the screen: an image that has another is used as it is, and the log says so."""
        self._wish = wish
        self._recipe = Recipe(image=image, settings=settings or AwsSettings())
        self._ec2 = Ec2(self._recipe.settings)

    async def check(self, n_machines: int) -> None:
        """By a dry run, which starts nothing. AWS may still refuse later: it tells quotas and capacity at a launch."""
        subnet_id = self._recipe.settings.subnet_id
        try:
            await self._ec2.rehearse(self._recipe, n_machines)
            n_free = n_machines if subnet_id is None else await self._ec2.n_free_addresses(subnet_id)
        except AwsError as exc:
            hint = _HINTS.get(exc.code)
            message = f"{n_machines} instances of {self._recipe.image} cannot be had: {exc}"
            raise InvalidInput(f"{message}; {hint}" if hint else message) from exc
        if n_machines > n_free:
            raise InvalidInput(
                f"{n_machines} machines need an address each, and subnet {subnet_id} has {n_free} free; ask for fewer, "
                "set subnet_id to a larger one, or end what an earlier run has left: outrider pool gc"
            )

    async def create(self, machine_id: str, owner: str) -> AwsMachine:
        machine = AwsMachine(self._ec2, self._recipe_for(machine_id, owner))
        try:
            await machine.launch()
        except BaseException:
            await machine.let_go()
            raise
        size = machine.computer.screen_size
        if any(wish not in {None, found} for wish, found in zip(self._wish, size, strict=False)):
            _log.warning("the screen of %s is %d x %d, whatever was asked for", self._recipe.image, *size)
        return machine

    async def adopt(self, machine_id: str, address: Address) -> AwsMachine | None:
        """As told; one that is stopped or does not answer as well, so that it can be reset or ended."""
        found = await self._ec2.describe(str(address.get("instance")))
        if found is None or not found.is_alive or found.machine_id != machine_id:
            return None
        machine = AwsMachine(self._ec2, self._recipe_for(machine_id, found.owner), found)
        try:
            await machine.take_over()
        except BaseException:
            await machine.let_go()
            raise
        return machine

    async def owned(self, owner: str) -> tuple[Address, ...]:
        """As told, but of the region, not of this host."""
        port = self._recipe.settings.port
        return tuple(
            address_of(found.machine_id, found.instance_id, Endpoint(found.host, port))
            for found in await self._ec2.owned(owner)
        )

    async def close(self) -> None:
        await self._ec2.close()

    def _recipe_for(self, machine_id: str, owner: str) -> Recipe:
        return Recipe(image=self._recipe.image, settings=self._recipe.settings, owner=owner, machine_id=machine_id)


def provider_of(spec: MachineSpec) -> AwsProvider:
    refuse(spec, snapshot="an AMI is the snapshot: give the id of another one as the image")
    if spec.headless is False:
        refuse(spec, headless="an instance opens no window on this host")
    if not spec.image:
        raise InvalidInput("provider aws needs the id of an AMI, such as ami-0123456789abcdef0: --path-to-vm ID")
    settings = settings_of(AwsSettings, spec.settings, "settings of aws")
    return AwsProvider(spec.image, settings, wish=(spec.width, spec.height))
