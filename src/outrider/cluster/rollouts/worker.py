"""A worker of a run as a worker of a cluster: it opens the store by itself, and tells its launcher what it does."""

import asyncio
import os
from pathlib import Path

from outrider.cluster.post import Endpoint
from outrider.cluster.rollouts.reach import StoreFile
from outrider.cluster.rollouts.voice import logging_to, open_voice
from outrider.cluster.worker import Worker
from outrider.core import wire
from outrider.core.errors import OutriderError
from outrider.core.undumpable import become_undumpable
from outrider.runner.channel import WorkerExit
from outrider.runner.runner import Runner, worker_id_of
from outrider.runner.worker import LineHandler, WorkerSpec, exit_by, open_runner


class RolloutWorker(Worker):
    """Runs the rollouts of one `WorkerSpec`, in the launcher's current folder if this node has one of that name."""

    def __init__(self, launcher: Endpoint, folder: str) -> None:
        become_undumpable()
        self._launcher = launcher
        self._runner: Runner | None = None
        self._opening: asyncio.Task[object] | None = None
        self._is_draining = False
        if Path(folder).is_dir():
            os.chdir(folder)

    async def identify(self, index: int) -> str:
        """The id under which the store will know this worker."""
        return worker_id_of(index)

    async def sees(self, file: StoreFile) -> bool:
        """Whether the store's file is the same here."""
        return file.is_seen

    async def work(self, spec: bytes) -> bytes:
        """Work until there is nothing more to do, `drain` is called, or the launcher is gone; a `WorkerExit` record."""
        given = wire.from_record(spec, WorkerSpec)
        loop = asyncio.get_running_loop()

        def stop() -> None:
            loop.call_soon_threadsafe(self._stop)

        async with open_voice(self._seated.post, self._launcher, self.get_name(), on_lost=stop) as say:
            with logging_to(say, f"Worker-{given.index}", given.log_level):
                return wire.to_record(await self._work(given, say))

    async def drain(self) -> None:
        """Claim nothing more, finish what runs, end."""
        self._stop()

    def _stop(self) -> None:
        self._is_draining = True
        if self._runner is not None:
            self._runner.stop()
        elif self._opening is not None:  # it may wait for its store for long
            self._opening.cancel()

    async def _work(self, spec: WorkerSpec, say: LineHandler) -> WorkerExit:
        n_run = 0
        self._opening = asyncio.current_task()
        try:
            async with open_runner(spec, say) as self._runner:
                n_run = 0 if self._is_draining else await self._runner.iter()
        except OutriderError as exc:
            return exit_by(exc)
        except asyncio.CancelledError:
            if self._runner is not None or not self._is_draining:
                raise
        return WorkerExit(failed=False, description=f"ended after {n_run} rollouts")
