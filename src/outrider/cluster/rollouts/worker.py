"""A worker of a run on a node of a cluster: a worker process, and the member of the cluster that watches over it there.

Invariants:
- Code of agents runs in the process alone, so nothing that it does keeps the member from answering, or from ending it.
- The process is watched on its node by the code that watches worker processes elsewhere (`runner/worker.py`): one that
  blocks its event loop, dies, falls silent or does not end in time is noticed, ended and described in the same way.
"""

import asyncio
import os
import sys
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

from outrider.cluster.post import Endpoint
from outrider.cluster.rollouts.reach import StoreFile
from outrider.cluster.rollouts.voice import open_voice
from outrider.cluster.station import CLUSTER_VARIABLE
from outrider.cluster.worker import Worker
from outrider.core import wire
from outrider.core.errors import ClusterError
from outrider.core.undumpable import become_undumpable
from outrider.core.variables import withheld
from outrider.runner.channel import WorkerExit
from outrider.runner.worker import ProcessWorker, WorkerSpec


class RolloutWorker(Worker):
    """Runs the rollouts of one `WorkerSpec`, in the launcher's current folder if this node has one of that name."""

    def __init__(self, launcher: Endpoint, folder: str) -> None:
        become_undumpable()
        if sys.version_info < (3, 14):  # Ray sets the policy of uvloop, with which no other loop can start processes
            asyncio.set_event_loop_policy(None)
        self._launcher = launcher
        self._process: ProcessWorker | None = None
        self._life: Future[WorkerExit] | None = None
        if Path(folder).is_dir():
            os.chdir(folder)

    async def is_there(self) -> bool:
        """Whether it answers."""
        return True

    async def sees(self, file: StoreFile) -> bool:
        """Whether the store's file is the same here."""
        return file.is_seen

    async def start(self, spec: bytes) -> str:
        """Start the process, which begins to work: the id under which the store will know it."""
        given = replace(wire.from_record(spec, WorkerSpec), path=tuple(sys.path))
        started: Future[str] = Future()
        # On the post's own loop: that of Ray's actors may be uvloop's, which hands a process too many descriptors.
        self._life = life = self._seated.post.submit(self._live(given, started))
        either: list[asyncio.Future[Any]] = [asyncio.wrap_future(started), asyncio.wrap_future(life)]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not started.done():
            life.result()
        return started.result()

    async def work(self) -> bytes:
        """Wait until the process has ended, by itself or since the launcher has asked or is gone; a `WorkerExit`."""
        if self._life is None:
            raise ClusterError("the worker was not started")
        await asyncio.wait([asyncio.wrap_future(self._life)])  # which goes on if the launcher, who asks, is gone
        return wire.to_record(self._life.result())

    async def drain(self) -> None:
        """Claim nothing more, finish what runs, end."""
        self._seated.post.loop.call_soon_threadsafe(self._stop)

    async def kill(self) -> None:
        """End the process at once, and wait until it is gone with all that it has started."""
        if self._life is not None:
            self._seated.post.loop.call_soon_threadsafe(self._end)
            await asyncio.wait([asyncio.wrap_future(self._life)])

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
        elif self._life is not None:  # it is being started
            self._life.cancel()

    def _stop(self) -> None:
        if self._process is not None:
            self._process.drain()

    async def _live(self, spec: WorkerSpec, started: "Future[str]") -> WorkerExit:
        """The life of the process: how it ended."""
        os.environ.pop(CLUSTER_VARIABLE, None)  # agents are no members of the cluster
        with withheld(spec.withheld, spec.pass_env):
            return await self._watched(spec, started)

    async def _watched(self, spec: WorkerSpec, started: "Future[str]") -> WorkerExit:
        async with open_voice(self._seated.post, self._launcher, self.get_name(), on_lost=self._stop) as voice:
            process = await ProcessWorker.start(
                spec, voice.say, on_reading=lambda reading: voice.record(wire.to_record(reading))
            )
            self._process = process
            started.set_result(process.worker_id)
            return await process.wait()
