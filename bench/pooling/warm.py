"""What the pool itself costs: taking and giving back a machine that is ready, which takes no time by itself."""

import asyncio
import sys
import tempfile
import time
from asyncio.subprocess import PIPE
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Protocol

from outrider.pool import Lease, MachinePool, PoolConfig
from outrider.pool.service.client import PoolClient
from outrider.pool.service.server import PoolServer
from outrider.pool.statistics import Durations
from outrider.store import open_store
from outrider.testing.fake_machines import FakeProvider

N_MACHINES = 4
N_FIRST = 20
"""Not counted."""

SECONDS = 30.0


class Source(Protocol):
    """Where a machine comes from, on this or the other side of a socket."""

    async def take(self, n: int = 1, *, deadline: float, run: str = "", holder: str = "") -> tuple[Lease, ...]: ...


async def time_leases(source: Source, n: int, all_ready: Callable[[], Awaitable[None]]) -> Durations:
    """How long `n` times taking and giving back took, each when all machines were ready and nothing else went on."""
    found = Durations()
    for number in range(N_FIRST + n):
        await all_ready()
        began = time.perf_counter()
        (lease,) = await source.take(deadline=SECONDS, run="warm", holder=f"ro-{number}")
        lease.release()
        if number >= N_FIRST:
            found.add(time.perf_counter() - began)
    return found


async def in_process(n: int, url: str | None) -> Durations:
    """In the process of the pool, with a journal there or with none."""
    async with open_store(url) if url else nullcontext() as store:
        pool = MachinePool(FakeProvider(), PoolConfig(n_machines=N_MACHINES), journal=store)
        async with pool:
            return await time_leases(pool, n, lambda: pool.wait_until_ready(deadline=SECONDS))


async def through_socket(n: int, url: str, path: Path) -> Durations:
    """From another process than the pool's, which journals."""
    process = await asyncio.create_subprocess_exec(sys.executable, __file__, url, path, stdin=PIPE, stdout=PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    client = PoolClient(path)
    try:
        async with asyncio.timeout(SECONDS):
            assert await process.stdout.readline() == b"ready\n", "the pool's process has ended"
        return await time_leases(client, n, lambda: _all_ready_there(client))
    finally:
        await client.close()
        process.stdin.close()  # which ends it
        async with asyncio.timeout(SECONDS):
            await process.wait()


async def measure(n: int) -> dict[str, Durations]:
    """All three ways, by what they are called."""
    with tempfile.TemporaryDirectory() as folder:
        return {
            "no journal": await in_process(n, None),
            "sqlite journal": await in_process(n, f"sqlite:///{folder}/inside.db"),
            "sqlite journal, other process": await through_socket(
                n, f"sqlite:///{folder}/outside.db", Path(folder) / "socket"
            ),
        }


async def _all_ready_there(client: PoolClient) -> None:
    async with asyncio.timeout(SECONDS):
        while (await client.standing()).statistics.states != {"ready": N_MACHINES}:
            pass  # each question is a turn of the pool


async def _serve(url: str, path: str) -> None:
    """A pool on a socket, until standard input ends."""
    async with (
        open_store(url) as store,
        MachinePool(FakeProvider(), PoolConfig(n_machines=N_MACHINES), journal=store) as pool,
        PoolServer(pool, Path(path)),
    ):
        await pool.wait_until_ready(deadline=SECONDS)
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)


if __name__ == "__main__":
    asyncio.run(_serve(*sys.argv[1:]))
