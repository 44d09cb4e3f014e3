"""Instances of EC2, with moto for the control plane and local machines behind it: what holds of them alone."""

import asyncio
import os
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from aws_stand_in import IMAGE, REGION, Cloud
from hypervisor_stand_ins.machines import running
from leaks import no_leaks
from outrider.core.errors import InvalidInput, MachineError
from outrider.pool.aws import ec2
from outrider.pool.aws.launch import AwsSettings, Recipe
from outrider.pool.config import PoolConfig
from outrider.pool.pool import MachinePool
from outrider.pool.providers.aws import AwsProvider
from outrider.pool.registry import provider_of
from outrider.pool.spec import MachineSpec
from outrider.testing import eventually
from processes import program

US = f"aws-{os.getpid()}"
THROTTLED = {"code": "RequestLimitExceeded", "status": 503}
OWNER_PROGRAM = """
import asyncio, sys
from outrider.pool.providers.aws import AwsProvider, AwsSettings

image, region, url, owner = sys.argv[1:]
asyncio.run(AwsProvider(image, AwsSettings(region=region, endpoint_url=url)).create("m-1", owner))
"""

Providers = Callable[..., AwsProvider]


@pytest.fixture
async def cloud(aws_cloud: Cloud) -> AsyncIterator[Cloud]:
    with tempfile.TemporaryDirectory(prefix="om-") as folder, aws_cloud.used(Path(folder)):
        yield aws_cloud
        assert running() == []


@pytest.fixture
async def providers(cloud: Cloud) -> AsyncIterator[Providers]:
    """Makes a provider with these settings."""
    made: list[AwsProvider] = []

    def make(*, spec: dict[str, Any] | None = None, **settings: Any) -> AwsProvider:
        settings = {"region": REGION, "endpoint_url": cloud.url, **settings}
        provider = provider_of(MachineSpec(**{"provider": "aws", "image": IMAGE, "settings": settings, **(spec or {})}))
        made.append(provider)
        return provider

    async with no_leaks():
        yield make
        for provider in made:
            await provider.close()


async def of_aws(provider: AwsProvider, operation: str, **arguments: Any) -> Any:
    """A call of somebody else."""
    return await provider._ec2._call(operation, **arguments)


async def test_an_instance_is_launched_as_told_and_ends_by_itself_if_nobody_ends_it(providers, cloud, caplog):
    settings = {"instance_type": "t3.large", "subnet_id": cloud.subnet_id, "max_minutes": 7, "use_public_address": True}
    provider = providers(spec={"width": 1280, "height": 720}, **settings)
    machine = await provider.create("m-1", US)
    assert "is 0 x 0, whatever was asked for" in caplog.text
    instance_id = machine.address["instance"]
    answer = await of_aws(provider, "describe_instances", InstanceIds=[instance_id])
    (told,) = answer["Reservations"][0]["Instances"]
    assert (told["ImageId"], told["InstanceType"], told["SubnetId"]) == (IMAGE, "t3.large", cloud.subnet_id)
    assert told["PublicIpAddress"] == machine.address["host"]
    tags = {tag["Key"]: tag["Value"] for tag in told["Tags"]}
    assert tags.pop("outrider-launch") == told["ClientToken"]
    expected = {"outrider-owner": US, "outrider-machine": "m-1", "outrider-max-minutes": "7", "Name": "outrider m-1"}
    assert tags == expected
    attribute = "instanceInitiatedShutdownBehavior"
    asked = {"InstanceId": instance_id, "Attribute": attribute}
    found = await of_aws(provider, "describe_instance_attribute", **asked)
    assert found["InstanceInitiatedShutdownBehavior"]["Value"] == "terminate"
    await machine.destroy()
    assert await provider.owned(US) == ()


def test_a_launch_says_what_the_settings_say():
    settings = AwsSettings(
        subnet_id="subnet-1", security_group_ids=("sg-1",), key_name="key", iam_instance_profile="arn:aws:iam::1:p"
    )
    asked = Recipe(image=IMAGE, settings=settings).arguments("token")
    assert (asked["SubnetId"], asked["SecurityGroupIds"], asked["KeyName"]) == ("subnet-1", ["sg-1"], "key")
    assert (asked["IamInstanceProfile"], asked["ClientToken"]) == ({"Arn": "arn:aws:iam::1:p"}, "token")
    assert asked["UserData"] == "#!/bin/sh\nshutdown -h +360\n"
    assert asked["InstanceInitiatedShutdownBehavior"] == "terminate"
    public = Recipe(image=IMAGE, settings=AwsSettings(use_public_address=True, security_group_ids=("sg-1",)))
    interface = {"DeviceIndex": 0, "AssociatePublicIpAddress": True, "Groups": ["sg-1"]}
    assert public.arguments("token")["NetworkInterfaces"] == [interface]


async def test_a_reset_ends_the_instance_before_it_launches_another(providers, cloud):
    machine = await providers().create("m-1", US)
    old = dict(machine.address)
    await machine.computer.write_file("/tmp/mine", b"mine")
    cloud.tell(quota=1)
    await machine.reset()
    assert machine.address["instance"] != old["instance"]
    assert running() == [machine.address["instance"]]
    assert await machine.computer.read_file("/tmp/mine") is None
    assert await providers().adopt("m-1", old) is None
    await machine.destroy()
    with pytest.raises(MachineError, match="is destroyed"):
        await machine.reset()


async def test_a_reset_for_which_there_is_no_instance_any_more_fails_and_leaves_nothing(providers, cloud):
    machine = await providers().create("m-1", US)
    cloud.tell(faults=[{"action": "RunInstances", "code": "InsufficientInstanceCapacity"}])
    with pytest.raises(MachineError, match="InsufficientInstanceCapacity"):
        await machine.reset()
    assert running() == []
    await machine.destroy()


async def test_an_instance_that_somebody_else_terminates_is_dead_at_once(providers):
    provider = providers()
    machine = await provider.create("m-1", US)
    instance_id = machine.address["instance"]
    waiting = asyncio.create_task(machine.wait_until_dead())
    await machine.probe()
    await of_aws(provider, "terminate_instances", InstanceIds=[instance_id])
    async with asyncio.timeout(30):
        assert f"{instance_id} is terminated" in await waiting
    await machine.destroy()


async def test_calls_that_are_throttled_are_repeated(providers, cloud):
    actions = ("RunInstances", "DescribeInstances", "TerminateInstances")
    cloud.tell(faults=[{"action": action, **THROTTLED} for action in actions])
    machine = await providers().create("m-1", US)
    await machine.probe()
    await machine.destroy()


async def test_a_launch_whose_answer_is_lost_is_not_made_twice(providers, cloud):
    provider = providers()
    cloud.tell(faults=[{"action": "RunInstances", "code": "Unavailable", "status": 503, "after": True}])
    machine = await provider.create("m-1", US)
    assert [address["instance"] for address in await provider.owned(US)] == running() == [machine.address["instance"]]
    await machine.destroy()


async def test_a_launch_that_is_never_answered_is_found_and_terminated(providers, cloud, monkeypatch):
    monkeypatch.setattr(ec2, "N_ATTEMPTS", 2)
    cloud.tell(faults=[{"action": "RunInstances", "code": "Unavailable", "status": 503, "after": True, "times": 2}])
    with pytest.raises(MachineError, match="Unavailable"):
        await providers().create("m-1", US)
    assert running() == []


async def test_a_new_instance_that_aws_does_not_know_yet_is_terminated_when_it_does(providers, cloud):
    unknown = {"action": "TerminateInstances", "code": "InvalidInstanceID.NotFound"}
    cloud.tell(no_boot="pending", faults=[unknown])
    creating = asyncio.create_task(providers().create("m-1", US))

    async def launched() -> bool:
        return bool(running())

    await eventually(launched)
    creating.cancel()
    with pytest.raises(asyncio.CancelledError):
        await creating
    assert running() == []


async def test_an_instance_that_cannot_be_terminated_after_a_cancelled_creation_is_told_of(providers, cloud, caplog):
    provider = providers()
    cloud.tell(no_boot="pending", faults=[{"action": "TerminateInstances", "code": "UnauthorizedOperation"}])
    creating = asyncio.create_task(provider.create("m-1", US))

    async def launched() -> bool:
        return bool(running())

    await eventually(launched)
    creating.cancel()
    with pytest.raises(asyncio.CancelledError):
        await creating
    (left,) = await provider.owned(US)
    assert f"instance {left['instance']} is left" in caplog.text
    machine = await provider.adopt("m-1", left)
    assert "no address" in await machine.wait_until_dead()
    await machine.destroy()


@pytest.mark.parametrize(
    ("no_boot", "message"),
    [("pending", "did not run at an address within 5 s: .* is pending"), ("deaf", "security groups .* port 5000")],
)
async def test_an_instance_that_never_answers_is_terminated(providers, cloud, no_boot, message):
    cloud.tell(no_boot=no_boot)
    with pytest.raises(MachineError, match=f"i-[0-9a-f]+ was terminated: .*{message}"):
        await providers(boot_seconds=5.0).create("m-1", US)
    assert running() == []


async def test_an_instance_that_ends_while_it_boots_is_not_waited_for(providers, cloud):
    provider = providers()
    cloud.tell(no_boot="pending")
    creating = asyncio.create_task(provider.create("m-1", US))

    async def launched() -> bool:
        return bool(await provider.owned(US))

    await eventually(launched)
    (left,) = await provider.owned(US)
    await of_aws(provider, "terminate_instances", InstanceIds=[left["instance"]])
    async with asyncio.timeout(20):
        with pytest.raises(MachineError, match="is terminated"):
            await creating


async def test_what_a_killed_owner_was_about_to_launch_is_ended_at_the_next_start(providers, cloud):
    cloud.tell(no_boot="pending")
    with program(OWNER_PROGRAM, IMAGE, REGION, cloud.url, US) as owner:

        async def launched() -> bool:
            return bool(running())

        await eventually(launched, within_seconds=20)
        owner.kill()
        owner.wait()
    (left,) = running()
    cloud.tell(quota=1)
    pool = MachinePool(providers(), PoolConfig(name=US, n_machines=1))
    async with asyncio.timeout(60), pool, pool.acquire(deadline=30) as lease:
        assert running() == [lease.address["instance"]] != [left]
        assert (await lease.computer.execute("echo here")).stdout == "here\n"


async def test_all_instances_of_an_owner_are_found_however_many_pages_they_fill(providers, cloud, monkeypatch):
    monkeypatch.setattr(ec2, "PAGE", 1)
    provider = providers()
    machines = await asyncio.gather(*(provider.create(f"m-{number}", US) for number in range(3)))
    assert {address["machine_id"] for address in await provider.owned(US)} == {"m-0", "m-1", "m-2"}
    await asyncio.gather(*(machine.destroy() for machine in machines))


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        ("UnauthorizedOperation", "allow ec2:RunInstances"),
        ("InvalidAMIID.NotFound", "copy it into this one"),
        ("VcpuLimitExceeded", "quota raised"),
        ("AuthFailure", "AWS_ACCESS_KEY_ID"),
        ("InvalidKeyPair.NotFound", "InvalidKeyPair.NotFound it is"),
    ],
)
async def test_what_aws_would_refuse_is_told_beforehand_with_what_to_do(providers, cloud, code, advice):
    cloud.tell(faults=[{"action": "RunInstances", "code": code}])
    with pytest.raises(InvalidInput, match=f"2 instances of {IMAGE} .*{advice}"):
        await providers().check(2)


async def test_more_machines_than_the_subnet_has_addresses_are_refused(providers, cloud):
    with pytest.raises(InvalidInput, match=f"5000 machines .* subnet {cloud.subnet_id} has 40.. free"):
        await providers(subnet_id=cloud.subnet_id).check(5000)


async def test_missing_credentials_region_and_library_are_named(providers, monkeypatch):
    with pytest.raises(InvalidInput, match="AWS_DEFAULT_REGION"):
        await providers(region=None).check(1)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(InvalidInput, match="AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"):
        await providers().check(1)
    monkeypatch.setitem(sys.modules, "botocore.exceptions", None)
    with pytest.raises(InvalidInput, match=r"pip install -e \S+\[aws\]"):
        await providers().check(1)


async def test_a_cloud_that_is_not_there_is_named(providers, monkeypatch):
    monkeypatch.setattr(ec2, "N_ATTEMPTS", 1)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
    for wrong in (url, "no address"):
        with pytest.raises(InvalidInput, match=wrong):
            await providers(endpoint_url=wrong).check(1)


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"snapshot": "clean"}, "an AMI is the snapshot"),
        ({"headless": False}, "opens no window"),
        ({"image": None}, "needs the id of an AMI"),
        ({"settings": {"instance": "t3.large"}}, "did you mean instance_type"),
        ({"settings": {"max_minutes": 0}}, "1 or more"),
        ({"settings": {"port": 70000}}, "port is 70000"),
    ],
)
def test_what_cannot_be_followed_is_refused(spec, reason):
    with pytest.raises(InvalidInput, match=reason):
        provider_of(MachineSpec(**{"provider": "aws", "image": IMAGE, **spec}))
