"""Every test here runs on every kind of machine, and nothing may be left of it."""

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from contract_machines import served_machine
from contract_machines.all_kinds import KINDS, SERVED
from contract_machines.kinds import US, Kind, Nursery, Stage
from leaks import no_leaks
from outrider.env.sandbox.census import family
from outrider.pool.providers.process import ProcessProvider
from outrider.testing import eventually

BECOME_SUBREAPER = 36


@pytest.fixture(params=sorted(KINDS))
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


@pytest.fixture
def with_commands() -> None:
    """A test that asks for it is not tried on kinds that run no commands."""


@pytest.fixture
def in_the_guest() -> None:
    """A test that asks for it is about what is done in a machine, whoever has made it."""


@pytest.fixture
def by_each_product() -> None:
    """A test that asks for it is about what differs between products that have most code in common."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items[:] = [item for item in items if not _lacks_commands(item)]
    for item in items:
        if _is_shown_by_another(item):
            item.add_marker(pytest.mark.soak)


def _is_shown_by_another(item: pytest.Item) -> bool:
    """Whether the code that the test is about is run by the same test on another kind."""
    if not isinstance(item, pytest.Function) or "kind" not in item.fixturenames:
        return False
    kind = item.callspec.params["kind"]
    if "in_the_guest" in item.fixturenames:
        return kind in SERVED
    return kind == "virtualbox" and "by_each_product" not in item.fixturenames


def _lacks_commands(item: pytest.Item) -> bool:
    if not isinstance(item, pytest.Function) or "with_commands" not in item.fixturenames:
        return False
    return not KINDS[item.callspec.params["kind"]].has_commands


@pytest.fixture(scope="module", autouse=True)
def orphans_come_to_us() -> Iterator[None]:
    """So that a process is seen, whoever has started it and died."""
    libc = ctypes.CDLL(None)
    assert libc.prctl(BECOME_SUBREAPER, 1, 0, 0, 0) == 0
    yield
    libc.prctl(BECOME_SUBREAPER, 0, 0, 0, 0)


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    program = [sys.executable, served_machine.__file__]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as process:
        yield process


@pytest.fixture
def lasting(kind: Kind, request: pytest.FixtureRequest) -> object:
    """What the machines of a kind need that is there for more than one test."""
    return request.getfixturevalue(kind.fixture)


@pytest.fixture
async def stage(kind: Kind, lasting: object) -> AsyncIterator[Stage]:
    before = set(family(os.getpid()))
    with tempfile.TemporaryDirectory(prefix="om-") as name:
        folder = Path(name)
        with kind.set_up(folder, lasting) as stage:
            yield stage
        await sweep(folder)
        assert list(folder.iterdir()) == []

    async def as_before() -> bool:
        left = set(family(os.getpid())) - before
        for pid in left:
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        return not left

    await eventually(as_before, within_seconds=30)


async def sweep(folder: Path) -> None:
    """End the machines behind servers that a test has killed, and those of a test that has failed."""
    provider = ProcessProvider(folder=folder / "machines")
    for address in (*await provider.owned(served_machine.OWNER), *await provider.owned(US)):
        if (machine := await provider.adopt(address["machine_id"], address)) is not None:
            await machine.destroy()
    await provider.close()


@pytest.fixture
async def provider(stage: Stage) -> AsyncIterator[object]:
    async with no_leaks():
        provider = stage.provider
        yield provider
        assert await provider.owned(US) == ()
        await provider.close()


@pytest.fixture
async def machine(provider: object) -> AsyncIterator[object]:
    machine = await provider.create("m-1", US)
    yield machine
    async with asyncio.timeout(20):
        await machine.destroy()


@pytest.fixture
def stopped(stage: Stage) -> Iterator[object]:
    """Stops all that a machine consists of, until the test is over."""
    pids: list[int] = []

    def stop(machine: object) -> None:
        pids.extend(pid for part in stage.parts(machine) for pid in family(part))
        for pid in pids:
            with suppress(ProcessLookupError):  # what it had started has ended meanwhile
                os.kill(pid, signal.SIGSTOP)

    yield stop
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
