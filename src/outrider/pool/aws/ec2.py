"""EC2's API by boto3, whose calls block: each runs in a thread, and botocore bounds and repeats it.

Invariants:
- An instance has its owner's tags from its first moment, so that it is found whoever launched it.
- A launch that failed, or that nobody waits for any more, leaves no instance; where AWS cannot be reached to end it,
  the log tells of it, the next start of the pool finds it, and it ends by itself after `max_minutes`.
"""

import asyncio
import logging
import secrets
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Any

from msgspec import Struct

from outrider.core.errors import InvalidInput, MachineError
from outrider.core.extras import install_command
from outrider.core.tasks import uninterrupted
from outrider.core.variables import variable
from outrider.pool.aws.launch import LAUNCH, MACHINE, OWNER, AwsSettings, Recipe

_log = logging.getLogger(__name__)

N_THREADS = 8
CONNECT_SECONDS = 5
READ_SECONDS = 20
MOST_SAID = 1000
PAGE = 1000
N_ATTEMPTS = 4
ALIVE = ("pending", "running", "stopping", "stopped")
UNKNOWN_INSTANCE = "InvalidInstanceID.NotFound"
NEW_PAUSES = (0.0, 0.5, 1.0, 2.0, 4.0)
"""An instance that was just launched may be unknown to other calls for a moment."""


class AwsError(MachineError):
    """A call that failed. `code` is AWS's word for it, or the name of botocore's exception if there was no answer."""

    def __init__(self, operation: str, code: str, reason: str) -> None:
        super().__init__(f"AWS, {operation}: {reason[:MOST_SAID]}", stage=f"machine.{operation}")
        self.code = code


class Instance(Struct, frozen=True, kw_only=True):
    """What EC2 tells of an instance. `host` is empty while it has no address."""

    instance_id: str
    state: str
    reason: str
    host: str
    owner: str
    machine_id: str

    @property
    def is_alive(self) -> bool:
        return self.state in ALIVE

    def __str__(self) -> str:
        return f"{self.instance_id} is {self.state}{f' ({self.reason})' if self.reason else ''}"


class Ec2:
    """What is needed of the API. Raises `AwsError`."""

    def __init__(self, settings: AwsSettings) -> None:
        self._settings = settings
        self._threads = ThreadPoolExecutor(N_THREADS, thread_name_prefix="outrider-aws")
        self._opening = threading.Lock()
        self._client: Any = None

    async def launch(self, recipe: Recipe) -> str:
        """Its id. If this is cancelled, what was launched is terminated."""
        launched: list[str] = []
        try:
            await uninterrupted(self._launch(recipe, launched))
        except asyncio.CancelledError:
            for instance_id in launched:
                await self.discard(instance_id)
            raise
        return launched[0]

    async def _launch(self, recipe: Recipe, launched: list[str]) -> None:
        token = secrets.token_hex(16)
        try:
            made = await self._call("run_instances", **recipe.arguments(token), MinCount=1, MaxCount=1)
        except AwsError:
            try:
                for left in await self._tagged(LAUNCH, token):
                    await self.terminate(left.instance_id)
            except AwsError as found:
                _log.warning("whether an instance with the tag %s=%s is left is not known: %s", LAUNCH, token, found)
            raise
        launched.append(made["Instances"][0]["InstanceId"])

    async def rehearse(self, recipe: Recipe, n_instances: int) -> None:
        """Raise `AwsError` unless so many could be launched, as far as AWS tells beforehand."""
        try:
            asked = recipe.arguments(secrets.token_hex(16))
            await self._call("run_instances", **asked, MinCount=n_instances, MaxCount=n_instances, DryRun=True)
        except AwsError as exc:
            if exc.code != "DryRunOperation":
                raise

    async def describe(self, instance_id: str) -> Instance | None:
        """None: there is none, or none yet."""
        try:
            answer = await self._call("describe_instances", InstanceIds=[instance_id])
        except AwsError as exc:
            if exc.code == UNKNOWN_INSTANCE:
                return None
            raise
        return next(self._instances(answer), None)

    async def owned(self, owner: str) -> tuple[Instance, ...]:
        """All of this owner that are not ended."""
        return await self._tagged(OWNER, owner)

    async def _tagged(self, tag: str, value: str) -> tuple[Instance, ...]:
        filters = {f"tag:{tag}": [value], "instance-state-name": list(ALIVE)}
        listed = [{"Name": name, "Values": values} for name, values in filters.items()]
        asked = {"Filters": listed, "MaxResults": PAGE}
        answers = [await self._call("describe_instances", **asked)]
        while token := answers[-1].get("NextToken"):
            answers.append(await self._call("describe_instances", **asked, NextToken=token))
        return tuple(chain.from_iterable(map(self._instances, answers)))

    async def terminate(self, instance_id: str) -> bool:
        """Returns when AWS has taken the order; False: it knows no such instance, or none any more."""
        try:
            await self._call("terminate_instances", InstanceIds=[instance_id])
        except AwsError as exc:
            if exc.code == UNKNOWN_INSTANCE:
                return False
            raise
        return True

    async def discard(self, instance_id: str) -> str:
        """Terminate one that was just launched and is of no use; what came of it. Not to be interrupted."""
        try:
            await uninterrupted(self._terminate_new(instance_id))
        except AwsError as exc:
            _log.warning("instance %s is left, and was not to be: %s", instance_id, exc)
            return f"instance {instance_id} could not be terminated"
        return f"instance {instance_id} was terminated"

    async def _terminate_new(self, instance_id: str) -> None:
        for pause in NEW_PAUSES:
            await asyncio.sleep(pause)
            if await self.terminate(instance_id):
                return

    async def n_free_addresses(self, subnet_id: str) -> int:
        answer = await self._call("describe_subnets", SubnetIds=[subnet_id])
        return int(answer["Subnets"][0]["AvailableIpAddressCount"])

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        if self._client is not None:
            self._client.close()

    async def _call(self, operation: str, **arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._blocking, operation, arguments)

    def _blocking(self, operation: str, arguments: Mapping[str, Any]) -> Any:
        try:
            from botocore.exceptions import BotoCoreError, ClientError  # type: ignore[import-untyped] # noqa: PLC0415
        except ImportError as exc:
            raise InvalidInput(f"machines on AWS need: {install_command('aws')}") from exc
        try:
            with self._opening:
                if self._client is None:
                    self._client = _client(self._settings)
            return getattr(self._client, operation)(**arguments)
        except ClientError as exc:
            error = exc.response.get("Error", {})
            raise AwsError(operation, str(error.get("Code")), str(exc)) from exc
        except (BotoCoreError, ValueError) as exc:  # a wrong endpoint_url is a ValueError
            raise AwsError(operation, type(exc).__name__, str(exc)) from exc

    def _instances(self, answer: Mapping[str, Any]) -> Iterator[Instance]:
        address = "PublicIpAddress" if self._settings.use_public_address else "PrivateIpAddress"
        for told in chain.from_iterable(reservation["Instances"] for reservation in answer["Reservations"]):
            tags = {tag["Key"]: tag["Value"] for tag in told.get("Tags", ())}
            yield Instance(
                instance_id=told["InstanceId"],
                state=told["State"]["Name"],
                reason=told.get("StateReason", {}).get("Message", ""),
                host=told.get(address) or "",
                owner=tags.get(OWNER, ""),
                machine_id=tags.get(MACHINE, ""),
            )


def _client(settings: AwsSettings) -> Any:
    import boto3  # type: ignore[import-untyped] # noqa: PLC0415 an extra, and slow to import
    from botocore.config import Config  # type: ignore[import-untyped] # noqa: PLC0415

    config = Config(
        connect_timeout=CONNECT_SECONDS,
        read_timeout=READ_SECONDS,
        retries={"mode": "adaptive", "total_max_attempts": N_ATTEMPTS},
        max_pool_connections=N_THREADS,
    )
    session = boto3.session.Session(region_name=settings.region, **_credentials())
    return session.client("ec2", endpoint_url=settings.endpoint_url, config=config)


def _credentials() -> dict[str, str | None]:
    """Those in the environment, which boto3 itself does not find where they are withheld from agents."""
    key, secret = variable("AWS_ACCESS_KEY_ID"), variable("AWS_SECRET_ACCESS_KEY")
    if not (key and secret):
        return {}
    token = variable("AWS_SESSION_TOKEN")
    return {"aws_access_key_id": key, "aws_secret_access_key": secret, "aws_session_token": token}
