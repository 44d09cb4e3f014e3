"""Commands that run rollouts on machines, in processes of their own, and what is known of their machines."""

import subprocess
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from outrider.core.machine import MachineMove, MachineRecord, MachineState
from outrider.pool.providers.desktop import DesktopProvider
from outrider.pool.providers.process import ProcessProvider
from outrider.pool.service.place import PoolPlace, pools_on_host
from outrider.store import open_store
from processes import OUTRIDER


@contextmanager
def folder_for_pools(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder of the test's own for what the host keeps of pools; its name is short, as those of sockets must be."""
    with tempfile.TemporaryDirectory(prefix="or-") as short:
        monkeypatch.setenv("TMPDIR", short)
        monkeypatch.setattr(tempfile, "tempdir", short)
        yield


@contextmanager
def started(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A command under way; it is killed, with what it has started, if it outlives the block."""
    process = subprocess.Popen(
        [*OUTRIDER, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def ended(process: subprocess.Popen[str], seconds: float = 90) -> str:
    output, _ = process.communicate(timeout=seconds)
    assert "Traceback" not in output, output
    return output


def workers_of(process: subprocess.Popen[str]) -> list[int]:
    found = []
    for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
        with suppress(OSError):
            if b"outrider.runner.process" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(int(pid))
    return found


async def machines(name: str, *states: MachineState) -> tuple[MachineRecord, ...]:
    path = Path("results", name, "store.db")
    if not path.exists():
        return ()
    async with open_store(f"sqlite:///{path}") as store:
        return await store.query_machines(None, states or None)


async def moves(name: str) -> tuple[MachineMove, ...]:
    async with open_store(f"sqlite:///results/{name}/store.db") as store:
        return (await store.query_machine_moves()).items


def leased(name: str, n: int = 1) -> Callable[[], Awaitable[bool]]:
    async def are_leased() -> bool:
        return len(await machines(name, MachineState.LEASED)) >= n

    return are_leased


async def nothing_is_left(name: str) -> None:
    known = await machines(name)
    assert {machine.state for machine in known} == {MachineState.GONE}
    assert not any(facts.name.startswith(f"{name}@") for facts in pools_on_host())
    for pool in {machine.pool for machine in known}:
        assert not PoolPlace(pool).folder.exists()
        assert await DesktopProvider().owned(pool) == ()
        assert await ProcessProvider().owned(pool) == ()
