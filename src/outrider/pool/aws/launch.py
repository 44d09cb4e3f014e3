"""What an instance is launched with."""

from typing import Any

from msgspec import Struct

from outrider.core.bounds import Port, PositiveCount, PositiveSeconds, check_bounds
from outrider.pool.osworld_protocol.client import DEFAULT_PORT
from outrider.pool.osworld_protocol.machine import PROBE_SECONDS

OWNER = "outrider-owner"
MACHINE = "outrider-machine"
LAUNCH = "outrider-launch"
MAX_MINUTES = "outrider-max-minutes"


class AwsSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where instances run, what they are, and how long things may take. Credentials are left to boto3."""

    region: str | None = None
    """None: as boto3 finds it."""

    instance_type: str = "t3.xlarge"
    subnet_id: str | None = None
    security_group_ids: tuple[str, ...] = ()
    """They must let this host reach the port, and nobody else: who reaches it may do anything in the machine."""

    key_name: str | None = None
    iam_instance_profile: str | None = None
    """A name or an ARN. Whoever uses the machine may do what it allows."""

    use_public_address: bool = False
    """Whether instances are given a public address and are reached there; else at their private one."""

    port: Port = DEFAULT_PORT
    """Where OSWorld's server answers in the instance."""

    max_minutes: PositiveCount = 360
    """An instance shuts itself down and is terminated so long after its start, whoever has died."""

    boot_seconds: PositiveSeconds = 240.0
    """How long an instance may take, from its launch, until its server answers."""

    probe_seconds: PositiveSeconds = PROBE_SECONDS
    endpoint_url: str | None = None
    """Of a cloud that speaks EC2's API; None: Amazon's."""

    def __post_init__(self) -> None:
        check_bounds(self)


class Recipe(Struct, frozen=True, kw_only=True):
    """What the instances of a machine are made of, one after the other."""

    image: str
    settings: AwsSettings
    owner: str = ""
    machine_id: str = ""

    def arguments(self, token: str) -> dict[str, Any]:
        """Of RunInstances, but for how many. By the token, AWS and we know a launch whose answer was lost."""
        settings = self.settings
        tags = {
            "Name": f"outrider {self.machine_id}",
            OWNER: self.owner,
            MACHINE: self.machine_id,
            LAUNCH: token,
            MAX_MINUTES: str(settings.max_minutes),
        }
        return {
            "ImageId": self.image,
            "InstanceType": settings.instance_type,
            "ClientToken": token,
            "InstanceInitiatedShutdownBehavior": "terminate",
            "UserData": f"#!/bin/sh\nshutdown -h +{settings.max_minutes}\n",
            "TagSpecifications": [
                {"ResourceType": "instance", "Tags": [{"Key": key, "Value": value} for key, value in tags.items()]}
            ],
            **_network(settings),
            **({"KeyName": settings.key_name} if settings.key_name else {}),
            **(
                {"IamInstanceProfile": _profile(settings.iam_instance_profile)} if settings.iam_instance_profile else {}
            ),
        }


def _network(settings: AwsSettings) -> dict[str, Any]:
    subnet = {"SubnetId": settings.subnet_id} if settings.subnet_id else {}
    groups = list(settings.security_group_ids)
    if settings.use_public_address:
        interface = {"DeviceIndex": 0, "AssociatePublicIpAddress": True, **subnet}
        return {"NetworkInterfaces": [interface | ({"Groups": groups} if groups else {})]}
    return {**subnet, **({"SecurityGroupIds": groups} if groups else {})}


def _profile(profile: str) -> dict[str, str]:
    return {"Arn" if profile.startswith("arn:") else "Name": profile}
