"""The kinds of machines the contract is tried on: how each is set up, and what it can do."""

import os
import select
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from processes import line, tell

MAKING = """
def made(source):
    module, expression = source.split(":", 1)
    names = {}
    exec(f"from pathlib import Path; from {module} import *", names)
    return eval(expression, names)
"""
"""How a provider is made from its source, `module:expression`, in this process or another."""

PROVIDERS = "outrider.pool.providers"
N_SERVED = 2
END_SECONDS = 20

Nursery = subprocess.Popen[str]
"""Forks processes that serve machines."""

US = f"us-{os.getpid()}"
"""Whose the machines are: another process that runs these tests has its own."""


class Stage(NamedTuple):
    """A provider that can be made in any process by this expression, and what its machines consist of."""

    source: str
    parts: Callable[[Any], list[int]]
    """The processes without which a machine is dead."""

    @property
    def provider(self) -> Any:
        return made(self.source)


class Kind(NamedTuple):
    """`set_up` is given a short, empty folder, which is empty again when it is over."""

    set_up: Callable[[Path, Any], AbstractContextManager[Stage]]
    has_screen: bool
    outlives_owner: bool
    """Whether a machine can be adopted when its owner has died; else it ends with it."""

    has_commands: bool = True
    """Whether it runs programs and has files."""

    fixture: str = "nursery"
    """What `set_up` is given beside the folder: it lasts longer than a test."""


def made(source: str) -> Any:
    names: dict[str, Any] = {}
    exec(MAKING, names)
    return names["made"](source)


def _first_process(machine: Any) -> list[int]:
    return [machine.address["pid"]]


def local(expression: str) -> Callable[[Path, Nursery], AbstractContextManager[Stage]]:
    """Machines on this host whose address tells their first process; FOLDER stands for one of their own."""

    @contextmanager
    def set_up(folder: Path, _: Nursery) -> Iterator[Stage]:
        place = f"Path({str(folder / 'machines')!r})"
        yield Stage(f"{PROVIDERS}.{expression.replace('FOLDER', place)}", _first_process)

    return set_up


@contextmanager
def attach(folder: Path, nursery: Nursery) -> Iterator[Stage]:
    for number in range(N_SERVED):
        tell(nursery, f"{folder / 'machines'} m{number}")
    pids = dict(tuple(map(int, line(nursery).split())) for _ in range(N_SERVED))
    machines = tuple(f"127.0.0.1:{port}" for port in pids)
    settings = f"AttachSettings(machines={machines}, reset_url='http://{{host}}:{{port}}/reset', probe_seconds=3)"
    try:
        source = f"{PROVIDERS}.attach:AttachProvider({settings}, folder=Path({str(folder / 'claims')!r}))"
        yield Stage(source, lambda machine: [pids[machine.endpoint.port]])
    finally:
        for pid in pids.values():
            with suppress(ProcessLookupError):
                end(pid)


def end(pid: int) -> None:
    descriptor = os.pidfd_open(pid)
    try:
        signal.pidfd_send_signal(descriptor, signal.SIGTERM)
        assert select.select([descriptor], [], [], END_SECONDS)[0], "a server does not end"
    finally:
        os.close(descriptor)
