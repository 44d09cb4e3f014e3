"""The machines of one share of a run: a pool in a process of its own, on the node whose workers borrow from it."""

import asyncio
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from outrider.cluster.post import Endpoint
from outrider.cluster.rollouts.reach import StoreFile
from outrider.cluster.rollouts.voice import POOL_COUNTED, POOL_SAID, logging_to, open_voice
from outrider.cluster.worker import Worker
from outrider.core import wire
from outrider.core.secret import Secret
from outrider.core.undumpable import become_undumpable
from outrider.core.variables import withheld
from outrider.pool import MachinePool
from outrider.pool.service.host import hosted_pool
from outrider.runner.machines import SupplySpec
from outrider.store.opening import open_when_there

LOG_LEVEL = "WARNING"
TELL_SECONDS = 1.0
MAX_FAILURES = 3
"""If none of the first machines can be made, the pool gives up after so many."""


class NodePool(Worker):
    """Hosts one pool, in the launcher's current folder if this node has one of that name."""

    def __init__(self, launcher: Endpoint, folder: str) -> None:
        become_undumpable()
        self._launcher = launcher
        self._stopping = asyncio.Event()
        if Path(folder).is_dir():
            os.chdir(folder)

    async def sees(self, file: StoreFile) -> bool:
        """Whether the store's file is the same here."""
        return file.is_seen

    async def serve(self, supply: bytes, store_url: str, keys: bytes) -> bytes:
        """Have the pool until `stop` is called or the launcher is gone; its statistics, when its machines are ended.

        What it has counted is told to the launcher once a second, for the first time when there is a machine. Raises
        `InvalidInput` or `MachineError` if there cannot be one.
        """
        given = wire.from_record(supply, SupplySpec)
        loop = asyncio.get_running_loop()

        def stop() -> None:
            loop.call_soon_threadsafe(self._stopping.set)

        post, name = self._seated.post, self.get_name()
        async with open_voice(post, self._launcher, name, on_lost=stop, services=(POOL_SAID, POOL_COUNTED)) as voice:
            say = voice.say
            with (
                logging_to(say, f"pool {given.pool.name} on node {self.worker_info.node_ip}", LOG_LEVEL),
                withheld(wire.from_record(keys, dict[str, Secret]), passed=frozenset(os.environ)),
            ):
                async with (
                    await open_when_there(store_url, lambda what: say(f"⏳ pool {given.pool.name} {what}")) as store,
                    hosted_pool(given.machines, given.pool, journal=store) as pool,
                ):
                    await self._until_stopped(_lend(pool, given, voice.record))
                return wire.to_record(pool.statistics())

    async def stop(self) -> None:
        """End the machines, then `serve`."""
        self._stopping.set()

    async def _until_stopped(self, lending: Coroutine[Any, Any, None]) -> None:
        tasks = {asyncio.ensure_future(lending), asyncio.ensure_future(self._stopping.wait())}
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)


async def _lend(pool: MachinePool, supply: SupplySpec, record: Callable[[bytes], None]) -> None:
    """Tell what there is, from the first machine on."""
    seconds = supply.pool.create_seconds + supply.pool.probe_seconds
    await pool.wait_until_ready(1, deadline=seconds, max_failures=MAX_FAILURES)
    while True:
        record(wire.to_record(pool.statistics()))
        await asyncio.sleep(TELL_SECONDS)
