"""Instances of a cloud that moto keeps the books of, with real local machines behind them."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from aws_stand_in import IMAGE, REGION, Cloud, guest_pid
from contract_machines.kinds import PROVIDERS, Stage


@contextmanager
def aws(folder: Path, cloud: Cloud) -> Iterator[Stage]:
    settings = {"region": REGION, "endpoint_url": cloud.url, "subnet_id": cloud.subnet_id, "probe_seconds": 3.0}
    with cloud.used(folder):
        source = f"{PROVIDERS}.aws:AwsProvider({IMAGE!r}, AwsSettings(**{settings!r}))"
        yield Stage(source, lambda machine: [guest_pid(machine.address["instance"])])
