"""Containers of a real engine that this test process has started."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from contract_machines.kinds import PROVIDERS, US, Stage
from docker_engine import IMAGE, DockerEngine


@contextmanager
def docker(_: Path, engine: DockerEngine) -> Iterator[Stage]:
    settings = f"DockerSettings(socket={str(engine.socket)!r}, memory_bytes=64 * MIB)"
    source = f"{PROVIDERS}.docker:DockerProvider({IMAGE!r}, {settings})"
    try:
        yield Stage(source, lambda machine: [engine.first_process(machine.address["container"])])
    finally:
        engine.remove_containers(US)
